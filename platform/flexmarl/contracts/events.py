"""Facts the orchestrator is told. A closed union: an event of another kind does not parse.

Producers put events into the store's inbox in the same transaction as the rows they speak of, under a producer key
that makes a repetition harmless. Only the driver orders them.
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from flexmarl.contracts.base import Record
from flexmarl.contracts.ids import Digest, Name
from flexmarl.contracts.imported_rows import RowsImported
from flexmarl.contracts.wire import EpisodeOutcome, Origin, TrainStats


class Verb(StrEnum):
    START = "start"
    PAUSE = "pause"
    RESUME = "resume"
    STOP = "stop"
    KILL = "kill"
    RETRY = "retry"


class PauseMode(StrEnum):
    """How a run comes to rest."""

    DRAIN = "drain"
    """The open train step is finished first."""
    FREEZE = "freeze"
    """At once: running episodes are abandoned and played again on resume; what settled and trained is kept."""


class DeviceUse(StrEnum):
    """What a leased device hosts."""

    ENGINE = "engine"
    TRAINER = "trainer"


class RunVerb(Record):
    """A person or script asked for a life-cycle change. Ordered with all other facts."""

    kind: Literal["run_verb"] = "run_verb"
    verb: Verb
    actor: str = ""
    reason: str = ""
    mode: PauseMode = PauseMode.DRAIN
    """Of a pause."""
    hold_s: float | None = None
    """Of a pause: how long the run keeps its devices while it rests; None: until it is resumed."""
    operation: str = ""
    """Id under which the caller follows the verb."""
    cause: str = ""
    """Id of the request that brought it; it is written to every line and command that follows from the verb."""


class GrantedDevice(Record):
    lease_id: int
    device_id: str
    use: DeviceUse
    beside: int = 0
    """Of a trainer: the engine's lease whose device it shares; 0: it has a device of its own."""
    further: tuple[str, ...] = ()
    """Of an engine of several devices: the devices beside its first, by rank."""


class DevicesGranted(Record):
    """The pool arbiter bound a gang of devices to the run, all of it or none."""

    kind: Literal["devices_granted"] = "devices_granted"
    leases: tuple[GrantedDevice, ...]
    command_no: int
    """The request it answers."""


class ChildReady(Record):
    """An engine or trainer child started on its leased device and answers. It holds no policy yet."""

    kind: Literal["child_ready"] = "child_ready"
    lease_id: int
    use: DeviceUse
    incarnation: str


class ChildLost(Record):
    """The child of a lease ended or its lease expired. The lease stays: the node may start a new incarnation."""

    kind: Literal["child_lost"] = "child_lost"
    lease_id: int
    incarnation: str = ""
    reason: str = ""
    ready: bool = True
    """False: it ended before it was ready."""


class LeaseEnded(Record):
    """The node proved that nothing of the lease runs any more; its device is free."""

    kind: Literal["lease_ended"] = "lease_ended"
    lease_id: int
    reason: str = ""
    cannot_start: bool = False
    """No child of it can work on that host, however often it is started; the reason says what to do."""


class LeaseRecalled(Record):
    """An administrator wants a lease's device back, or no longer. The run moves off it between two cohorts."""

    kind: Literal["lease_recalled"] = "lease_recalled"
    lease_id: int
    reason: str = ""
    withdrawn: bool = False


class GangRecalled(Record):
    """The pool arbiter wants back all that the run holds: it lacks a part, and others could go on with what it has."""

    kind: Literal["gang_recalled"] = "gang_recalled"
    command_no: int
    """The request for the missing part; void when it was answered or withdrawn meanwhile."""
    reason: str


class SurplusRecalled(Record):
    """The pool arbiter wants the device of an engine above the run's minimum, for a run that waits.

    The engine leaves at once and what it plays goes on elsewhere. Void where the run would fall below its minimum.
    """

    kind: Literal["surplus_recalled"] = "surplus_recalled"
    lease_id: int
    reason: str = ""


class PoolsChanged(Record):
    """A run that holds no device shall ask for them in other pools. Too late once it has been granted any."""

    kind: Literal["pools_changed"] = "pools_changed"
    rollout_pool: str
    training_pool: str
    actor: str = ""


class PolicyBound(Record):
    """The trainer holds a policy at a version, with an empty accumulator of the given epoch."""

    kind: Literal["policy_bound"] = "policy_bound"
    lease_id: int
    incarnation: str
    policy: Name
    version: int
    digest: Digest
    created: bool = False
    """True when this bind made version 0 (initialised, and warmed up where the spec asks)."""
    resumed: bool = False
    """It goes on with the accumulator that it was suspended with."""
    bytes: int = 0
    """Length of the suspended state."""
    seconds: float = 0.0
    """How long the trainer took to hold it."""
    facts: dict[str, float] = {}
    """E.g. `parameters`, `warmup_steps`, `warmup_seconds`."""


class PolicySuspended(Record):
    """A trainer gave a policy up; all of it lies in the state plane for as long as that trainer's process lives."""

    kind: Literal["policy_suspended"] = "policy_suspended"
    lease_id: int
    incarnation: str
    policy: Name
    accumulator: str
    ticket: str
    """Where it lies, for the state plane to read."""
    bytes: int
    seconds: float
    command_no: int


class RankJoined(Record):
    """A trainer is a further rank of a policy's gang, or waits at the leader's rendezvous to become one."""

    kind: Literal["rank_joined"] = "rank_joined"
    lease_id: int
    incarnation: str
    policy: Name
    meeting: int


