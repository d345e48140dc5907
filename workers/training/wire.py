"""What a node says to a trainer child: msgpack over loopback HTTP, one endpoint per verb of `VERBS`.

Arrays travel as little-endian bytes. Every request names the accumulator epoch it is meant for; the trainer refuses
another one (409), so a command of an earlier life can never touch this one's gradient.
"""

import hashlib
import hmac
from dataclasses import dataclass

import msgspec


class BindReply(msgspec.Struct):
    policy: str
    version: int
    digest: str
    state: str
    created: bool
    tokenizer: bytes
    """tokenizer.json of the policy's model source."""
    facts: dict[str, float]
    chat: str = ""
    """Chat format of the policy's model, as JSON; empty: it knows no messages."""
    resumed: bool = False
    """It goes on with the accumulator that it was suspended with."""
    bytes: int = 0
    """Length of what was brought back."""
    seconds: float = 0.0


ID_BYTES = 4
"""Of a token id, and of a log-probability."""


class TrainRow(msgspec.Struct):
    """One sample of a micro-batch: a chain of turns, in each of which the policy reads and then says something."""

    prompt: bytes
    """int32[n_prompt]: what was read, of all turns"""
    response: bytes
    """int32[n_response]: what was sampled, of all turns"""
    logprobs: bytes
    """float32[n_response], as the engine reported"""
    allowed: bytes
    """int32[n_allowed]; empty: the whole vocabulary"""
    temperature: float
    advantages: list[float]
    """Of each turn"""
    weight: float
    segments: list[int] = []
    """version, tokens, version, tokens, ... over the response; empty: not known"""
    pair: str = ""
    """Whose members may be compared with each other: the same for all rows of a role in a group."""
    member: int = 0
    turn: int = 0
    """The first one."""
    spans: list[int] = []
    """tokens read, tokens sampled, ... by turns; empty: one turn"""
    offsets: list[int] = []
    """How many turns of the role each turn stands behind the first; empty: one behind the other"""
    grammars: list[str] = []
    """Of each turn, the digest of what its reply was held to, empty for nothing; an empty list: of no turn anything"""
    steps: bytes = b""
    """int16[n_response]: in which step of its block each token was revealed, of a reply made by block diffusion"""

    def lengths(self) -> tuple[int, ...]:
        """Return how many tokens were read and how many were sampled, by turns."""
        return tuple(self.spans) or (len(self.prompt) // ID_BYTES, len(self.response) // ID_BYTES)

    def turn_at(self, place: int) -> int:
        """Return which turn of the role stands at a place of the row."""
        return self.turn + (self.offsets[place] if self.offsets else place)

    def said(self) -> list[int]:
        """Return the turns, counted from the row's first one, in which something was sampled."""
        return [turn for turn, tokens in enumerate(self.lengths()[1::2]) if tokens]


class RedoBatch(msgspec.Struct, forbid_unknown_fields=True):
    """A micro-batch that was applied, with what its gradient depends on besides the weights."""

    micro_batch: int
    entropy_coef: float
    rows: list[TrainRow]
    proximal: int = -1
    """Version that the first step on its cohort began with; -1: the one that it is taken at."""
    grammars: dict[str, str] = {}
    """What replies of its rows were held to: digest -> `ReplyGrammar` as JSON."""


class RedoStep(msgspec.Struct, forbid_unknown_fields=True):
    """An optimizer step that was committed, to be taken again in memory: nothing of it counts a second time."""

    version: int
    """The version it made."""
    digest: str
    """That version's weights."""
    learning_rate: float
    batches: list[RedoBatch]
    references: list[str] = []
    """Digests of what the version before it was compared with, as `AlgorithmSpec.compared_with` lists them."""


class BindRequest(msgspec.Struct, forbid_unknown_fields=True):
    policy: str
    version: int = -1
    """-1: create version 0, from another run's weights where a digest is named."""
    digest: str = ""
    state: str = ""
    """Digest of the training state (optimizer) to restore; empty starts a fresh optimizer."""
    base: str = ""
    """Where steps are redone: digest of the weights that the training state belongs to."""
    redo: list[RedoStep] = []
    """Committed steps behind the training state, oldest first; the last one made the version asked for."""
    references: list[str] = []
    """Digests of what the version is compared with while it is trained, where that is not to be made, as
    `AlgorithmSpec.compared_with` lists them; empty: nothing."""
    resume: str = ""
    """Ticket of its suspended state: it goes on as it was, with the gradients it had gathered."""
    accumulator: str = ""
    """Epoch that the suspended accumulator had."""
    gang: list[int] = []
    """Leases of its ranks, the trainer that is asked first; empty: it alone."""
    meeting: int = 0
    """Which forming of the gang this is."""
    tokenizer: str = ""
    """Where weights are taken over: SHA-256 of the tokenizer they speak with; empty is not compared."""
    order: int = 0
    """Number of the command, if it has one: one of before the trainer's device was given up is refused."""
    demonstrations: list[bytes] = []
    """Where version 0 is made and warmed up on conversations: the rows of a dataset that it may use, as lines."""

    @property
    def makes_first(self) -> bool:
        """Whether version 0 is made anew, and not from another run's weights."""
        return self.version < 0 and not self.digest


class JoinRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Be a further rank of a policy's gang. The answer comes before all ranks are in."""

    policy: str
    rank: int
    ranks: int
    meeting: int
    leader: str
    """host:port of the leader's rendezvous."""
    key: str
    """Opens this gang's place there."""


def rendezvous_key(secret: str, policy: str, meeting: int) -> str:
    """Return what opens one gang's place at a leader's rendezvous, from the secret of the leader's life.

    Its node makes it from the registry and the leader from its configuration; the key tells nothing of the secret.
    """
    return hmac.new(secret.encode(), f"gang:{policy}:{meeting}".encode(), hashlib.sha256).hexdigest()


class JoinReply(msgspec.Struct):
    policy: str
    meeting: int


class AccumulateRequest(msgspec.Struct, forbid_unknown_fields=True):
    policy: str
    accumulator: str
    micro_batch: int
    entropy_coef: float
    rows: list[TrainRow]
    proximal: int = -1
    """Version that the first step on its cohort began with; -1: the trained one."""
    grammars: dict[str, str] = {}
    """What replies of its rows were held to: digest -> `ReplyGrammar` as JSON."""


class AccumulateReply(msgspec.Struct):
    """Fields of `flexmarl.contracts.wire.TrainStats`."""

    stats: dict[str, float]


class StepRequest(msgspec.Struct, forbid_unknown_fields=True):
    policy: str
    accumulator: str
    micro_batches: list[int]
    next_version: int
    learning_rate: float


class StepReply(msgspec.Struct):
    version: int
    digest: str
    state: str
    """Digest of its training state; empty while that is not on disk."""
    null_step: bool
    grad_norm: float
    seconds: float
    durable: dict[int, str] = {}
    """Earlier versions whose training state is on disk by now, with its digest."""


class SuspendRequest(msgspec.Struct, forbid_unknown_fields=True):
    policy: str
    accumulator: str
    reach: str = "host"
    """Who may take it up: this process, one of this host, or any of the cluster."""


class SuspendReply(msgspec.Struct):
    ticket: str
    """Where it lies, for the state plane of whoever takes it up."""
    bytes: int
    """Length of the suspended state."""
    seconds: float


class VacateRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Hold no policy any more and keep nothing for those to come: an engine gets the device."""

    order: int = 0
    """Number of the command, if it has one."""


class VacateReply(msgspec.Struct):
    left: list[str]
    """Policies that were held until then; nobody counts on them."""


class CheckpointRequest(msgspec.Struct, forbid_unknown_fields=True):
    label: str
    step: int
    versions: dict[str, int]
    digests: dict[str, str]


class CheckpointReply(msgspec.Struct):
    path: str
    bytes: int
    states: dict[str, str] = {}
    """Policy -> digest of the training state that is kept with its weights; empty when there is none."""
    kept_on: str = ""
    """Node that keeps the folder in the place of the one that wrote it; only a node says so."""


class Refusal(msgspec.Struct):
    """Body of a 409 or 422: the trainer's state does not fit the request."""

    code: str
    detail: str
    accumulator: str = ""
    micro_batches: list[int] = []


@dataclass(frozen=True, slots=True)
class TrainerVerb:
    """What a trainer is asked for a kind of command: `POST /<name>`, which the trainer's method of that name does.

    Where nothing else is prepared, the request has the command's fields of the same name and its number as `order`;
    where nothing else is written, the fact has those of the command and of the reply.
    """

    name: str
    request: type[msgspec.Struct]
    reply: type[msgspec.Struct]


VERBS = {
    "bind_policy": TrainerVerb("bind", BindRequest, BindReply),
    "join_gang": TrainerVerb("join", JoinRequest, JoinReply),
    "accumulate": TrainerVerb("accumulate", AccumulateRequest, AccumulateReply),
    "optimizer_step": TrainerVerb("step", StepRequest, StepReply),
    "suspend_policy": TrainerVerb("suspend", SuspendRequest, SuspendReply),
    "vacate_trainer": TrainerVerb("vacate", VacateRequest, VacateReply),
    "write_checkpoint": TrainerVerb("checkpoint", CheckpointRequest, CheckpointReply),
}
"""Kind of a command -> the verb of a trainer that carries it out."""
