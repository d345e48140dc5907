"""Which free devices a gang gets. Pure; equal inputs give equal answers.

Invariants: all devices of a gang or none; the devices of one engine are of one host and kind, and whole ones where it
has several.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from flexmarl.contracts.events import DeviceUse
from flexmarl.orchestrator.pool.types import DeviceDemand, DevicePlacement, FreeDevice


@dataclass(frozen=True, slots=True)
class Placing:
    """What became of a demand."""

    placements: tuple[DevicePlacement, ...] | None
    """None: not all of its devices are there."""
    use: DeviceUse
    """The use that found no devices."""
    memory: Mapping[str, int]
    """What is left in each room: behind the placements, or where that use looked in vain."""


def place(demand: DeviceDemand, free: Sequence[FreeDevice], memory: Mapping[str, int]) -> Placing:
    """Choose devices of each use, with their memory."""
    left, found = dict(memory), list[DevicePlacement]()
    remaining = list(free)
    for use, pool, count, each in (
        (DeviceUse.ENGINE, demand.pool, demand.engines, demand.engine_devices),
        (DeviceUse.TRAINER, demand.trainer_pool or demand.pool, demand.trainers, 1),
    ):
        needs, before = demand.memory.get(use, 0), dict(left)
        fit = for_engines(demand, remaining) if use is DeviceUse.ENGINE else [d for d in remaining if d.pool == pool]
        taken = _pick(fit, count, each, needs, left)
        if taken is None:
            return Placing(None, use, before)
        found += [DevicePlacement(d.device_id, use, needs, number % each) for number, d in enumerate(taken)]
        remaining = [device for device in remaining if device not in taken]
    return Placing(tuple(found), DeviceUse.TRAINER, left)


def for_engines(demand: DeviceDemand, free: Iterable[FreeDevice]) -> list[FreeDevice]:
    """List the devices on which the demand's engines could be."""
    several = demand.engine_devices > 1
    return [d for d in free if d.pool == demand.pool and d.hosts(demand.engine) and (d.whole or not several)]


def of_hosts(free: Iterable[FreeDevice]) -> Counter[tuple[str, str]]:
    """Count devices by what those of one engine have in common."""
    return Counter(_host(device) for device in free)


def _pick(
    free: Sequence[FreeDevice], count: int, each: int, needs: int, memory: dict[str, int]
) -> list[FreeDevice] | None:
    """Take `count` times `each` devices of one host, from the hosts with the most free ones, each device with the
    bytes it needs; equal hosts by name.

    What they take is missing in `memory` then.
    """
    host_of = _host if each > 1 else _node
    sizes = Counter(host_of(device) for device in free)
    ranked = sorted(free, key=lambda device: (-sizes[host_of(device)], host_of(device), device.device_id))
    found: list[FreeDevice] = []
    for _, on_host in groupby(ranked, host_of):
        part: list[FreeDevice] = []
        left = dict(memory)
        for device in on_host:
            if len(found) < count * each and needs <= left.get(device.room, needs):
                part.append(device)
                if device.room in left:
                    left[device.room] -= needs
            if len(part) == each:
                found += part
                part = []
                memory.update(left)
    return found if len(found) == count * each else None


def _host(device: FreeDevice) -> tuple[str, str]:
    return device.node, device.kind


def _node(device: FreeDevice) -> tuple[str, str]:
    return device.node, ""
