"""A cohort and an evaluation: open draws, settled groups, and what each policy trains of them.

Invariants: a draw leaves `open` exactly once. Rows appear only between the settlement of their group and the cut of
their micro-batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import msgspec

from flexmarl.algorithms.replay import ArchivedGroup, Row
from flexmarl.algorithms.rescue import StoredSuccess
from flexmarl.orchestrator.state.lag import Ages, LagCounts
from flexmarl.orchestrator.state.totals import TrainTotals

NO_OTHERS: Mapping[int, int] = MappingProxyType({})


@dataclass(slots=True)
class Pin:
    """Exact weights of a policy."""

    version: int
    digest: str
    """Empty while the version is to come: its step is certain and not committed yet."""


class MicroBatchState(msgspec.Struct, gc=False):
    """One micro-batch. A leaf, of which a large run holds thousands."""

    no: int
    rows: int
    tokens: int
    accumulated: bool = False
    part: int = 0
    """Optimizer step of its cohort that it belongs to; more than one only with mini-batches."""
    applied: bool = False
    replayed: bool = False
    """Its rows come from the archive: an earlier step was taken on them, and their tokens are accounted for."""

    @property
    def new_rows(self) -> int:
        """Count the rows that no step was taken on before."""
        return 0 if self.replayed else self.rows

    @property
    def new_tokens(self) -> int:
        """Count the tokens of these rows."""
        return 0 if self.replayed else self.tokens


@dataclass(slots=True)
class CohortRows:
    """Rows of a policy in a cohort: generated, and removed before they were cut. Owner: `cohorts`."""

    generated: int = 0
    generated_tokens: int = 0
    overtaken: int = 0
    """Removed because the policy had stepped by its own clock before they settled."""
    stale: int = 0
    """Removed by the sweep."""
    replayed: dict[int, int] = field(default_factory=dict)
    """Age in versions -> rows that were drawn from the archive, or from the pool of successes."""
    left_out: int = 0
    """Rows that count 0 by the arranger."""
    most_repeats: int = 0
    """Times that a row counts at most by the arranger."""
    injected: list[ArchivedGroup] = field(default_factory=list)
    """Successes that stand in its groups, to be cut when the cohort is settled. Owner: `cohorts.rescue`."""


@dataclass(slots=True)
class StepFigures:
    """Reported by the trainer with the last optimizer step. Owner: `training`."""

    grad_norm: float = 0.0
    learning_rate: float = 0.0
    seconds: float = 0.0
    """Sum over the steps of the cohort."""


@dataclass(slots=True)
class PolicyCohort:
    """A trainable policy's part of a cohort."""

    micro_batches: list[MicroBatchState] = field(default_factory=list)
    accumulated: int = 0
    totals: TrainTotals = field(default_factory=TrainTotals)
    """Of the optimizer step that is being gathered."""
    trained: TrainTotals = field(default_factory=TrainTotals)
    """Of the optimizer steps taken in this cohort."""
    steps: int = 0
    """Optimizer steps taken in this cohort; with mini-batches the next one is of the part with this number."""
    stepped: bool = False
    """Nothing more is trained for it in this cohort: it stepped, had nothing to step on, or carries its gradient."""
    null_step: bool = False
    closed: bool = False
    """By its own clock it takes no more rows in this cohort: its step is asked for."""
    carries: int = 0
    """Cohorts before this one whose gradient is carried in it."""
    carried: bool = False
    """Too few rows for a step: what is accumulated goes on into the next cohort."""
    rows: CohortRows = field(default_factory=CohortRows)
    own_lag: int = 0
    """Highest version distance between a cut row and the weights it is trained on."""
    lags: LagCounts = field(default_factory=LagCounts)
    step: StepFigures = field(default_factory=StepFigures)


@dataclass(slots=True)
class PendingGroup:
    """A kept group whose rows are not cut yet."""

    draw: int
    rows: dict[str, list[Row]]
    """Policy -> its rows, advantages fixed."""
    ages: dict[str, Ages] = field(default_factory=dict)
    success: StoredSuccess | None = None
    """What the pool of successes takes of it once it is cut."""
    task: int = -1
    """Of a group that gives or takes a success."""
    injected: dict[str, ArchivedGroup] = field(default_factory=dict)
    """Policy -> rows of a success of an earlier step that its own are compared with."""


