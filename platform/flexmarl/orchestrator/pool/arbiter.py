"""Devices between runs: demands in, grants and reasons out. Pure; the driver carries a grant out in one transaction.

Invariants: a gang gets all its devices or none, so no run that waits for its first devices holds any; no grant takes a
project above a quota; equal inputs give equal answers. Nobody overtakes an earlier demand on a pool they share, unless
that demand can never be met or is held by its own project's quota; then only its own project may not overtake it.

A quota counts gangs whole, from the grant of the first device to the end of the last: what a run has lost of its gang
and a device that moves are its seats as before. So a run that lacks a part never waits for its own project's quota.

The order: first runs that hold a part of their devices and lack the rest, since nobody can count on what they hold
before they have it; then runs that were at work and lost everything; then whoever has waited for `PATIENCE_S`, oldest
first, so that nobody starves; then priority; within one priority the project with the smallest share of what its
demand names, each share over its weight; then age. A project's share is the largest part that it has of any of these
pools, grants of the same round counted. `recalls` says what happens when such runs wait for each other.

Devices of a gang lie on as few nodes as possible, and engines on nodes that can start them. Every demand that gets
nothing has its place per pool and the one requirement that is not met, in numbers (`wording` writes it).
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf

from flexmarl.contracts.events import DeviceUse

DEFAULT_PRIORITY = 50
PATIENCE_S = 4 * 3600.0
"""A demand that has waited so long is served before all younger ones, whatever their priority and share."""


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
    memory: Mapping[DeviceUse, int] = field(default_factory=dict)
    """Bytes that one device of a use needs; none: not known."""

    @property
    def lacks(self) -> bool:
        """Tell whether the run holds a part of its gang and asks for the rest; its quota counts the whole."""
        return self.holds is not None and not self.replaces


@dataclass(frozen=True, slots=True)
class FreeDevice:
    device_id: str
    node: str
    pool: str
    engines: Set[str] | None = None
    """Rollout engines that its node can start; None: not known, so any."""
    room: str = ""
    """Whose memory it has: its own, or its host's, which all CPU devices of the host share."""

    def hosts(self, engine: str) -> bool:
        """Tell whether an engine may be placed here."""
        return not engine or self.engines is None or engine in self.engines


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


@dataclass(frozen=True, slots=True)
class DevicePlacement:
    device_id: str
    use: DeviceUse
    memory: int = 0
    """Bytes that are leased with it."""


@dataclass(frozen=True, slots=True)
class Grant:
    run_id: int
    command_no: int
    placements: tuple[DevicePlacement, ...]


class Unmet(StrEnum):
    """Why a demand waits."""

    POOL_CLOSED = "pool_closed"
    """The pool is bound to other projects."""
    POOL_TOO_SMALL = "pool_too_small"
    QUOTA_TOO_SMALL = "quota_too_small"
    """More is wanted at once than the project may ever hold."""
    QUOTA_REACHED = "quota_reached"
    BEHIND = "behind"
    NOT_FREE = "not_free"
    MEMORY_LEASED = "memory_leased"
    """Devices are free, and what others leased of their memory leaves too little."""


NEVER = frozenset({Unmet.POOL_CLOSED, Unmet.POOL_TOO_SMALL, Unmet.QUOTA_TOO_SMALL})
"""Not to be met by waiting alone: somebody must add a node or change a rule."""
_BLOCKS = frozenset({Unmet.BEHIND, Unmet.NOT_FREE, Unmet.MEMORY_LEASED})


class PrecedenceReason(StrEnum):
    """Why another demand is served first."""

    PART = "part"
    """It holds a part of its devices."""
    RUNNING = "running"
    OVERDUE = "overdue"
    PRIORITY = "priority"
    SHARE = "share"
    LONGER = "longer"


@dataclass(frozen=True, slots=True)
class Requirement:
    """What is not met, in numbers. Zero where a number says nothing for the code."""

    code: Unmet
    pool: str
    project: str = ""
    wanted: int = 0
    """Devices; bytes of a device (memory_leased)."""
    there: int = 0
    """Devices free (not_free), healthy (pool_too_small) or held by the project (quota_reached); bytes that the free
    device with most of them has left (memory_leased)."""
    limit: int = 0
    """Devices of the pool (not_free) or of the quota."""
    behind_run: int = 0
    behind_why: PrecedenceReason = PrecedenceReason.LONGER
    """What puts the run ahead."""


@dataclass(frozen=True, slots=True)
class WaitingRun:
    run_id: int
    command_no: int
    positions: Mapping[str, int]
    """Pool -> place among those that wait for it, 1 is the next."""
    requirement: Requirement


@dataclass(frozen=True, slots=True)
class Arbitration:
    grants: tuple[Grant, ...]
    waiting: tuple[WaitingRun, ...]
    """In the order in which they will be served."""


_Held = Mapping[tuple[str, str], int]
_Rank = tuple[bool, bool, float, int, float, float, int, int]


