"""Devices of a run: their leases, the child on each, and what engines and trainers have on them.

Invariants: a lease stays until its end was reported; what a child held is forgotten with the child. Each part of a
lease has one owner among the core's modules, named at its class.
"""

from dataclasses import dataclass, field
from typing import Literal

from flexmarl.contracts.events import DeviceUse
from flexmarl.orchestrator.state.demand import DemandState
from flexmarl.orchestrator.state.scaling import ScalingState

Side = Literal["engines", "trainers"]
"""Who is to have the shared devices."""
Membership = Literal["member", "joining", "leaving"]
"""What a fleet that grows and shrinks counts on: its members. An engine that joins is none until it holds the weights,
one that leaves is none any more; neither is waited for."""


@dataclass(slots=True)
class ChildLives:
    """Incarnations of a lease's child. Owner: `run.recovery`. An empty incarnation: no child answers now."""

    incarnation: str = ""
    alive: list[str] = field(default_factory=list)
    """Incarnations that were announced and not lost; events about them may overtake each other."""
    gone: list[str] = field(default_factory=list)
    """The last incarnations that were lost."""
    losses: int = 0


@dataclass(slots=True)
class EngineWeights:
    """Weights on an engine. Owner: `serving`."""

    held: dict[str, int] = field(default_factory=dict)
    """Policy -> version it wholly holds, the last one loaded."""
    previous: dict[str, int] = field(default_factory=dict)
    """Policy -> version it still holds besides, the one loaded before."""
    assigned: list[str] = field(default_factory=list)
    """Policies that have the places of an engine that cannot hold all of them."""
    leaving: list[str] = field(default_factory=list)
    """Policies whose removal was requested; each has its place until it is removed."""
    removals: dict[str, int] = field(default_factory=dict)
    """Policy -> last command to remove it; replies to loads issued before that are ignored."""


@dataclass(slots=True)
class AssignedDraws:
    """Draws of an engine that serves one version at a time. Owner: `rollout.one_version`."""

    draws: list[int] = field(default_factory=list)
    """Draws that it was given and that have not settled."""
    given_at: float = 0.0
    """When it was given the last of them."""
    continued_by: int = 0
    """Lease of the engine that took its draws over when it was emptied; 0: it was not emptied."""


@dataclass(slots=True)
class DeviceSharing:
    """State of an engine or trainer that shares its device with the other. Owner: `allocation.shared_devices`."""

    engine_lease: int = 0
    """Trainer: the engine's lease whose device it shares; 0: it has its device for itself."""
    asleep: bool = False
    """Engine: it released its memory and takes nothing until it is woken. Trainer beside one: it holds nothing."""
    last_change: int = 0
    """Engine: last command by which it fell asleep or woke; replies to loads issued before that are ignored."""
    awaits_successor: bool = False
    """The child died while it could take something: its successor, of which nothing was heard, may have taken it."""


@dataclass(slots=True)
class LeaseState:
    """A device of the run and the child on it; of an engine of several devices, its first."""

    lease_id: int
    device_id: str
    use: DeviceUse
    child: ChildLives = field(default_factory=ChildLives)
    releasing: bool = False
    membership: Membership = "member"
    recalled: str = ""
    """Why its device is wanted back; empty while nobody wants it."""
    replaces: int = 0
    """Recalled lease that it will replace; it takes over between two cohorts."""
    weights: EngineWeights = field(default_factory=EngineWeights)
    assigned: AssignedDraws = field(default_factory=AssignedDraws)
    sharing: DeviceSharing = field(default_factory=DeviceSharing)


@dataclass(slots=True)
class ChosenPools:
    """Pools that somebody chose after the run was made; empty: those of the specification."""

    rollout: str = ""
    training: str = ""


@dataclass(slots=True)
class SharingTurn:
    """Which side has the devices that engines and trainers share. Trainers first: they make version 0."""

    side: Side = "trainers"
    since: float = 0.0
    window_s: float | None = None
    """Measured: how long engines have the devices in this step; None: no step has ended yet."""
    ends_at: float | None = None
    """When they give them up although something plays, if trainers have work then."""
    beside: int = -1
    """Cohort that still plays on the other engines while trainers have the devices; -1: none does."""
    waited_s: float = 0.0
    """How long trainers had waited for samples of that cohort when they got the devices."""


@dataclass(slots=True)
class LastRepacking:
    """When engines were last examined for emptying, and the train steps there were then."""

    at: float = 0.0
    step: int = 0


@dataclass(slots=True)
class FleetSize:
    """Fewest and most members of an elastic fleet since the last finished step. Owner: `run.elasticity`.

    Negative: none has joined yet."""

    fewest: int = -1
    most: int = 0


@dataclass(slots=True)
class FleetState:
    """Leases of a run by number, and what is decided about its devices as a whole."""

    leases: dict[int, LeaseState] = field(default_factory=dict)
    ended: list[int] = field(default_factory=list)
    """The last leases whose end was reported: a grant that arrives after the end of its lease is ignored."""
    replacements: int = 0
    """Leases replaced since the last finished step."""
    pools: ChosenPools = field(default_factory=ChosenPools)
    shared: SharingTurn = field(default_factory=SharingTurn)
    repacked: LastRepacking = field(default_factory=LastRepacking)
    review_at: float | None = None
    """When policies that have nothing to do may have to make room for others."""
    demand: DemandState = field(default_factory=DemandState)
    size: FleetSize = field(default_factory=FleetSize)
    scaling: ScalingState = field(default_factory=ScalingState)

    def of_use(self, use: DeviceUse) -> list[LeaseState]:
        """List the leases of a use that are not being released and are not leaving."""
        held = (lease for lease in self.leases.values() if lease.use is use and not lease.releasing)
        return [lease for lease in held if lease.membership != "leaving"]

    def stands_by(self, lease: LeaseState) -> bool:
        """Tell whether a lease only waits to take over from one that still works."""
        former = self.leases.get(lease.replaces)
        return former is not None and not former.releasing

    def at_work(self, use: DeviceUse) -> list[LeaseState]:
        """List the leases of a use that the run counts on now: those that stand by or join are not among them."""
        held = (lease for lease in self.of_use(use) if lease.membership == "member")
        return [lease for lease in held if not (lease.replaces and self.stands_by(lease))]

    def joining(self) -> list[LeaseState]:
        """List the leases of the engines that join."""
        return [lease for lease in self.of_use(DeviceUse.ENGINE) if lease.membership == "joining"]

    def trainers(self) -> list[LeaseState]:
        """List the leases of the trainers whose child answers."""
        answering = (x for x in self.leases.values() if x.use is DeviceUse.TRAINER and x.child.incarnation)
        return [lease for lease in answering if not lease.releasing and not self.stands_by(lease)]