@dataclass(slots=True)
class ScoreSums:
    """Team scores of finished episodes."""

    total: float = 0.0
    lowest: float | None = None
    highest: float | None = None


@dataclass(slots=True)
class RoleSums:
    """Role -> sum over finished episodes."""

    scores: dict[str, float] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    turns: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class FactSums:
    """Fact of the environment -> sum of its finite values, and how many there were."""

    totals: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Tally:
    """Sums over settled groups, for metrics. Owner: `state.group_counts`."""

    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    replaced: int = 0
    """Finished episodes that a second environment finished first."""
    solved: int = 0
    team: ScoreSums = field(default_factory=ScoreSums)
    roles: RoleSums = field(default_factory=RoleSums)
    facts: FactSums = field(default_factory=FactSums)
    signals: dict[str, int] = field(default_factory=dict)
    samples: int = 0
    tokens: int = 0
    last_failure: str = ""


@dataclass(slots=True)
class GroupFates:
    """Groups of a cohort by what became of them. Owner: `cohorts`."""

    cut: int = 0
    """Kept groups that are cut; of an ordered run: draws that are cut or were not kept."""
    kept: int = 0
    refused: int = 0
    """By the group filter."""
    dropped: int = 0
    """Too few members finished."""
    late: int = 0
    """Kept groups of which nothing was young enough to be cut, or whose members were given up as too old."""
    handed_on: int = 0
    """Surplus groups that play on for a later step."""
    cancelled: int = 0
    """Surplus groups that were cancelled."""
    members: int = 0
    """Of the kept groups, those with a score."""
    members_kept: int = 0
    """Those of them that are trained on."""
    members_abandoned: int = 0
    """Of all its groups, those that were given up between two turns, since they were too old."""
    members_shared: int = 0
    """Of the kept groups, those that other installations said."""
    members_unlearned: int = 0
    """Those of them whose advantages were left out."""


@dataclass(slots=True)
class CohortTimes:
    """Seconds of the driver's clock. Owner: `cohorts`; `run.pausing` moves them by the length of a pause."""

    opened_at: float
    settled_at: float | None = None
    stepped_at: float | None = None
    idle_since: float | None = None
    """Since when the trainer waits for samples of this cohort."""
    idle_s: float = 0.0


@dataclass(slots=True)
class Cohort:
    """The episode groups of one global batch under one pinned version vector.

    A draw leaves `open` exactly once: it is kept (and `pending`), refused or dropped.
    """

    no: int
    times: CohortTimes
    first_draw: int
    pins: dict[str, Pin]
    open: dict[int, str]
    """Unsettled draw -> key of the rollout command that plays it."""
    policies: dict[str, PolicyCohort]
    ended: dict[int, dict[int, bool]] = field(default_factory=dict)
    """Open draw that settles by the episode -> members that ended, and whether each finished or was too old."""
    base: dict[str, Pin] = field(default_factory=dict)
    """Vector that was committed when this cohort became the one that is trained."""
    pending: list[PendingGroup] = field(default_factory=list)
    groups: GroupFates = field(default_factory=GroupFates)
    tally: Tally = field(default_factory=Tally)
    size: int = 0
    """Groups that belong to it."""
    filled: bool = True
    """Its own groups are proposed; one that is not has only what older cohorts left."""
    older: dict[int, dict[str, Pin]] = field(default_factory=dict)
    """Draw that came from an earlier cohort -> the vector it plays under. Where engines serve one version at a time:
    every draw that an engine was given -> the vector that this one held."""
    tasks: dict[int, int] = field(default_factory=dict)
    """Draw -> draw whose task it plays again."""
    long_round: bool = False
    """It plays what earlier ones deferred: nothing beyond its groups, and all of them to the end."""


@dataclass(slots=True)
class EvaluationState:
    """Episodes on held-out tasks under one pinned vector."""

    step: int
    pins: dict[str, Pin]
    open: dict[int, str]
    tally: Tally = field(default_factory=Tally)


def playing(parts: Cohort | EvaluationState, members: int, others: Mapping[int, int] = NO_OTHERS) -> int:
    """Count the episodes of open draws that have not ended, where a draw has so many members but for some others."""
    ended = sum(map(len, parts.ended.values())) if isinstance(parts, Cohort) else 0
    if others and isinstance(parts, Cohort):
        return sum(others.get(draw, members) for draw in parts.open) - ended
    return len(parts.open) * members - ended
