"""What pages are told and what they read at a glance.

A push says only that something changed, with a sequence; the page re-reads. Losing one loses nothing.
"""

from typing import Literal

from flexmarl.contracts.base import Record
from flexmarl.contracts.ids import Name


class Nudge(Record):
    """Message of a socket or event stream: `topic` changed, its newest sequence is `seq`."""

    topic: str
    """`run:<uuid>` or `cluster`."""
    seq: int


class AgentProgress(Record):
    reward: float | None = None
    version: int = 0


class MicroBatchProgress(Record):
    policy: Name
    cut: int = 0
    accumulated: int = 0
    expected: int = 0
    state: Literal["waiting", "accumulating", "stepping", "published"] = "waiting"


class TokenAccount(Record):
    """What became of the tokens that were sampled in training episodes: sampled = delivered + undelivered + waiting."""

    sampled: int = 0
    delivered: int = 0
    """They are in rows on which an optimizer step was taken."""
    undelivered: dict[str, int] = {}
    """By cause."""
    waiting: int = 0
    """Their rows are settled, and their step is not taken yet."""
    breaks: dict[str, int] = {}
    """Cause -> chains that ended before their episode did. No token is lost by that: the next chain reads them."""


class FleetProgress(Record):
    """Engines of a run: how many it has, of how many; the same number where that is fixed."""

    engines: int = 0
    """They hold the weights and answer, or are waited for."""
    joining: int = 0
    leaving: int = 0
    min: int = 0
    max: int = 0
    wanted: int = 0
    """Engines that it asks for now: the maximum, or fewer by measured rates."""
    why: str = ""
    """The rates by which that was decided last; empty while nothing was."""


class ArchivedRows(Record):
    """Groups of one age that later steps may be taken on again."""

    policy: Name
    age: int
    """Version after the last step minus that of the oldest row's first token."""
    origin: Literal["run", "imported"] = "run"
    """Who sampled them: the run itself, or another one, of which the rows were imported before the first step."""
    groups: int
    rows: int


class Progress(Record):
    """Figures of a run that lists and headers show; derived by the core, stored beside its state."""

    step: int = 0
    max_steps: int = 0
    cohort_groups_settled: int = 0
    cohort_groups: int = 0
    episodes_proposed: int = 0
    episodes_finished: int = 0
    episodes_failed: int = 0
    episodes_cancelled: int = 0
    samples_trained: int = 0
    rows_replayed: int = 0
    """Rows on which a further step was taken; none of them is among `samples_trained` again."""
    archive: tuple[ArchivedRows, ...] = ()
    """What `sampling.replay` may draw from since the last step, by policy and age."""
    tokens_generated: int = 0
    tokens: TokenAccount = TokenAccount()
    step_seconds: float | None = None
    """Median duration of the last 20 steps."""
    reward: float | None = None
    """Team score, mean of the last step."""
    reward_first: float | None = None
    eval_solved: float | None = None
    eval_best: float | None = None
    eval_step: int | None = None
    agents: dict[Name, AgentProgress] = {}
    micro_batches: tuple[MicroBatchProgress, ...] = ()
    fleet: FleetProgress = FleetProgress()
    waiting_for: str = ""
    """One line on what the pipeline waits for now."""
    attempt: int = 0
    frozen: bool = False
    """Its open train step stands still; the episodes of unsettled groups are played again."""
    release_at: float | None = None
    """When a paused run gives its devices back, in seconds since the epoch."""
