"""Runs that each hold a part of their devices and wait for the rest: which of them gives its part back. Pure.

A run that loses a device for good keeps the others and asks for one in its place. When the pool has become too small
for all such runs, each holds what another lacks, and none of them can go on. Invariants: only a run that cannot work
with what it holds is recalled; nobody is recalled unless its devices, with what is free, complete somebody; the run
of the highest priority, then the one that has waited longest, is served, as long as the pool can hold its gang at
all. A run whose gang the pool cannot hold makes way for whoever waits, also for its project's quota. So of runs that
wait for each other one always gets on, and a run that gave its part back holds nothing: it waits for a whole gang like
any other, and nobody can wait for it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flexmarl.orchestrator.pool.arbiter import NEVER, Arbitration, Unmet, WaitingRun
from flexmarl.orchestrator.pool.types import DeviceDemand, FreeDevice, Rules, wanted_of
from flexmarl.orchestrator.pool.wording import devices, numbered

RECALL_AFTER_S = 120.0
"""A host that restarts is back before; a part that idles longer is worth more to somebody else."""
_SHORT = frozenset({Unmet.NOT_FREE, Unmet.SCATTERED, Unmet.BEHIND})
_HELD_UP = _SHORT | {Unmet.QUOTA_REACHED}


@dataclass(frozen=True, slots=True)
class Recall:
    """A run that shall give back all it holds and ask for a whole gang again."""

    run_id: int
    command_no: int
    """The request that was not met; a grant that came first makes the recall void."""
    for_run: int
    pool: str
    """Where the other one lacks devices."""
    lacks: int
    never: bool
    """The pool cannot hold the recalled run's gang any more."""


def recalls(
    demands: Sequence[DeviceDemand], result: Arbitration, free: Sequence[FreeDevice], rules: Rules
) -> list[Recall]:
    """Say who gives its part back so that the first of those who wait is complete; empty when that helps nobody."""
    by_number = {(demand.run_id, demand.command_no): demand for demand in demands}
    waiting = [(by_number[w.run_id, w.command_no], w) for w in result.waiting]
    stuck = [(demand, w) for demand, w in waiting if _is_stuck(demand, w, rules)]
    hopeless = [demand for demand, w in stuck if w.requirement.code in NEVER]
    hopeful = sorted((demand for demand, w in stuck if w.requirement.code not in NEVER), key=_by_priority_then_age)
    there = Counter(device.pool for device in free)
    for at, demand in enumerate(hopeful):
        found = _enough(demand, [*hopeless, *reversed(hopeful[at + 1 :])], there, rules)
        if found:
            return [_recall(victim, demand, hopeless) for victim in found]
    for demand, w in waiting:
        if not demand.extra and w.requirement.code in _HELD_UP and demand not in hopeful:
            found = _enough(demand, hopeless, there, rules)
            if found:
                return [_recall(victim, demand, hopeless) for victim in found]
    return []


def in_words(recall: Recall) -> str:
    """Say to people why a run gives its devices back."""
    other = numbered(recall.for_run)
    why = f"{other} lacks {devices(recall.lacks)} in {recall.pool} and is ahead"
    if recall.never:
        why = f"the pool is too small for this run now, and {other} lacks {devices(recall.lacks)} in {recall.pool}"
    return f"a part of its devices is permanently lost; {why}"


def _is_stuck(demand: DeviceDemand, waiting: WaitingRun, rules: Rules) -> bool:
    code = waiting.requirement.code
    short = code in _SHORT or code is Unmet.POOL_TOO_SMALL
    return demand.lacks and demand.stalled and short and rules.now - demand.since >= RECALL_AFTER_S


def _by_priority_then_age(demand: DeviceDemand) -> tuple[int, float, int, int]:
    return -demand.priority, demand.since, demand.run_id, demand.command_no


def _enough(
    demand: DeviceDemand, victims: Sequence[DeviceDemand], there: Mapping[str, int], rules: Rules
) -> list[DeviceDemand]:
    """Take victims in their order until the demand is covered; those that would not help keep what they hold."""
    lacks = {pool: count - there.get(pool, 0) for pool, count in wanted_of(demand).items()}
    over = _over_quota(demand, rules)
    taken: list[DeviceDemand] = []
    for victim in victims:
        gives = victim.holds or {}
        seats = Counter(gives) + Counter(wanted_of(victim)) if victim.project == demand.project else Counter[str]()
        helps = any(lacks[pool] > 0 and gives.get(pool, 0) for pool in lacks)
        if helps or any(over[pool] > 0 and seats[pool] for pool in over):
            taken.append(victim)
            lacks = {pool: count - gives.get(pool, 0) for pool, count in lacks.items()}
            over = {pool: count - seats[pool] for pool, count in over.items()}
    covered = all(count <= 0 for count in (*lacks.values(), *over.values()))
    return taken if taken and covered else []


def _over_quota(demand: DeviceDemand, rules: Rules) -> dict[str, int]:
    """Count by how much a grant would exceed the quotas of its project; a part of a gang is counted already."""
    if demand.lacks or demand.replaces:
        return {}
    held = {pool: rules.held.get((demand.project, pool), 0) + count for pool, count in wanted_of(demand).items()}
    quotas = {pool: rules.quotas.get((demand.project, pool)) for pool in held}
    return {pool: held[pool] - quota for pool, quota in quotas.items() if quota is not None}


def _recall(victim: DeviceDemand, demand: DeviceDemand, hopeless: Sequence[DeviceDemand]) -> Recall:
    wanted = wanted_of(demand)
    pool = next((pool for pool in wanted if (victim.holds or {}).get(pool, 0)), next(iter(wanted)))
    lacks = wanted[pool]
    return Recall(victim.run_id, victim.command_no, demand.run_id, pool, lacks, victim in hopeless)
