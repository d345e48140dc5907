"""Devices between runs: demands in, grants and reasons out. Pure; the driver carries a grant out in one transaction.

Invariants: a gang gets all its devices or none; nobody overtakes an older demand on a pool they share, unless that
demand can never be met; equal inputs give equal grants. Devices of a gang lie on as few nodes as possible.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from flexmarl.contracts.events import DeviceUse


@dataclass(frozen=True, slots=True)
class Demand:
    """A run's open request. Demands are served in the order given: oldest first."""

    run_id: int
    command_no: int
    pool: str
    engines: int
    trainer_pool: str
    trainers: int


@dataclass(frozen=True, slots=True)
class FreeDevice:
    device_id: str
    node: str
    pool: str


@dataclass(frozen=True, slots=True)
class Placement:
    device_id: str
    use: DeviceUse


@dataclass(frozen=True, slots=True)
class Grant:
    run_id: int
    command_no: int
    placements: tuple[Placement, ...]


@dataclass(frozen=True, slots=True)
class Waiting:
    run_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class Arbitration:
    grants: tuple[Grant, ...]
    waiting: tuple[Waiting, ...]


def arbitrate(demands: Sequence[Demand], free: Sequence[FreeDevice], capacity: dict[str, int]) -> Arbitration:
    """Serve demands first come, first served. `capacity` counts each pool's usable devices, held ones included."""
    left = sorted(free, key=lambda device: (device.node, device.device_id))
    grants: list[Grant] = []
    waiting: list[Waiting] = []
    blocked: dict[str, int] = {}
    for demand in demands:
        wanted = _per_pool(demand)
        refusal = _impossible(wanted, capacity) or _behind(wanted, blocked)
        placements = None if refusal else _place(demand, left)
        if placements is None:
            waiting.append(Waiting(demand.run_id, refusal or _shortage(wanted, left)))
            if not _impossible(wanted, capacity):
                blocked.update(dict.fromkeys(wanted, demand.run_id))
            continue
        taken = {placement.device_id for placement in placements}
        left = [device for device in left if device.device_id not in taken]
        grants.append(Grant(demand.run_id, demand.command_no, placements))
    return Arbitration(tuple(grants), tuple(waiting))


def _per_pool(demand: Demand) -> dict[str, int]:
    wanted: dict[str, int] = {}
    for pool, count in ((demand.pool, demand.engines), (demand.trainer_pool or demand.pool, demand.trainers)):
        if count:
            wanted[pool] = wanted.get(pool, 0) + count
    return wanted


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


def _devices(count: int) -> str:
    return f"{count} device" + ("" if count == 1 else "s")


def _impossible(wanted: dict[str, int], capacity: dict[str, int]) -> str:
    """Say which pool is too small for good, in words; empty when all are large enough."""
    for pool, count in wanted.items():
        if capacity.get(pool, 0) < count:
            has = _devices(capacity.get(pool, 0))
            return f"pool {pool} has {has}, {_devices(count)} wanted: add a node or ask for fewer"
    return ""


def _behind(wanted: dict[str, int], blocked: dict[str, int]) -> str:
    pool = next((pool for pool in wanted if pool in blocked), None)
    return "" if pool is None else f"run {blocked[pool]} waits longer for pool {pool}"


def _shortage(wanted: dict[str, int], free: list[FreeDevice]) -> str:
    for pool, count in wanted.items():
        there = sum(1 for device in free if device.pool == pool)
        if there < count:
            return f"{_devices(count)} of pool {pool} wanted, {there} free"
    return "devices are not free"