class GroupSettled(Record):
    """All members of an episode group ended; its rows are in the store, in this event's transaction.

    Where a run settles by the episode, each event tells of the members that ended by then, each member once.
    """

    kind: Literal["group_settled"] = "group_settled"
    draw: int
    origin: Origin
    epoch: int
    command_no: int
    episodes: tuple[EpisodeOutcome, ...]
    started_at: float
    finished_at: float
    versions: dict[Name, int]
    """Policy -> version that the group's command pinned; a policy without one has its cohort's."""
    part: bool = False
    """It tells of some members; the others settle with events of their own."""


class MicroBatchAccumulated(Record):
    """One micro-batch's un-normalised gradient is in the accumulator."""

    kind: Literal["micro_batch_accumulated"] = "micro_batch_accumulated"
    policy: Name
    micro_batch: int
    accumulator: str
    """Accumulator epoch: `<version>:<trainer incarnation>`."""
    stats: TrainStats


class StepCommitted(Record):
    """The optimizer stepped, its rows are `applied` and the new version is committed, in this event's transaction."""

    kind: Literal["step_committed"] = "step_committed"
    policy: Name
    version: int
    parent: int
    digest: Digest
    accumulator: str
    null_step: bool = False
    grad_norm: float = 0.0
    learning_rate: float = 0.0
    seconds: float = 0.0


class WeightsServed(Record):
    """An engine wholly holds a policy version."""

    kind: Literal["weights_served"] = "weights_served"
    lease_id: int
    incarnation: str
    policy: Name
    version: int
    digest: Digest
    keeps: tuple[int, ...] = ()
    """Versions its load was told to keep; empty: the one loaded before."""
    command_no: int
    """The load it answers."""
    seconds: float = 0.0
    """How long the engine took to hold it."""


class PolicyUnloaded(Record):
    """An engine holds nothing of a policy any more; its place there is free."""

    kind: Literal["policy_unloaded"] = "policy_unloaded"
    lease_id: int
    incarnation: str
    policy: Name
    command_no: int
    seconds: float = 0.0
    """How long it took to end what ran."""


class RequestedTurns(Record):
    """Turns of one policy that a rollout worker requested and that have no reply."""

    waiting: int = Field(ge=0)
    """Not sent to an engine yet."""
    in_flight: int = Field(ge=0)
    """Sent to an engine."""


class EngineSlept(Record):
    """An engine holds nothing any more and takes nothing: whoever shares its device may have it."""

    kind: Literal["engine_slept"] = "engine_slept"
    lease_id: int
    incarnation: str
    bytes: int
    """Weights and attention caches that it let go."""
    seconds: float
    command_no: int


class EngineWoke(Record):
    """An engine takes weights and requests again; it holds nothing yet."""

    kind: Literal["engine_woke"] = "engine_woke"
    lease_id: int
    incarnation: str
    seconds: float
    command_no: int


class TrainerVacated(Record):
    """A trainer keeps nothing on its device any more: the engine that shares it may have it."""

    kind: Literal["trainer_vacated"] = "trainer_vacated"
    lease_id: int
    incarnation: str
    command_no: int


class DemandReported(Record):
    """What one rollout worker asks engines for now. At most once a second, and only where engines cannot hold all
    policies or are repacked; the last report of a worker counts, and only for a while."""

    kind: Literal["demand_reported"] = "demand_reported"
    worker: str
    policies: dict[Name, RequestedTurns]
    """Policies of which it asks for nothing are left out."""
    engines: dict[int, int] = {}
    """Lease -> turns that the engine had, by its last reply and what was sent since."""
    queued: dict[int, int] = {}
    """Lease -> those of them that waited there, by its last reply."""
    cache: dict[int, int] = {}
    """Lease -> tokens of prompts and replies of the turns that this worker has there."""


class CheckpointWritten(Record):
    """A consistent cut over all policies lies on disk as Hugging Face folders."""

    kind: Literal["checkpoint_written"] = "checkpoint_written"
    label: Literal["best", "last", "step"]
    step: int
    versions: dict[Name, int]
    path: str = ""
    """Only in old logs: where it lies is its node's business."""
    bytes: int


class CommandFailed(Record):
    """A command ended in failure. The core decides whether to repeat it or to fail the run."""

    kind: Literal["command_failed"] = "command_failed"
    command_no: int
    command_kind: str
    code: str
    message: str
    retryable: bool = False


class RunGivenUp(Record):
    """The driver ends the run: the core raised twice on a fact, its state cannot be rebuilt, or its rows differ.

    It stands in the log where the run ended, so that the log alone still leads to the state and the commands.
    """

    kind: Literal["run_given_up"] = "run_given_up"
    cause: Literal["orchestrator_error", "store_differs"]
    text: str
    fact: str = ""
    """The fact in whose place it stands, as JSON; empty when it stands for none."""


class TimerFired(Record):
    """The deadline the core returned last has come."""

    kind: Literal["timer_fired"] = "timer_fired"


Event = Annotated[
    RunVerb
    | DevicesGranted
    | ChildReady
    | ChildLost
    | LeaseEnded
    | LeaseRecalled
    | GangRecalled
    | SurplusRecalled
    | PoolsChanged
    | PolicyBound
    | PolicySuspended
    | RankJoined
    | GroupSettled
    | RowsImported
    | MicroBatchAccumulated
    | StepCommitted
    | WeightsServed
    | PolicyUnloaded
    | EngineSlept
    | EngineWoke
    | TrainerVacated
    | DemandReported
    | CheckpointWritten
    | CommandFailed
    | RunGivenUp
    | TimerFired,
    Field(discriminator="kind"),
]
event_adapter: TypeAdapter[Event] = TypeAdapter(Event)
