"""What runs ask of pools, what pools have, and what is granted."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from flexmarl.contracts.events import DeviceUse

DEFAULT_PRIORITY = 50


@dataclass(frozen=True, slots=True)
class DeviceDemand:
    """A run's open request."""

    run_id: int
    command_no: int
    pool: str
    engines: int
    trainer_pool: str
    trainers: int
    project: str = "default"
    priority: int = DEFAULT_PRIORITY
    since: float = 0.0
    running: bool = False
    """The run is at work: no lost binding stops it, and it comes before those that have not begun."""
    replaces: bool = False
    """The device stands in for one that is given back: the seat is counted already."""
    holds: Mapping[str, int] | None = None
    """Of a run that lost a part of its gang: pool -> devices in service that it still holds. None: it holds none."""
    stalled: bool = False
    """What it holds is of no use without the rest: no engine is left, or no trainer."""
    engine: str = ""
    """Rollout engine that its nodes must be able to start; empty: any will do."""
    engine_devices: int = 1
    """Devices of each engine, of one node and kind."""
    memory: Mapping[DeviceUse, int] = field(default_factory=dict)
    """Bytes that one device of a use needs; none: not known."""
    extra: bool = False
    """An engine above the minimum of a run at work: granted after all others, and nobody waits for it."""

    @property
    def lacks(self) -> bool:
        """Tell whether the run holds a part of its gang and asks for the rest; its quota counts the whole."""
        return self.holds is not None and not (self.replaces or self.extra)


@dataclass(frozen=True, slots=True)
class FreeDevice:
    """A device that nobody holds."""

    device_id: str
    node: str
    pool: str
    engines: Set[str] | None = None
    """Rollout engines that its node can start; None: not known, so any."""
    room: str = ""
    """Whose memory it has: its own, or its host's, which all CPU devices of the host share."""
    kind: str = ""
    """cpu | cuda; an engine has devices of one kind."""
    whole: bool = True
    """False: a share of a GPU, which cannot be one of an engine's several devices."""

    def hosts(self, engine: str) -> bool:
        """Tell whether an engine may be placed here."""
        return not engine or self.engines is None or engine in self.engines


@dataclass(frozen=True, slots=True)
class SurplusEngine:
    """An engine that its run can do without: one above its minimum."""

    run_id: int
    lease_id: int
    devices: tuple[FreeDevice, ...]
    """All devices of the engine, as they would be if nobody held them."""
    project: str = "default"
    priority: int = DEFAULT_PRIORITY
    memory: int = 0
    """Bytes that are leased with each device."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What administrators decided, and what is held. A pool that `bindings` does not name is open to all."""

    capacity: Mapping[str, int]
    """Pool -> devices that could serve, leased ones included."""
    bindings: Mapping[str, Set[str]] = field(default_factory=dict)
    quotas: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """(project, pool) -> devices held at once at most."""
    held: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """(project, pool) -> seats taken now: gangs whole, also where a part is lost or on the move."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Project -> its part beside others of the same priority; 1 when absent."""
    now: float = 0.0
    """In the clock of `DeviceDemand.since`."""
    memory: Mapping[str, int] = field(default_factory=dict)
    """Room -> bytes that nobody has leased; one that is not named has no end that is known."""
    hosts: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Pool -> how many whole devices that could serve each host has of it; one that is not named is not known."""


@dataclass(frozen=True, slots=True)
class DevicePlacement:
    device_id: str
    use: DeviceUse
    memory: int = 0
    """Bytes that are leased with it."""
    rank: int = 0
    """Of an engine of several devices: its place among them. They follow each other, the first is that of rank 0."""


@dataclass(frozen=True, slots=True)
class Grant:
    run_id: int
    command_no: int
    placements: tuple[DevicePlacement, ...]


def wanted_of(demand: DeviceDemand) -> dict[str, int]:
    """Count the devices a demand wants, by pool."""
    wanted: dict[str, int] = {}
    engines = demand.engines * demand.engine_devices
    for pool, count in ((demand.pool, engines), (demand.trainer_pool or demand.pool, demand.trainers)):
        if count:
            wanted[pool] = wanted.get(pool, 0) + count
    return wanted