def in_order(demands: Sequence[DeviceDemand], rules: Rules, held: _Held | None = None) -> list[DeviceDemand]:
    """Sort demands as they are served when this is held."""
    holds = rules.held if held is None else held
    return sorted(demands, key=lambda demand: _rank(demand, rules, holds))


def _rank(demand: DeviceDemand, rules: Rules, held: _Held) -> _Rank:
    """Lower is earlier; the places are those of `PrecedenceReason`, then the demand's own numbers."""
    overdue = demand.since if rules.now - demand.since >= PATIENCE_S else inf
    share = _share(demand, rules, held)
    urgent = demand.running and not demand.replaces  # who moves a device works on with the old one until then
    began = (demand.since, demand.run_id, demand.command_no)
    return (not demand.lacks, not urgent, overdue, -demand.priority, share, *began)


_PLACES = (
    PrecedenceReason.PART,
    PrecedenceReason.RUNNING,
    PrecedenceReason.OVERDUE,
    PrecedenceReason.PRIORITY,
    PrecedenceReason.SHARE,
)


def _share(demand: DeviceDemand, rules: Rules, held: _Held) -> float:
    parts = [
        held.get((demand.project, pool), 0) / rules.capacity[pool]
        for pool in wanted_of(demand)
        if rules.capacity.get(pool, 0)
    ]
    return max(parts, default=0.0) / rules.weights.get(demand.project, 1.0)


@dataclass(slots=True)
class _Round:
    """What is left and what is known while demands are served one after the other."""

    rules: Rules
    left: list[FreeDevice]
    held: dict[tuple[str, str], int]
    memory: dict[str, int]
    blocked: dict[str, DeviceDemand] = field(default_factory=dict)
    """Pool -> the first demand that waits for devices of it."""
    blocked_own: dict[tuple[str, str], DeviceDemand] = field(default_factory=dict)
    """(project, pool) -> the first demand that waits for the quota of its project."""
    places: dict[str, int] = field(default_factory=dict)


def arbitrate(demands: Sequence[DeviceDemand], free: Sequence[FreeDevice], rules: Rules) -> Arbitration:
    """Serve demands in their order and say of every other one what it lacks."""
    at = _Round(
        rules, sorted(free, key=lambda device: (device.node, device.device_id)), dict(rules.held), dict(rules.memory)
    )
    grants: list[Grant] = []
    waiting: list[WaitingRun] = []
    remaining = in_order(demands, rules)
    while remaining:
        demand, remaining = remaining[0], remaining[1:]
        found = _serve(at, demand)
        if isinstance(found, WaitingRun):
            waiting.append(found)
            continue
        grants.append(found)
        remaining = in_order(remaining, rules, at.held)  # what was granted is part of its project's share now
    return Arbitration(tuple(grants), tuple(waiting))


def _serve(at: _Round, demand: DeviceDemand) -> Grant | WaitingRun:
    """Give a demand its devices, or its place in the queue."""
    wanted = wanted_of(demand)
    lack = _refused(demand, wanted, at.rules, at.held) or _behind(at, demand, wanted)
    placements = None if lack else _place(demand, at)
    if placements is None:
        lack = lack or _shortage(demand, wanted, at)
        for pool in wanted:
            at.places[pool] = at.places.get(pool, 0) + 1
            if lack.code in _BLOCKS:
                at.blocked.setdefault(pool, demand)
            elif lack.code is Unmet.QUOTA_REACHED:
                at.blocked_own.setdefault((demand.project, pool), demand)
        return WaitingRun(demand.run_id, demand.command_no, {pool: at.places[pool] for pool in wanted}, lack)
    taken = {placement.device_id for placement in placements}
    at.left = [device for device in at.left if device.device_id not in taken]
    if not (demand.replaces or demand.lacks):  # else its seats are counted already
        for pool, count in wanted.items():
            at.held[demand.project, pool] = at.held.get((demand.project, pool), 0) + count
    return Grant(demand.run_id, demand.command_no, placements)


def wanted_of(demand: DeviceDemand) -> dict[str, int]:
    """Count the devices a demand wants, by pool."""
    wanted: dict[str, int] = {}
    for pool, count in ((demand.pool, demand.engines), (demand.trainer_pool or demand.pool, demand.trainers)):
        if count:
            wanted[pool] = wanted.get(pool, 0) + count
    return wanted


