"""How many further hosts of a pool would serve who waits. Pure: it asks the arbiter what it would grant with them.

So a gang that would not fit whole, a quota that is reached and a pool that is closed to a project ask for no host, and
an engine of several devices asks for as many hosts as have room for it. Nor does a fleet ask for hosts to grow, nor a
run for which engines above the minimum of others leave.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flexmarl.controlplane.runs.pool_look import PoolLook
from flexmarl.orchestrator.pool.arbiter import arbitrate
from flexmarl.orchestrator.pool.types import DeviceDemand, FreeDevice, Rules


@dataclass(frozen=True, slots=True)
class HostShape:
    """What a further host of a pool would bring."""

    pool: str
    kind: str
    devices: int
    whole: bool


def hosts_wanted(seen: PoolLook, shape: HostShape, most: int) -> int:
    """Return the smallest number of further hosts with which as many requests are served as with `most` of them."""
    if most <= 0 or not any(shape.pool in {d.pool, d.trainer_pool} for d in _urgent(seen)):
        return 0
    best = _served(seen, shape, most)
    if len(best) <= len(_served(seen, shape, 0)):
        return 0
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        if len(_served(seen, shape, middle)) >= len(best):
            high = middle
        else:
            low = middle + 1
    return low


def _served(seen: PoolLook, shape: HostShape, further: int) -> set[tuple[int, int]]:
    given = (device for engine in seen.surplus for device in engine.devices)
    free = (*seen.free, *given, *(device for number in range(further) for device in _devices(shape, number)))
    grants = arbitrate(_urgent(seen), free, _with_hosts(seen.rules, shape, further)).grants
    return {(grant.run_id, grant.command_no) for grant in grants}


def _urgent(seen: PoolLook) -> list[DeviceDemand]:
    """List the requests for what runs cannot do without: engines above a minimum ask for no host."""
    return [demand for demand in seen.demands if not demand.extra]


def _devices(shape: HostShape, number: int) -> Sequence[FreeDevice]:
    node = f"\uffff{shape.pool}-{number:04d}"  # behind the hosts that are there, where nothing else decides
    return [
        FreeDevice(f"{node}.{ordinal}", node, shape.pool, None, f"{node}.{ordinal}", shape.kind, shape.whole)
        for ordinal in range(shape.devices)
    ]


def _with_hosts(rules: Rules, shape: HostShape, further: int) -> Rules:
    capacity, hosts = dict(rules.capacity), dict(rules.hosts)
    capacity[shape.pool] = capacity.get(shape.pool, 0) + further * shape.devices
    if shape.whole:
        hosts[shape.pool] = [*hosts.get(shape.pool, ()), *[shape.devices] * further]
    return replace(rules, capacity=capacity, hosts=hosts)
