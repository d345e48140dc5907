"""The whole state of a run as one tree of plain values.

Invariants: nothing outside this tree survives a call; it goes to JSON and back without loss (`snapshots`), dict order
included, so a core restored from a snapshot continues with the same commands. It holds groups and counters; rows appear
only between the settlement of their group and the cut of their micro-batch. Times are seconds of the driver's clock.
"""

from dataclasses import dataclass, field
from typing import Literal

import msgspec

from flexmarl.contracts.events import DeviceUse
from flexmarl.contracts.status import RunReason, RunStatus
from flexmarl.orchestrator.state.demand import DemandState
from flexmarl.orchestrator.state.history import History, PauseState, RequestedVerb
from flexmarl.orchestrator.state.in_flight import InFlightCommands
from flexmarl.orchestrator.state.lag import Ages, LagCounts
from flexmarl.orchestrator.state.tokens import TokenCounts
from flexmarl.orchestrator.state.totals import TrainTotals

STATE_SCHEMA_VERSION = 1

Row = tuple[int, int, str, int, tuple[float, ...], float, int]
"""member, attempt, role, first turn, advantage of each turn, weight, tokens."""


@dataclass(slots=True)
class Pin:
    """Exact weights of a policy."""

    version: int
    digest: str
    """Empty while the version is to come: its step is certain and not committed yet."""


@dataclass(slots=True)
class LeaseState:
    """A device of the run and the child on it. An empty incarnation: no child answers now."""

    lease_id: int
    device_id: str
    use: DeviceUse
    incarnation: str = ""
    alive: list[str] = field(default_factory=list)
    """Lives that were announced and not lost; facts about them may overtake each other."""
    gone: list[str] = field(default_factory=list)
    """The last lives that were lost."""
    losses: int = 0
    releasing: bool = False
    holds: dict[str, int] = field(default_factory=dict)
    """Engine: policy -> version it wholly holds, the last one loaded."""
    kept: dict[str, int] = field(default_factory=dict)
    """Engine: policy -> version it still holds besides, the one loaded before."""
    recalled: str = ""
    """Why its device is wanted back; empty while nobody wants it."""
    replaces: int = 0
    """Recalled lease it stands by for; it takes over between two cohorts."""
    serves: list[str] = field(default_factory=list)
    """Engine that cannot hold every policy: those that have its places."""
    leaving: list[str] = field(default_factory=list)
    """Engine: policies that it is to forget; each has its place until it has."""
    unloads: dict[str, int] = field(default_factory=dict)
    """Engine: policy -> last command to forget it; what loads before that led to counts no more."""
    beside: int = 0
    """Trainer: the engine's lease whose device it shares; 0: it has its device for itself."""
    asleep: bool = False
    """Engine: it gave its memory up and takes nothing until it is woken. Trainer beside one: it keeps nothing."""
    plays: list[int] = field(default_factory=list)
    """Engine that serves one version at a time: draws that it was given and that have not settled."""
    given_at: float = 0.0
    """When it was given the last of them."""
    goes_on_at: int = 0
    """Lease of the engine that goes on with what this one had when it was emptied; 0: it was not."""
    turned: int = 0
    """Engine: last command by which it fell asleep or woke; what loads before that led to counts no more."""


@dataclass(slots=True)
class Failure:
    """How often a piece of work failed in a row for one cause, when it may be tried again, and what it waits for."""

    count: int
    until: float
    waits_for: str = ""


@dataclass(slots=True)
class PolicyPlacement:
    """Trainer devices or ticket of a policy's training state, and the measured times of moving it."""

    gang: list[int] = field(default_factory=list)
    """Leases of the trainers that hold it or are asked to, the leader first; empty while it is suspended or nowhere."""
    ticket: str = ""
    """Where it is suspended; empty while it is not. It stays until a trainer has taken the policy up."""
    lease_id: int = 0
    """Lease whose trainer suspended it last."""
    meeting: int = 0
    """How often a gang of several was formed for it."""
    since: float = 0.0
    """When it was given its gang."""
    worked: bool = False
    """A gradient was computed or a step taken since."""
    waiting_since: float | None = None
    """Since when it has work and no device."""
    idle_since: float | None = None
    """Since when it has devices and no work."""
    meant: list[int] = field(default_factory=list)
    """Leases of the trainers for which it was suspended, until it is bound or has nothing to do."""
    suspend_s: float = 0.0
    resume_s: float = 0.0
    token_s: float = 0.0
    """Measured, smoothed: to suspend it, to bring it back, and a device's time for one token; 0: not measured yet."""


