"""Values that several planes name: samples, episode outcomes, version vectors, micro-batches."""

from enum import StrEnum
from typing import Literal, NamedTuple

from pydantic import Field

from flexmarl.contracts.base import Record
from flexmarl.contracts.ids import Digest, Name

EVALUATION_DRAWS = 1 << 30
"""Evaluation groups are numbered from here, training groups below: one key space, no collision."""


UNKNOWN_LOGPROB = 1.0
"""Stands where nobody knows how probable a token was to whoever said it: no log-probability is above 0."""


class Origin(StrEnum):
    """Why an episode group was played; only `train` groups enter a cohort."""

    TRAIN = "train"
    EVAL = "eval"


class EpisodeStatus(StrEnum):
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


class PolicyPin(Record):
    """One policy's exact weights: what an engine must hold before it may answer."""

    version: int = Field(ge=0)
    digest: Digest | Literal[""]
    """Empty while the version is certain and not committed yet: a turn waits until an engine holds it."""


class SampleRef(Record):
    """One turn of a settled episode, named by its role and number there. Turns of one chain are one training row."""

    role: Name
    turn: int = Field(ge=0)
    """Index of the model call among this role's calls in the episode, from 0."""
    tokens: int = Field(ge=0)
    """Number of response tokens, all of them emitted by the policy."""
    reward: float = 0.0
    """Reward the environment gave for this very turn (0 when it only scores episodes); of a group that branches, what
    this answer was scored."""
    segments: tuple[int, ...] = ()
    """version, tokens, version, tokens, ... where other versions than the pinned one made tokens; else empty."""
    follows: int = Field(default=0, ge=0)
    """Turns before it in its chain. The row has the number of the first one: of a closed-word game each turn is one."""


CONTEXT_OVERFLOW = "engine: context_overflow:"
"""With what the reason of an episode begins that ended because a prompt no longer fitted its model's context."""


TOO_OLD = "rollout: too_old:"
"""With what the reason of an episode begins that was abandoned, since no step may train its rows any more."""


class Prefix(Record):
    """The beginning of an episode, after which it may be continued by other members of its group."""

    turns: int = Field(ge=1)
    """How many turns of the episode it has."""
    logprob: float
    """Mean log-probability of the tokens that were sampled in its last round of turns."""


class TokenSignal(NamedTuple):
    """How uncertain a token was."""

    entropy: float
    """In nats, of the distribution that it was drawn from."""
    confidence: float
    """Mean mass of the likeliest tokens, there and at the tokens before."""
    jump: float
    """Entropy above that of the token before."""


class Branch(Record):
    """Where a member stands in the tree of its group. Its turns are those that it played itself."""

    root: int = Field(default=-1, ge=-1)
    """Member whose episode it continues; -1: it played its own from the start."""
    turns: int = Field(default=0, ge=0)
    """Turns of that episode after which it went on."""
    predicted: float = 0.5
    """Chance of success there, as it was predicted."""
    value: float = 0.0
    """What it added to the chance that some continuation from there ends otherwise than the root did."""
    prefixes: tuple[Prefix, ...] = ()
    """Of a member that played from the start: after which of its turns it could be continued, in their order."""
    tokens: int = Field(default=0, ge=0, exclude_if=lambda tokens: not tokens)
    """Tokens of the root's next reply that its own first one begins with; 0: it begins after a turn."""
    signals: tuple[TokenSignal, ...] = Field(default=(), exclude_if=lambda signals: not signals)
    """Where replies are continued at tokens: how uncertain some tokens were of a member that played from the start, or
    the one was at which another goes on."""


class EpisodeOutcome(Record):
    """How the winning attempt of one member of an episode group ended."""

    member: int = Field(ge=0)
    attempt: int = Field(ge=1)
    status: EpisodeStatus
    reason: str = ""
    """Boundary and cause when the episode failed, e.g. `environment: step raised ValueError`."""
    by_clock: bool = False
    """It failed because time ran out: another try of the same might not."""
    replaced: bool = False
    """A second environment finished it before the first one."""
    scores: dict[Name, float] = {}
    """Episode reward per role."""
    team_score: float = 0.0
    solved: bool = False
    samples: tuple[SampleRef, ...] = ()
    wasted: int = Field(default=0, ge=0)
    """Tokens that were sampled for it beside its samples: in tries that failed."""
    breaks: dict[str, int] = {}
    """Cause -> chains that ended before the episode did, since the next prompt did not extend them."""
    duration_s: float = 0.0
    answer: str = Field(default="", exclude_if=lambda answer: not answer)
    """Digest of what it answered, the same for equal answers, where the run counts them; empty: it gave none."""
    shared: bool = Field(default=False, exclude_if=lambda shared: not shared)
    """Another installation said its turns."""
    facts: dict[str, float] = {}
    """Environment's own named figures, averaged into metrics (e.g. `dishes`, `verifier_accept`)."""
    branch: Branch | None = Field(default=None, exclude_if=lambda branch: branch is None)
    """Its place in the tree of its group, where members continue others."""
    surprisals: tuple[float, ...] = Field(default=(), exclude_if=lambda figures: not figures)
    """Of each sample, the mean of -log p over its tokens, where turns are kept by it."""

    @property
    def overflowed(self) -> bool:
        """Tell whether it ended because a prompt no longer fitted its model's context: none is ever shortened."""
        return self.reason.startswith(CONTEXT_OVERFLOW)

    @property
    def abandoned(self) -> bool:
        """Tell whether it was given up between two turns: every row of it had grown older than its policy's bound."""
        return self.status is EpisodeStatus.CANCELLED and self.reason.startswith(TOO_OLD)


class CutSample(Record):
    """A sample's membership in a micro-batch, with the advantages fixed at the cut."""

    draw: int
    member: int
    attempt: int
    role: Name
    turn: int
    """The first one of its chain."""
    advantages: tuple[float, ...]
    """Of each turn of its chain."""
    weight: float = 1.0
    """How often the row counts, before the coefficient c_i that the trainer gives it by its length."""


class MicroBatchRef(Record):
    """A micro-batch by policy and number; numbers are unique per policy in a run and never reused."""

    policy: Name
    no: int = Field(ge=0)


class TrainStats(Record):
    """Un-normalised sums a micro-batch adds to its policy's step. Divide by `z` (or `tokens`) to read them."""

    rows: int = 0
    tokens: int = 0
    z: float = 0.0
    """This micro-batch's share of the step's normaliser Z, under the loss's aggregation."""
    loss_sum: float = 0.0
    entropy_sum: float = 0.0
    kl_engine_sum: float = 0.0
    """Sum of the k3 estimate of KL(engine || trainer) over the tokens that the trained version made."""
    logprob_gap_sum: float = 0.0
    """Sum of |trainer log-prob - engine log-prob| over the same tokens."""
    logprob_gap_max: float = 0.0
    """The largest of these."""
    clipped_sum: float = 0.0
    """Tokens that the loss clipped, or the correction truncated or left out."""
    corrected_sum: float = 0.0
    """Those of the correction alone."""
    older_tokens: int = 0
    """Tokens that older versions made."""
    kl_update_sum: float = 0.0
    """Sum of the k3 estimate over the tokens that older versions made: update and mismatch in one."""
    kl_reference_sum: float = 0.0
    """Sum of the estimated divergence from the reference policy, where there is one."""
    value_rows: int = 0
    """Turns that a critic judged."""
    value_loss_sum: float = 0.0
    """Half the squared distance of its values from what they are drawn to, summed over these turns."""
    seconds: float = 0.0
