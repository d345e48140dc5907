"""Decisions of the orchestrator, carried out by workers. A closed union with one route per kind.

Every command is idempotent by (run, number). The command table is outbox, truth and fence at once: a command is
`open`, then `taken` under a token and a deadline, then `done`, `failed` or `void`. A broker message or an HTTP push
only says "look at command n".
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal, cast

from pydantic import Field, TypeAdapter

from flexmarl.contracts import events as e
from flexmarl.contracts.base import Record
from flexmarl.contracts.ids import Digest, Name
from flexmarl.contracts.wire import CutSample, MicroBatchRef, Origin, PolicyPin

ENGINE, TRAINER = e.DeviceUse.ENGINE, e.DeviceUse.TRAINER

BROKER_TIMEOUT_S = 1.0
"""Longest wait for the broker in one call: what it carries are hints, and one that is lost is sent again."""


class RequestDevices(Record):
    """Ask the pool arbiter for a gang; the answer is `DevicesGranted`. Carried out by the driver itself."""

    kind: Literal["request_devices"] = "request_devices"
    pool: str
    """Pool of the engines."""
    engines: int
    trainers: int
    engine_devices: int = Field(default=1, exclude_if=lambda count: count == 1)
    """Devices of each of these engines, of one host; an engine gets all of them or none. Not written where it is 1, as
    in the rows of older runs."""
    trainer_pool: str = ""
    """Pool of the trainers; `pool` when empty."""
    beside: int = 0
    """Trainers that share the devices of so many of these engines; they are none of `trainers`."""
    replaces: int = 0
    """Lease that the engine or trainer asked for shall replace; it counts against no quota, since that lease is given
    back."""
    extra: bool = Field(default=False, exclude_if=lambda extra: not extra)
    """An engine above the run's minimum: it is granted while nobody waits for what a run cannot do without. Not written
    where it is none, as in the rows of older runs."""


class HostLease(Record):
    """Start the child of a lease on its device and keep it. Through Dramatiq, queue `device.<device id>`."""

    kind: Literal["host_lease"] = "host_lease"
    lease_id: int
    device_id: str
    use: e.DeviceUse


class ReleaseLease(Record):
    """Stop the child of a lease and free its device. Carried out by the driver: it marks the lease `releasing`."""

    kind: Literal["release_lease"] = "release_lease"
    lease_id: int


KeptFor = Literal["last", "best", "every"]
"""Which rule keeps a checkpoint."""

Follow = Literal["continue", "resume", "restart_turn"]
"""How newer weights take over a running reply: keeping its attention cache, computing it anew, or from the start."""


class GroupOrder(Record):
    draw: int
    task_seed: int
    members: int
    enough: int = 0
    """Finished members at which the others are cancelled; 0: all play to their end."""
    spares: int = 0
    """Environments beyond its members: once no more members than these play, each is played a second time beside."""
    turns: int = Field(default=0, exclude_if=lambda turns: not turns)
    """Turns after which its episodes end, of all roles together; 0: as many as the environment lets them have."""


class PlayGroups(Record):
    """Play episode groups under one pinned version vector. Through Dramatiq, queue `rollout.<pool>`."""

    kind: Literal["play_groups"] = "play_groups"
    pool: str
    epoch: int
    origin: Origin
    groups: tuple[GroupOrder, ...]
    pins: dict[Name, PolicyPin]
    """Policy name -> exact weights. An engine that does not wholly hold them refuses."""
    sampling_seed: int
    greedy: bool = False
    follows: dict[Name, Follow] = {}
    """Policies whose pinned version is the oldest allowed: an update takes running replies over in this way."""
    by_episode: bool = False
    """Each episode settles as soon as it ends, instead of the group as a whole."""
    cohort: int = -1
    """Train step the groups are played for; evaluation: step after which they are played."""
    engine: int = 0
    """Lease of the engine that answers their turns, as long as it holds the weights; 0: any that does."""
    pauses: bool = False
    """It may be held: whoever plays it looks often whether it is."""
    predictor: tuple[float, ...] = Field(default=(), exclude_if=lambda weights: not weights)
    """Where members continue others: weights of `flexmarl.algorithms.prefix_predictor`, or thresholds of
    `token_branching`. Empty: nothing is known yet."""


class HoldGroups(Record):
    """Let what rollout commands play stand still, or go on. Rows, not work: the driver writes it in the decision's
    transaction and tells rollout workers to look, and whoever plays a command sees it there.

    What stands still asks nobody for a turn; replies that engines are at are taken back with the tokens they have. A
    command that nobody has taken yet begins so. The time is none of its episodes'.
    """

    kind: Literal["hold_groups"] = "hold_groups"
    commands: tuple[int, ...]
    hold: bool
    """False: they go on."""


class BindPolicy(Record):
    """Make the trainer hold a policy: create version 0, or restore a committed version after a loss."""

    kind: Literal["bind_policy"] = "bind_policy"
    lease_id: int
    policy: Name
    version: int | None = None
    """None: create version 0 from the policy's model source."""
    digest: Digest | None = None
    resume: str = ""
    """Where it was suspended, as `PolicySuspended` told: it goes on with the gradients it had gathered."""
    accumulator: str = ""
    """Of a policy that was suspended: the epoch of its accumulator, which goes on under the epoch of this trainer."""
    gang: tuple[int, ...] = ()
    """Trainer leases that hold it together, in the order of their ranks, this one first; empty: it alone. The answer
    comes when every rank has joined, or is the refusal `gang_incomplete`."""
    meeting: int = 0
    """Which forming of the policy's gang this is: the same number in the commands of all its ranks, a higher one each
    time. A rank that comes late to an older one finds nobody there."""