def _refused(
    demand: DeviceDemand, wanted: dict[str, int], rules: Rules, held: Mapping[tuple[str, str], int]
) -> Requirement | None:
    """Return what keeps a demand from being served whatever is free."""
    project = demand.project
    for pool in wanted:
        bound = rules.bindings.get(pool)
        if bound and project not in bound and not demand.running:
            return Requirement(Unmet.POOL_CLOSED, pool, project)
    holds = demand.holds if demand.holds is not None and demand.lacks else {}
    for pool, count in wanted.items():
        whole = count + holds.get(pool, 0)
        if rules.capacity.get(pool, 0) < whole:
            return Requirement(Unmet.POOL_TOO_SMALL, pool, project, whole, rules.capacity.get(pool, 0))
    if demand.replaces or demand.lacks:
        return None
    for pool, count in wanted.items():
        quota = rules.quotas.get((project, pool))
        if quota is None:
            continue
        if count > quota:
            return Requirement(Unmet.QUOTA_TOO_SMALL, pool, project, count, limit=quota)
        now = held.get((project, pool), 0)
        if now + count > quota:
            return Requirement(Unmet.QUOTA_REACHED, pool, project, count, now, quota)
    return None


def _behind(at: _Round, demand: DeviceDemand, wanted: dict[str, int]) -> Requirement | None:
    for pool, count in wanted.items():
        ahead = at.blocked.get(pool)
        if ahead is None and not (demand.replaces or demand.lacks):
            ahead = at.blocked_own.get((demand.project, pool))
        if ahead is not None:
            why = _why(ahead, demand, at)
            return Requirement(Unmet.BEHIND, pool, demand.project, count, behind_run=ahead.run_id, behind_why=why)
    return None


def _why(ahead: DeviceDemand, demand: DeviceDemand, at: _Round) -> PrecedenceReason:
    """Say which place of the two ranks decided."""
    first, second = _rank(ahead, at.rules, at.held), _rank(demand, at.rules, at.held)
    return next((why for why, a, b in zip(_PLACES, first, second, strict=False) if a < b), PrecedenceReason.LONGER)


def _shortage(demand: DeviceDemand, wanted: dict[str, int], at: _Round) -> Requirement:
    free = at.left
    left = {pool: sum(device.pool == pool for device in free) for pool in wanted}
    if demand.engines:  # those that cannot start its engine are there for its trainers alone
        pool, hosting = demand.pool, sum(d.pool == demand.pool and d.hosts(demand.engine) for d in free)
        left[pool] = min(left[pool], hosting + wanted[pool] - demand.engines)
    lacks = [(pool, count, left[pool]) for pool, count in wanted.items()]
    pool, count, there = next((lack for lack in lacks if lack[2] < lack[1]), ("", 0, 0))
    if pool:
        return Requirement(Unmet.NOT_FREE, pool, wanted=count, there=there, limit=at.rules.capacity.get(pool, 0))
    _, use, memory = _picked(demand, at)
    pool = demand.pool if use is DeviceUse.ENGINE else demand.trainer_pool or demand.pool
    most = max(memory.get(device.room, 0) for device in free if device.pool == pool)
    return Requirement(Unmet.MEMORY_LEASED, pool, wanted=demand.memory.get(use, 0), there=most)


def _picked(
    demand: DeviceDemand, at: _Round
) -> tuple[dict[DeviceUse, list[FreeDevice]] | None, DeviceUse, dict[str, int]]:
    """Choose devices of each use; None when they are not all there: then the use that has none, and what of memory is
    left for it. Else what is left behind them."""
    taken: dict[DeviceUse, list[FreeDevice]] = {}
    free, left = at.left, dict(at.memory)
    use = DeviceUse.ENGINE
    for use, pool, count in (
        (DeviceUse.ENGINE, demand.pool, demand.engines),
        (DeviceUse.TRAINER, demand.trainer_pool or demand.pool, demand.trainers),
    ):
        fit = [d for d in free if d.pool == pool and (use is DeviceUse.TRAINER or d.hosts(demand.engine))]
        before = dict(left)
        found = _pick(fit, count, demand.memory.get(use, 0), left)
        if found is None:
            return None, use, before
        taken[use] = found
        free = [device for device in free if device not in found]
    return taken, use, left


def _place(demand: DeviceDemand, at: _Round) -> tuple[DevicePlacement, ...] | None:
    """Take devices for the whole gang with their memory, None when they are not all there."""
    taken, _, memory = _picked(demand, at)
    if taken is None:
        return None
    at.memory = memory
    return tuple(
        DevicePlacement(device.device_id, use, demand.memory.get(use, 0))
        for use, devices in taken.items()
        for device in devices
    )


def _pick(free: list[FreeDevice], count: int, needs: int, memory: dict[str, int]) -> list[FreeDevice] | None:
    """Take `count` devices from the nodes with the most free ones, each with the bytes it needs; equal nodes by name.

    What they take is missing in `memory` then.
    """
    sizes: dict[str, int] = {}
    for device in free:
        sizes[device.node] = sizes.get(device.node, 0) + 1
    ranked = sorted(free, key=lambda device: (-sizes[device.node], device.node, device.device_id))
    found: list[FreeDevice] = []
    for device in ranked:
        if len(found) < count and needs <= memory.get(device.room, needs):
            found.append(device)
            if device.room in memory:
                memory[device.room] -= needs
    return found if len(found) == count else None
