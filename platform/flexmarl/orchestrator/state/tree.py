"""The whole state of a run as one tree of plain values.

Invariants: nothing outside this tree survives a call; it goes to JSON and back without loss (`snapshots`), dict order
included, so a core restored from a snapshot continues with the same commands. Each branch has one owner among the
core's modules. Times are seconds of the driver's clock.
"""

from dataclasses import dataclass, field
from typing import Literal

from flexmarl.algorithms.prefix_predictor import PrefixBelief
from flexmarl.algorithms.replay import ArchivedGroup
from flexmarl.algorithms.rescue import StoredSuccess
from flexmarl.algorithms.task_belief import TaskBelief
from flexmarl.contracts.status import RunReason
from flexmarl.orchestrator.state.cohort import Cohort, EvaluationState, Pin
from flexmarl.orchestrator.state.fleet import FleetState
from flexmarl.orchestrator.state.history import History
from flexmarl.orchestrator.state.in_flight import InFlightCommands
from flexmarl.orchestrator.state.lifecycle import Lifecycle
from flexmarl.orchestrator.state.policy import PolicyState
from flexmarl.orchestrator.state.tokens import TokenCounts

STATE_SCHEMA_VERSION = 1


@dataclass(slots=True)
class Failure:
    """How often a piece of work failed in a row for one cause, when it may be tried again, and what it waits for."""

    count: int
    until: float
    waits_for: str = ""
    waits_reason: RunReason = RunReason.WAITING_FOR_SPACE
    """The run's reason while it waits."""


@dataclass(slots=True)
class Counters:
    """Episodes by fate. proposed = finished + failed + cancelled + those of unsettled groups, at any moment."""

    proposed: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0


@dataclass(slots=True)
class RunTotals:
    """Sums over the whole run."""

    train_episodes: Counters = field(default_factory=Counters)
    eval_episodes: Counters = field(default_factory=Counters)
    samples_trained: int = 0
    samples_recorded: int = 0
    """Rows of frozen seats, refused or dropped groups: in the store, never trained."""
    rows_dropped: dict[str, int] = field(default_factory=dict)
    """Cause -> rows that left training before a micro-batch was cut; they are recorded."""
    rows_replayed: int = 0
    """Rows on which a further step was taken: no part of those that are trained, of which each counts once."""
    tokens_generated: int = 0
    tokens: TokenCounts = field(default_factory=TokenCounts)


@dataclass(slots=True)
class NextNumbers:
    """The next free number of each series; a number is used once."""

    command: int = 1
    draw: int = 0
    evaluation_draw: int = 0
    cohort: int = 0


@dataclass(slots=True)
class DrawBacklog:
    """Draws between two cohorts. Owner: `cohorts.redundancy` and `cohorts.resampling`."""

    cancelled: dict[int, int] = field(default_factory=dict)
    """Surplus draw that was cancelled -> its cohort; it may have settled before the command reached its worker."""
    repeated: list[int] = field(default_factory=list)
    """Draws whose tasks the next cohort plays again, since their rows grew too old."""
    deferred: list[int] = field(default_factory=list)
    """Draws that were surplus and whose tasks wait until they make a whole step, the longest waiting first."""
    held_commands: list[int] = field(default_factory=list)
    """Rollout commands whose episodes are paused. Owner: `allocation.paused_surplus`."""


@dataclass(slots=True)
class TaskLengths:
    """How long the episodes of tasks were. Owner: `cohorts.dispatch`."""

    belief: TaskBelief = field(default_factory=TaskBelief)
    """Moving means of their tokens."""
    expected: dict[int, float] = field(default_factory=dict)
    """Draw that is played -> tokens that were expected of each of its episodes when it was sent."""
    compared: list[tuple[float, float]] = field(default_factory=list)
    """Of groups that settled since the last step: tokens that were expected, and those that came."""


@dataclass(slots=True)
class TurnLimits:
    """How many turns episodes may have. Owner: `cohorts.turn_limits`."""

    longest: dict[int, int] = field(default_factory=dict)
    """Task that was solved -> turns of its longest success."""
    of_draw: dict[int, int] = field(default_factory=dict)
    """Draw that is played -> turns after which its episodes end, where these are limited."""


@dataclass(slots=True)
class TaskChoice:
    """Tasks that a sampler chose, and what it believes of all. Owner: `cohorts.task_choice`."""

    of_draw: dict[int, int] = field(default_factory=dict)
    """Draw that is played, or may be again -> number of its task in the set; empty where draws are tasks."""
    belief: TaskBelief = field(default_factory=TaskBelief)
    members: dict[int, int] = field(default_factory=dict)
    """Draw that is played -> members of its group, where these are not those of the specification."""
    rates: TaskBelief = field(default_factory=TaskBelief)
    """What is believed of tasks by whoever counts members. Owner: `cohorts.member_counts`."""
    successes: dict[int, StoredSuccess] = field(default_factory=dict)
    """Task -> newest success that may stand in a later group of it. Owner: `cohorts.rescue`."""
    lengths: TaskLengths = field(default_factory=TaskLengths)
    turns: TurnLimits = field(default_factory=TurnLimits)
    prefixes: PrefixBelief = field(default_factory=PrefixBelief)
    """What is known of where members may continue others. Owner: `cohorts.continuations`."""


@dataclass(slots=True)
class PastCohorts:
    """What is remembered of cohorts that are closed. Owner: `cohorts.cohorts`."""

    first_opened_at: float | None = None
    last_closed_at: float | None = None
    """When the last cohort was closed: cohorts that overlap share the time of a step."""
    empty_in_a_row: int = 0
    """Cohorts in a row of which no group was left."""
    base: dict[str, Pin] = field(default_factory=dict)
    """Vector from which the last one was trained. Kept where the next one plays it in every case."""


@dataclass(slots=True)
class WantedCheckpoint:
    label: Literal["best", "last"]
    step: int
    pins: dict[str, Pin]


@dataclass(slots=True)
class RunState:
    """The root: one field for each owner."""

    schema: int = STATE_SCHEMA_VERSION
    now: float = 0.0
    step: int = 0
    """Cohorts whose every policy has stepped."""
    lifecycle: Lifecycle = field(default_factory=Lifecycle)
    numbers: NextNumbers = field(default_factory=NextNumbers)
    fleet: FleetState = field(default_factory=FleetState)
    policies: dict[str, PolicyState] = field(default_factory=dict)
    outstanding: InFlightCommands = field(default_factory=InFlightCommands)
    failures: dict[str, Failure] = field(default_factory=dict)
    cohorts: list[Cohort] = field(default_factory=list)
    """Oldest first. Only the first is cut, accumulated and stepped; the others play."""
    backlog: DrawBacklog = field(default_factory=DrawBacklog)
    past_cohorts: PastCohorts = field(default_factory=PastCohorts)
    choice: TaskChoice = field(default_factory=TaskChoice)
    archive: dict[str, list[ArchivedGroup]] = field(default_factory=dict)
    """Policy -> groups that may be trained again, the first to grow too old in front. Owner: `cohorts.replay`."""
    evaluation: EvaluationState | None = None
    checkpoints: dict[str, WantedCheckpoint] = field(default_factory=dict)
    totals: RunTotals = field(default_factory=RunTotals)
    history: History = field(default_factory=History)

    @property
    def cohort(self) -> Cohort | None:
        """Return the cohort that is trained, None between cohorts."""
        return self.cohorts[0] if self.cohorts else None

    def vector(self) -> dict[str, Pin]:
        """Return the committed version vector. Only after every policy has version 0."""
        return {name: policy.pin for name, policy in self.policies.items()}