class SuspendPolicy(Record):
    """Make a trainer give a policy up and keep all of it, its accumulator and the set of micro-batches in it included,
    where another trainer can take it from."""

    kind: Literal["suspend_policy"] = "suspend_policy"
    lease_id: int
    policy: Name
    accumulator: str
    reach: Literal["process", "host", "cluster"] = "cluster"
    """Where the run has trainers that may take it up: only the one that suspends it, others of its host, anywhere."""


class JoinGang(Record):
    """Make a trainer a further rank of a policy's gang; what it holds of the policy from before is let go.

    Its node tells it where the leader, the gang's first lease, has its rendezvous. The fact `RankJoined` says that it
    waits there; `PolicyBound` of the leader, that all are in. A gang lasts until the policy is bound anew or a rank is
    lost, which the leader tells by refusing what it is asked for next (`rank_lost`).
    """

    kind: Literal["join_gang"] = "join_gang"
    lease_id: int
    policy: Name
    gang: tuple[int, ...]
    meeting: int = 0


class CutMicroBatch(Record):
    """Fix a micro-batch's membership. A row, not work: the driver writes it in the decision's transaction."""

    kind: Literal["cut_micro_batch"] = "cut_micro_batch"
    ref: MicroBatchRef
    cohort: int
    samples: tuple[CutSample, ...]
    replayed: Literal[True] | None = None
    """Its rows come from the archive: an earlier step was taken on each of them."""


class Accumulate(Record):
    """Add a micro-batch's un-normalised gradient to the accumulator. Refused in another epoch, or when it is in."""

    kind: Literal["accumulate"] = "accumulate"
    lease_id: int
    policy: Name
    micro_batch: int
    accumulator: str
    entropy_coef: float


class OptimizerStep(Record):
    """Close Z, clip, step and commit the next version. Refused unless the accumulator holds exactly these ids."""

    kind: Literal["optimizer_step"] = "optimizer_step"
    lease_id: int
    policy: Name
    accumulator: str
    micro_batches: tuple[int, ...]
    next_version: int
    step: int
    learning_rate: float


class LoadWeights(Record):
    """Make an engine hold a policy version, pulled by digest."""

    kind: Literal["load_weights"] = "load_weights"
    lease_id: int
    policy: Name
    version: int
    digest: Digest
    keeps: tuple[int, ...] = ()
    """Versions it goes on serving besides; empty: the one it loaded before."""


class UnloadPolicy(Record):
    """Make an engine serve a policy no more: it takes no new request, ends those that run, and forgets the weights.

    The engine registry says so before the engine is asked. What waits there and has not begun is handed back.
    """

    kind: Literal["unload_policy"] = "unload_policy"
    lease_id: int
    policy: Name
    hand_over: bool = False
    """Another engine holds the policy: what runs is handed back too, with the tokens it has, and goes on there."""
    to: int = 0
    """With `hand_over`: lease of the engine where it is to go on, as long as that holds the weights; 0: any."""


class SleepEngine(Record):
    """Make an engine give its memory up, since a trainer that shares its device needs it.

    The engine registry names it no more before it is asked. It takes no new request, makes those that run to their end,
    and lets every weight and attention cache go; its process stays.
    """

    kind: Literal["sleep_engine"] = "sleep_engine"
    lease_id: int


class WakeEngine(Record):
    """Let an engine that sleeps have its device again. It holds nothing: what it is to serve is loaded next."""

    kind: Literal["wake_engine"] = "wake_engine"
    lease_id: int


class VacateTrainer(Record):
    """Make a trainer keep nothing on its device, since an engine that shares it is to wake.

    What it holds was suspended before; what it was given and nobody counts on any more goes too, and so does the memory
    that it keeps for policies to come. It binds nothing that was asked for before.
    """

    kind: Literal["vacate_trainer"] = "vacate_trainer"
    lease_id: int


class KeptCheckpoint(Record):
    step: int
    why: tuple[KeptFor, ...]
    score: tuple[float, float] | None = None
    """Solved share and team score of its evaluation; None while it has none."""


class KeepCheckpoints(Record):
    """Say which checkpoints the rules keep. Rows, not work: the driver writes it in the decision's transaction; what
    neither rules nor people keep is removed by its node."""

    kind: Literal["keep_checkpoints"] = "keep_checkpoints"
    newest: int
    """Step of the newest checkpoint that was looked at: a later one is not spoken of."""
    kept: tuple[KeptCheckpoint, ...]
    """Every other one is let go."""


