"""Devices between runs: demands in, grants and reasons out. Pure; the driver carries a grant out in one transaction.

Invariants: a gang gets all its devices or none; the order is priority, then age; nobody overtakes an earlier demand on
a pool they share, unless that demand can never be met or is held by its own project's quota; no grant takes a project
above a quota; equal inputs give equal answers. Devices of a gang lie on as few nodes as possible. Every demand that
gets nothing has its place per pool and the one requirement that is not met, in numbers (`pool_words` writes it).
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum

from flexmarl.contracts.events import DeviceUse

DEFAULT_PRIORITY = 50


@dataclass(frozen=True, slots=True)
class Demand:
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
    """The run works already and lost or moves a device: a binding that was taken away does not stop it."""
    replaces: bool = False
    """The device stands in for one that is given back: no quota counts it."""


@dataclass(frozen=True, slots=True)
class FreeDevice:
    device_id: str
    node: str
    pool: str


@dataclass(frozen=True, slots=True)
class Rules:
    """What administrators decided, and what is held. A pool that `bindings` does not name is open to all."""

    capacity: Mapping[str, int]
    """Pool -> devices that could serve, leased ones included."""
    bindings: Mapping[str, Set[str]] = field(default_factory=dict)
    quotas: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """(project, pool) -> devices held at once at most."""
    held: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """(project, pool) -> devices held now."""


@dataclass(frozen=True, slots=True)
class Placement:
    device_id: str
    use: DeviceUse


@dataclass(frozen=True, slots=True)
class Grant:
    run_id: int
    command_no: int
    placements: tuple[Placement, ...]


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


NEVER = frozenset({Unmet.POOL_CLOSED, Unmet.POOL_TOO_SMALL, Unmet.QUOTA_TOO_SMALL})
"""Not to be met by waiting alone: somebody must add a node or change a rule."""
_BLOCKS = frozenset({Unmet.BEHIND, Unmet.NOT_FREE})


@dataclass(frozen=True, slots=True)
class Requirement:
    """What is not met, in numbers. Zero where a number says nothing for the code."""

    code: Unmet
    pool: str
    project: str = ""
    wanted: int = 0
    there: int = 0
    """Devices free (not_free), healthy (pool_too_small) or held by the project (quota_reached)."""
    limit: int = 0
    """Devices of the pool (not_free) or of the quota."""
    behind_run: int = 0
    behind_priority: bool = False
    """The run ahead has a higher priority, not only waited longer."""


@dataclass(frozen=True, slots=True)
class Waiting:
    run_id: int
    command_no: int
    positions: Mapping[str, int]
    """Pool -> place among those that wait for it, 1 is the next."""
    requirement: Requirement


@dataclass(frozen=True, slots=True)
class Arbitration:
    grants: tuple[Grant, ...]
    waiting: tuple[Waiting, ...]
    """In the order in which they will be served."""


def in_order(demands: Sequence[Demand]) -> list[Demand]:
    """Sort demands as they are served: higher priority first, then the one that waits longer."""
    return sorted(demands, key=lambda d: (-d.priority, d.since, d.run_id, d.command_no))


def arbitrate(demands: Sequence[Demand], free: Sequence[FreeDevice], rules: Rules) -> Arbitration:
    """Serve demands in their order and say of every other one what it lacks."""
    left = sorted(free, key=lambda device: (device.node, device.device_id))
    held = dict(rules.held)
    grants: list[Grant] = []
    waiting: list[Waiting] = []
    blocked: dict[str, Demand] = {}
    places: dict[str, int] = {}
    for demand in in_order(demands):
        wanted = wanted_of(demand)
        lack = _refused(demand, wanted, rules, held) or _behind(demand, wanted, blocked)
        placements = None if lack else _place(demand, left)
        if placements is None:
            lack = lack or _shortage(wanted, left, rules)
            for pool in wanted:
                places[pool] = places.get(pool, 0) + 1
            positions = {pool: places[pool] for pool in wanted}
            waiting.append(Waiting(demand.run_id, demand.command_no, positions, lack))
            if lack.code in _BLOCKS:
                for pool in wanted:
                    blocked.setdefault(pool, demand)
            continue
        taken = {placement.device_id for placement in placements}
        left = [device for device in left if device.device_id not in taken]
        if not demand.replaces:
            for pool, count in wanted.items():
                held[demand.project, pool] = held.get((demand.project, pool), 0) + count
        grants.append(Grant(demand.run_id, demand.command_no, placements))
    return Arbitration(tuple(grants), tuple(waiting))


def wanted_of(demand: Demand) -> dict[str, int]:
    """Count the devices a demand wants, by pool."""
    wanted: dict[str, int] = {}
    for pool, count in ((demand.pool, demand.engines), (demand.trainer_pool or demand.pool, demand.trainers)):
        if count:
            wanted[pool] = wanted.get(pool, 0) + count
    return wanted


def _refused(
    demand: Demand, wanted: dict[str, int], rules: Rules, held: Mapping[tuple[str, str], int]
) -> Requirement | None:
    """Return what keeps a demand from being served whatever is free."""
    project = demand.project
    for pool in wanted:
        bound = rules.bindings.get(pool)
        if bound and project not in bound and not demand.running:
            return Requirement(Unmet.POOL_CLOSED, pool, project)
    for pool, count in wanted.items():
        if rules.capacity.get(pool, 0) < count:
            return Requirement(Unmet.POOL_TOO_SMALL, pool, project, count, rules.capacity.get(pool, 0))
    if demand.replaces:
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


def _behind(demand: Demand, wanted: dict[str, int], blocked: dict[str, Demand]) -> Requirement | None:
    pool = next((pool for pool in wanted if pool in blocked), None)
    if pool is None:
        return None
    ahead = blocked[pool]
    return Requirement(
        Unmet.BEHIND, pool, demand.project, wanted[pool],
        behind_run=ahead.run_id, behind_priority=ahead.priority > demand.priority,
    )  # fmt: skip


def _shortage(wanted: dict[str, int], free: list[FreeDevice], rules: Rules) -> Requirement:
    lacks = [(pool, count, sum(device.pool == pool for device in free)) for pool, count in wanted.items()]
    pool, count, there = next((lack for lack in lacks if lack[2] < lack[1]), lacks[0])
    return Requirement(Unmet.NOT_FREE, pool, wanted=count, there=there, limit=rules.capacity.get(pool, 0))


def _place(demand: Demand, free: list[FreeDevice]) -> tuple[Placement, ...] | None:
    """Choose devices for the whole gang, None when they are not all there."""
    engines = _pick([d for d in free if d.pool == demand.pool], demand.engines)
    if engines is None:
        return None
    pool = demand.trainer_pool or demand.pool
    trainers = _pick([d for d in free if d.pool == pool and d not in engines], demand.trainers)
    if trainers is None:
        return None
    return tuple(
        Placement(device.device_id, use)
        for use, devices in ((DeviceUse.ENGINE, engines), (DeviceUse.TRAINER, trainers))
        for device in devices
    )


def _pick(free: list[FreeDevice], count: int) -> list[FreeDevice] | None:
    """Take `count` devices from the nodes with the most free ones; equal nodes by name."""
    if len(free) < count:
        return None
    sizes: dict[str, int] = {}
    for device in free:
        sizes[device.node] = sizes.get(device.node, 0) + 1
    ranked = sorted(free, key=lambda device: (-sizes[device.node], device.node, device.device_id))
    return ranked[:count]