@dataclass(slots=True)
class PolicyState:
    version: int | None = None
    digest: str = ""
    accumulator: str = ""
    """Epoch of the accumulator; empty while no trainer holds the policy and none suspended it."""
    placement: PolicyPlacement = field(default_factory=PolicyPlacement)
    next_micro_batch: int = 0
    carry: "PolicyCohort | None" = None
    """Between two cohorts: what the last one carried, in the accumulator and never applied."""

    @property
    def pin(self) -> Pin:
        """Return the committed weights. Only after version 0 exists."""
        assert self.version is not None
        return Pin(self.version, self.digest)


class MicroBatchState(msgspec.Struct, gc=False):
    """One micro-batch. A leaf, of which a large run holds thousands."""

    no: int
    rows: int
    tokens: int
    accumulated: bool = False
    part: int = 0
    """Optimizer step of its cohort that it belongs to; more than one only with mini-batches."""
    applied: bool = False


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
    overtaken: int = 0
    """Rows dropped because the policy had stepped by its own clock before they settled."""
    stale: int = 0
    """Rows the sweep took out."""
    own_lag: int = 0
    """Highest version distance between a cut row and the weights it is trained on."""
    lags: LagCounts = field(default_factory=LagCounts)
    made_rows: int = 0
    made_tokens: int = 0
    grad_norm: float = 0.0
    learning_rate: float = 0.0
    step_seconds: float = 0.0


@dataclass(slots=True)
class PendingGroup:
    """A kept group whose rows are not cut yet."""

    draw: int
    rows: dict[str, list[Row]]
    """Policy -> its rows, advantages fixed."""
    ages: dict[str, Ages] = field(default_factory=dict)


@dataclass(slots=True)
class Tally:
    """Sums over settled groups, for metrics."""

    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    replaced: int = 0
    """Finished episodes that a second environment finished first."""
    solved: int = 0
    team_sum: float = 0.0
    team_min: float | None = None
    team_max: float | None = None
    role_sum: dict[str, float] = field(default_factory=dict)
    role_tokens: dict[str, int] = field(default_factory=dict)
    role_turns: dict[str, int] = field(default_factory=dict)
    facts: dict[str, float] = field(default_factory=dict)
    fact_counts: dict[str, int] = field(default_factory=dict)
    signals: dict[str, int] = field(default_factory=dict)
    samples: int = 0
    tokens: int = 0
    last_failure: str = ""


@dataclass(slots=True)
class Cohort:
    """The episode groups of one global batch under one pinned version vector.

    A draw leaves `open` exactly once: into `pending` (kept), `refused` (by the filter) or `dropped` (members failed).
    """

    no: int
    opened_at: float
    first_draw: int
    pins: dict[str, Pin]
    open: dict[int, str]
    """Unsettled draw -> key of the rollout command that plays it."""
    policies: dict[str, PolicyCohort]
    told: dict[int, dict[int, bool]] = field(default_factory=dict)
    """Open draw that settles by the episode -> members that ended, and whether each finished."""
    base: dict[str, Pin] = field(default_factory=dict)
    """Vector that was committed when this cohort became the one that is trained."""
    pending: list[PendingGroup] = field(default_factory=list)
    cut_groups: int = 0
    """Kept groups that are cut; of an ordered run: draws that are cut or were not kept."""
    kept: int = 0
    refused: int = 0
    dropped: int = 0
    tally: Tally = field(default_factory=Tally)
    settled_at: float | None = None
    stepped_at: float | None = None
    idle_since: float | None = None
    """Since when the trainer waits for samples of this cohort."""
    idle_s: float = 0.0
    size: int = 0
    """Groups that belong to it."""
    filled: bool = True
    """Its own groups are proposed; one that is not has only what older cohorts left."""
    late: int = 0
    """Kept groups of which nothing was young enough to be cut."""
    older: dict[int, dict[str, Pin]] = field(default_factory=dict)
    """Draw that came from an earlier cohort -> the vector it plays under. Where engines serve one version at a time:
    every draw that an engine was given -> the vector that this one held."""
    handed_on: int = 0
    """Surplus groups that play on for a later step."""
    cancelled: int = 0
    """Surplus groups that were cancelled."""
    tasks: dict[int, int] = field(default_factory=dict)
    """Draw -> draw whose task it plays again."""
    long_round: bool = False
    """It plays what earlier ones deferred: nothing beyond its groups, and all of them to the end."""


@dataclass(slots=True)
class EvaluationState:
    """Greedy episodes on held-out tasks under one pinned vector."""

    step: int
    pins: dict[str, Pin]
    open: dict[int, str]
    tally: Tally = field(default_factory=Tally)


@dataclass(slots=True)
class Counters:
    """Episodes by fate. proposed = finished + failed + cancelled + those of unsettled groups, at any moment."""

    proposed: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0


@dataclass(slots=True)
class WantedCheckpoint:
    label: Literal["best", "last"]
    step: int
    pins: dict[str, Pin]


