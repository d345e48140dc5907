"""Engines above the minimum of their runs, for runs that wait: which of them leave. Pure; equal inputs, equal answers.

Invariants: an engine leaves only if with all that leave somebody who waits is served, and as few as that takes; nobody
overtakes by it: what leaves is for the first of those that wait and could be served so. Engines of a lower priority
leave first, then those of the project that holds most, then the youngest. Engines above a minimum never leave for
others above theirs: moving a device between two runs that can both do without would cost its start and gain nothing. A
run that lost a trainer makes room for it itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from flexmarl.orchestrator.pool.arbiter import Arbitration, Unmet, arbitrate
from flexmarl.orchestrator.pool.types import DeviceDemand, FreeDevice, Rules, SurplusEngine
from flexmarl.orchestrator.pool.wording import devices, numbered

_SERVED_BY_LEAVING = frozenset({Unmet.NOT_FREE, Unmet.SCATTERED, Unmet.MEMORY_LEASED, Unmet.QUOTA_REACHED})


@dataclass(frozen=True, slots=True)
class Leave:
    """An engine that is to leave its run."""

    run_id: int
    lease_id: int
    for_run: int
    for_command: int
    """The request that waits; with the lease it makes the fact one that is told once."""
    pool: str
    wanted: int
    """Devices that the other run waits for there."""


def leaves(
    demands: Sequence[DeviceDemand],
    result: Arbitration,
    free: Sequence[FreeDevice],
    rules: Rules,
    surplus: Sequence[SurplusEngine],
) -> list[Leave]:
    """Say which engines leave so that the first of those who wait is served; empty when that helps nobody."""
    by_number = {(demand.run_id, demand.command_no): demand for demand in demands}
    for waiting in result.waiting if surplus else ():
        demand, lack = by_number[waiting.run_id, waiting.command_no], waiting.requirement
        if demand.extra or lack.code not in _SERVED_BY_LEAVING:
            continue
        engines = sorted(surplus, key=lambda one: _turn(one, rules))
        if chosen := _fewest(demand, free, rules, engines):
            return [
                Leave(one.run_id, one.lease_id, demand.run_id, demand.command_no, lack.pool, lack.wanted)
                for one in chosen
            ]
    return []


def in_words(leave: Leave) -> str:
    """Say to people why an engine leaves."""
    return f"{numbered(leave.for_run)} waits for {devices(leave.wanted)} in {leave.pool}"


def _turn(engine: SurplusEngine, rules: Rules) -> tuple[int, int, int]:
    held = sum(count for (project, _), count in rules.held.items() if project == engine.project)
    return engine.priority, -held, -engine.lease_id


def _fewest(
    demand: DeviceDemand, free: Sequence[FreeDevice], rules: Rules, engines: Sequence[SurplusEngine]
) -> list[SurplusEngine]:
    """Take engines in their turn until the demand would be served, then keep those that are not needed for it."""
    taken: list[SurplusEngine] = []
    for engine in engines:
        taken.append(engine)
        if _served(demand, free, rules, taken):
            break
    else:
        return []
    for engine in list(reversed(taken[:-1])):
        others = [one for one in taken if one is not engine]
        if _served(demand, free, rules, others):
            taken = others
    return taken


def _served(demand: DeviceDemand, free: Sequence[FreeDevice], rules: Rules, taken: Sequence[SurplusEngine]) -> bool:
    given = [device for engine in taken for device in engine.devices]
    after = replace(rules, held=_held(rules, taken), memory=_memory(rules, taken))
    return bool(arbitrate([demand], [*free, *given], after).grants)


def _held(rules: Rules, taken: Sequence[SurplusEngine]) -> Mapping[tuple[str, str], int]:
    held = dict(rules.held)
    for engine in taken:
        for device in engine.devices:
            seat = engine.project, device.pool
            held[seat] = held.get(seat, 0) - 1
    return held


def _memory(rules: Rules, taken: Sequence[SurplusEngine]) -> Mapping[str, int]:
    memory = dict(rules.memory)
    for engine in taken:
        for device in engine.devices:
            if device.room in memory:
                memory[device.room] += engine.memory
    return memory