class WriteCheckpoint(Record):
    """Export all policies at one version vector as Hugging Face folders."""

    kind: Literal["write_checkpoint"] = "write_checkpoint"
    lease_id: int
    label: Literal["best", "last", "step"]
    step: int
    pins: dict[Name, PolicyPin]


Command = Annotated[
    RequestDevices
    | HostLease
    | ReleaseLease
    | PlayGroups
    | HoldGroups
    | BindPolicy
    | SuspendPolicy
    | JoinGang
    | CutMicroBatch
    | Accumulate
    | OptimizerStep
    | LoadWeights
    | UnloadPolicy
    | SleepEngine
    | WakeEngine
    | VacateTrainer
    | WriteCheckpoint
    | KeepCheckpoints,
    Field(discriminator="kind"),
]
command_adapter: TypeAdapter[Command] = TypeAdapter(Command)


class Route(StrEnum):
    """Who carries a command out."""

    DRIVER = "driver"
    """The driver itself, in the transaction of the decision."""
    BROKER = "broker"
    """A Dramatiq actor; the message carries only (run, number)."""
    NODE = "node"
    """A running child, through the HTTP endpoint of its lease's node. The row ends in the transaction that puts the
    fact in the inbox."""


@dataclass(frozen=True, slots=True)
class CommandKind:
    """What holds of all commands of a kind: routes, words, checks and models that treat kinds alike are made of it."""

    command: type[Record]
    route: Route
    word: str
    """What it does, as pages name it."""
    phase: str = ""
    """The time until it is answered, as advice names it; empty: no phase of a step."""
    answer: type[Record] | None = None
    """Fact that answers it; None: none does, or several."""
    child: e.DeviceUse | None = None
    """With the route NODE: the child that carries it out."""

    @property
    def kind(self) -> str:
        """The discriminator of the command."""
        return str(self.command.model_fields["kind"].default)

    @property
    def answered_by_number(self) -> bool:
        """Whether the fact names the number of its command, so that it needs no other key."""
        return self.answer is not None and "command_no" in self.answer.model_fields

    def answered(self, command: Record, **said: object) -> e.Event:
        """Make the fact that answers a command, of what is said of its end and of what the command says itself.

        Raises ValidationError when the fact has a field of which neither speaks.
        """
        assert self.answer is not None, f"no single fact answers {self.kind}"
        fields = self.answer.model_fields.keys() - {"kind"}
        known = {name: value for name, value in command if name in fields}
        return cast("e.Event", self.answer(**known | {name: value for name, value in said.items() if name in fields}))


COMMAND_KINDS: dict[str, CommandKind] = {
    about.kind: about
    for about in (
        CommandKind(RequestDevices, Route.DRIVER, "Request devices", answer=e.DevicesGranted),
        CommandKind(ReleaseLease, Route.DRIVER, "Release a device"),
        CommandKind(CutMicroBatch, Route.DRIVER, "Cut a micro-batch"),
        CommandKind(KeepCheckpoints, Route.DRIVER, "Apply checkpoint retention"),
        CommandKind(HoldGroups, Route.DRIVER, "Pause or resume surplus"),
        CommandKind(HostLease, Route.BROKER, "Start a child"),
        CommandKind(PlayGroups, Route.BROKER, "Play groups", "Rollout"),
        CommandKind(BindPolicy, Route.NODE, "Bind a policy", "Binding a trainer", e.PolicyBound, TRAINER),
        CommandKind(SuspendPolicy, Route.NODE, "Suspend a policy", "Suspending a policy", e.PolicySuspended, TRAINER),
        CommandKind(JoinGang, Route.NODE, "Join a policy's gang", "Forming a gang", e.RankJoined, TRAINER),
        CommandKind(Accumulate, Route.NODE, "Accumulate", "Training", e.MicroBatchAccumulated, TRAINER),
        CommandKind(OptimizerStep, Route.NODE, "Step", "The optimizer step", e.StepCommitted, TRAINER),
        CommandKind(LoadWeights, Route.NODE, "Serve weights", "Loading weights", e.WeightsServed, ENGINE),
        CommandKind(UnloadPolicy, Route.NODE, "Stop serving a policy", "Unloading a policy", e.PolicyUnloaded, ENGINE),
        CommandKind(
            SleepEngine, Route.NODE, "Put an engine to sleep", "Putting an engine to sleep", e.EngineSlept, ENGINE
        ),
        CommandKind(WakeEngine, Route.NODE, "Wake an engine", "Waking an engine", e.EngineWoke, ENGINE),
        CommandKind(VacateTrainer, Route.NODE, "Empty a trainer", "Emptying a trainer", e.TrainerVacated, TRAINER),
        CommandKind(
            WriteCheckpoint, Route.NODE, "Write a checkpoint", "Writing a checkpoint", e.CheckpointWritten, TRAINER
        ),
    )
}
"""Kind -> what holds of its commands."""