@dataclass(slots=True)
class RunState:
    schema: int = STATE_SCHEMA_VERSION
    status: RunStatus = RunStatus.DRAFT
    reason: RunReason = RunReason.NONE
    reason_text: str = ""
    stop_reason: RunReason = RunReason.NONE
    stop_text: str = ""
    epoch: int = 1
    step: int = 0
    """Cohorts whose every policy has stepped."""
    now: float = 0.0
    next_command: int = 1
    next_draw: int = 0
    next_evaluation_draw: int = 0
    next_cohort: int = 0
    closed_at: float | None = None
    """When the last cohort was closed: cohorts that overlap share the time of a step."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Cause -> rows that left training before a micro-batch was cut; they are recorded."""
    surplus: dict[int, int] = field(default_factory=dict)
    """Draw that was cancelled -> its cohort; it may have settled before that reached its worker."""
    held: list[int] = field(default_factory=list)
    """Rollout commands whose episodes were told to stand still."""
    again: list[int] = field(default_factory=list)
    """Draws whose tasks the next cohort plays again, since their rows grew too old."""
    deferred: list[int] = field(default_factory=list)
    """Draws that were surplus and whose tasks wait until they make a whole step, the longest waiting first."""
    first_cohort_at: float | None = None
    replacements: int = 0
    """Leases replaced since the last finished step."""
    empty_cohorts: int = 0
    """Cohorts in a row of which no group was left."""
    leases: dict[int, LeaseState] = field(default_factory=dict)
    ended: list[int] = field(default_factory=list)
    """The last leases whose end was told: a grant that comes later than the end of its lease brings nothing."""
    policies: dict[str, PolicyState] = field(default_factory=dict)
    outstanding: InFlightCommands = field(default_factory=InFlightCommands)
    failures: dict[str, Failure] = field(default_factory=dict)
    cohorts: list[Cohort] = field(default_factory=list)
    """Oldest first. Only the first is cut, accumulated and stepped; the others play."""
    evaluation: EvaluationState | None = None
    checkpoints: dict[str, WantedCheckpoint] = field(default_factory=dict)
    train_episodes: Counters = field(default_factory=Counters)
    eval_episodes: Counters = field(default_factory=Counters)
    samples_trained: int = 0
    samples_recorded: int = 0
    """Rows of frozen seats, refused or dropped groups: in the store, never trained."""
    tokens_generated: int = 0
    tokens: TokenCounts = field(default_factory=TokenCounts)
    history: History = field(default_factory=History)
    attempt: int = 0
    """Number of the current or last attempt."""
    attempt_open: bool = False
    requested_verb: RequestedVerb | None = None
    demand: DemandState = field(default_factory=DemandState)
    pause: PauseState = field(default_factory=PauseState)
    hand: Literal["engines", "trainers"] = "trainers"
    """Who is to have the devices that engines and trainers share. Trainers first: they make version 0."""
    turned_at: float = 0.0
    """Since when."""
    packed_at: float = 0.0
    """When engines were looked at last to be emptied."""
    packed_step: int = 0
    """Train steps there were then."""
    look_at: float | None = None
    """When policies that have nothing to do may have to make room for others."""
    stepping: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Rows and tokens of the steps that may have been committed while the run ended, by policy."""
    rollout_pool: str = ""
    training_pool: str = ""
    """Pools that somebody chose after the run was made; empty: those of the specification."""

    @property
    def cohort(self) -> Cohort | None:
        """Return the cohort that is trained, None between cohorts."""
        return self.cohorts[0] if self.cohorts else None

    def of_use(self, use: DeviceUse) -> list[LeaseState]:
        """List the leases of a use that are not on their way out."""
        return [lease for lease in self.leases.values() if lease.use is use and not lease.releasing]

    def stands_by(self, lease: LeaseState) -> bool:
        """Tell whether a lease only waits to take over from one that still works."""
        former = self.leases.get(lease.replaces)
        return former is not None and not former.releasing

    def at_work(self, use: DeviceUse) -> list[LeaseState]:
        """List the leases of a use that the run counts on now: those that stand by are not among them."""
        held = self.of_use(use)
        return [lease for lease in held if not (lease.replaces and self.stands_by(lease))]

    def trainers(self) -> list[LeaseState]:
        """List the leases of the trainers whose child answers."""
        answering = (x for x in self.leases.values() if x.use is DeviceUse.TRAINER and x.incarnation)
        return [lease for lease in answering if not lease.releasing and not self.stands_by(lease)]

    def vector(self) -> dict[str, Pin]:
        """Return the committed version vector. Only after every policy has version 0."""
        return {name: policy.pin for name, policy in self.policies.items()}


def playing(parts: Cohort | EvaluationState, members: int) -> int:
    """Count the episodes of open draws that have not ended, where a draw has so many members."""
    ended = sum(map(len, parts.told.values())) if isinstance(parts, Cohort) else 0
    return len(parts.open) * members - ended
