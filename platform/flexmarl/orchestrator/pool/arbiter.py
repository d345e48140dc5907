"""Devices between runs: demands in, grants and reasons out. Pure; the driver carries a grant out in one transaction.

Invariants: a gang gets all its devices or none, so no run that waits for its first devices holds any; no grant takes a
project above a quota; equal inputs give equal answers. Nobody overtakes an earlier demand on a pool they share, unless
that demand can never be met or is held by its own project's quota; then only its own project may not overtake it.

A quota counts gangs whole, from the grant of the first device to the end of the last: what a run has lost of its gang
and a device that moves are its seats as before. So a run that lacks a part never waits for its own project's quota.

Engines above a minimum (`extra`) come after all that runs cannot do without, whatever their priority and age: while
anybody waits for devices of a pool, none of it joins a fleet there. `surplus` says which leave for those that wait.

The order: first runs that hold a part of their devices and lack the rest, since nobody can count on what they hold
before they have it; then runs that were at work and lost everything; then whoever has waited for `PATIENCE_S`, oldest
first, so that nobody starves; then priority; within one priority the project with the smallest share of what its
demand names, each share over its weight; then age. A project's share is the largest part that it has of any of these
pools, grants of the same round counted. `recalls` says what happens when such runs wait for each other.

Devices of a gang lie on as few nodes as possible, and engines on nodes that can start them (`placing`). Every demand
that gets nothing has its place per pool and the one requirement that is not met, in numbers (`wording` writes it).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf

from flexmarl.contracts.events import DeviceUse
from flexmarl.orchestrator.pool.placing import for_engines, of_hosts, place
from flexmarl.orchestrator.pool.types import DeviceDemand, FreeDevice, Grant, Rules, wanted_of

PATIENCE_S = 4 * 3600.0
"""A demand that has waited so long is served before all younger ones, whatever their priority and share."""


class Unmet(StrEnum):
    """Why a demand waits."""

    POOL_CLOSED = "pool_closed"
    """The pool is bound to other projects."""
    POOL_TOO_SMALL = "pool_too_small"
    HOSTS_TOO_SMALL = "hosts_too_small"
    """The hosts of the pool have no room for as many engines of several devices."""
    QUOTA_TOO_SMALL = "quota_too_small"
    """More is wanted at once than the project may ever hold."""
    QUOTA_REACHED = "quota_reached"
    BEHIND = "behind"
    NOT_FREE = "not_free"
    SCATTERED = "scattered"
    """Devices are free, and not enough of one host for an engine of several."""
    MEMORY_LEASED = "memory_leased"
    """Devices are free, and what others leased of their memory leaves too little."""


NEVER = frozenset({Unmet.POOL_CLOSED, Unmet.POOL_TOO_SMALL, Unmet.HOSTS_TOO_SMALL, Unmet.QUOTA_TOO_SMALL})
"""Not to be met by waiting alone: somebody must add a node or change a rule."""
_BLOCKS = frozenset({Unmet.BEHIND, Unmet.NOT_FREE, Unmet.SCATTERED, Unmet.MEMORY_LEASED})


class PrecedenceReason(StrEnum):
    """Why another demand is served first."""

    MINIMUM = "minimum"
    """It cannot do without, the other one can."""
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
    """Devices; those of one engine (hosts_too_small, scattered); bytes of a device (memory_leased)."""
    there: int = 0
    """Devices free (not_free), healthy (pool_too_small) or held by the project (quota_reached); most healthy
    (hosts_too_small) or free (scattered) ones of a host; bytes that the free device with most of them has left
    (memory_leased)."""
    limit: int = 0
    """Devices of the pool (not_free) or of the quota; engines that are wanted (hosts_too_small, scattered)."""
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
_Rank = tuple[bool, bool, bool, float, int, float, float, int, int]


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
    return (demand.extra, not demand.lacks, not urgent, overdue, -demand.priority, share, *began)


_PLACES = (
    PrecedenceReason.MINIMUM,
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
    placed = None if lack else place(demand, at.left, at.memory)
    if placed is None or placed.placements is None:
        lack = lack or _shortage(demand, wanted, at)
        for pool in wanted:
            at.places[pool] = at.places.get(pool, 0) + 1
            if demand.extra:
                continue  # one that finds no host for its engine keeps no other from joining
            if lack.code in _BLOCKS:
                at.blocked.setdefault(pool, demand)
            elif lack.code is Unmet.QUOTA_REACHED:
                at.blocked_own.setdefault((demand.project, pool), demand)
        return WaitingRun(demand.run_id, demand.command_no, {pool: at.places[pool] for pool in wanted}, lack)
    at.memory = dict(placed.memory)
    taken = {placement.device_id for placement in placed.placements}
    at.left = [device for device in at.left if device.device_id not in taken]
    if not (demand.replaces or demand.lacks):  # else its seats are counted already
        for pool, count in wanted.items():
            at.held[demand.project, pool] = at.held.get((demand.project, pool), 0) + count
    return Grant(demand.run_id, demand.command_no, placed.placements)


def _refused(
    demand: DeviceDemand, wanted: dict[str, int], rules: Rules, held: Mapping[tuple[str, str], int]
) -> Requirement | None:
    """Return what keeps a demand from being served whatever is free."""
    project = demand.project
    for pool in wanted:
        bound = rules.bindings.get(pool)
        if bound and project not in bound and (demand.extra or not demand.running):
            return Requirement(Unmet.POOL_CLOSED, pool, project)
    if small := _too_small(demand, wanted, rules):
        return small
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


def _too_small(demand: DeviceDemand, wanted: Mapping[str, int], rules: Rules) -> Requirement | None:
    """Say that a pool could not hold the gang if nobody else were there."""
    holds = demand.holds if demand.holds is not None and demand.lacks else {}
    for pool, count in wanted.items():
        whole = count + holds.get(pool, 0)
        if rules.capacity.get(pool, 0) < whole:
            return Requirement(Unmet.POOL_TOO_SMALL, pool, demand.project, whole, rules.capacity.get(pool, 0))
    hosts, each = rules.hosts.get(demand.pool), demand.engine_devices
    if hosts is None or each == 1 or sum(devices // each for devices in hosts) >= demand.engines:
        return None
    most = max(hosts, default=0)
    return Requirement(Unmet.HOSTS_TOO_SMALL, demand.pool, demand.project, each, most, demand.engines)


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
        pool, hosting = demand.pool, len(for_engines(demand, free))
        left[pool] = min(left[pool], hosting + wanted[pool] - demand.engines * demand.engine_devices)
    lacks = [(pool, count, left[pool]) for pool, count in wanted.items()]
    pool, count, there = next((lack for lack in lacks if lack[2] < lack[1]), ("", 0, 0))
    if pool:
        return Requirement(Unmet.NOT_FREE, pool, wanted=count, there=there, limit=at.rules.capacity.get(pool, 0))
    if scattered := _scattered(demand, free):
        return scattered
    placed = place(demand, free, at.memory)
    use, memory = placed.use, placed.memory
    pool = demand.pool if use is DeviceUse.ENGINE else demand.trainer_pool or demand.pool
    most = max(memory.get(device.room, 0) for device in free if device.pool == pool)
    return Requirement(Unmet.MEMORY_LEASED, pool, wanted=demand.memory.get(use, 0), there=most)


def _scattered(demand: DeviceDemand, free: Sequence[FreeDevice]) -> Requirement | None:
    """Say that enough devices are free and lie on too many hosts for engines of several."""
    hosts, each = of_hosts(for_engines(demand, free)), demand.engine_devices
    if sum(count // each for count in hosts.values()) >= demand.engines:
        return None
    return Requirement(
        Unmet.SCATTERED, demand.pool, wanted=each, there=max(hosts.values(), default=0), limit=demand.engines
    )
