"""Who waits for devices, in which place and for what: the arbiter's own answer, looked at without granting anything."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.reach import in_reach
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.common.times import rfc3339
from flexmarl.controlplane.runs.models import Run
from flexmarl.controlplane.runs.pool_look import PoolLook, look
from flexmarl.orchestrator.pool.arbiter import NEVER, Unmet, WaitingRun, arbitrate
from flexmarl.orchestrator.pool.types import DeviceDemand, wanted_of
from flexmarl.orchestrator.pool.wording import in_words
from flexmarl.store.control import pool_rules

Held = Mapping[tuple[str, str], Sequence[tuple[int, int]]]
"""(pool, project) -> (run, devices) of those who hold devices there."""
MOST_NAMED = 3
"""Runs that a sentence names."""
SOMEBODY = "a run of another project"
"""What a run is called towards people who may not read its project."""


def queue(actor: Actor) -> list[dict[str, Any]]:
    """All waiting requests in the order in which they are served. Runs out of the caller's reach have no name.

    A fleet that would grow waits for nothing: it is none of them.
    """
    seen = look(store_connection())
    result = arbitrate(_waiting(seen), seen.free, seen.rules)
    held = _holders(result.waiting)
    numbers = [number for found in held.values() for number, _ in found]
    names = run_names(actor, [*(demand.run_id for demand in seen.demands), *numbers])
    by_command = {(demand.run_id, demand.command_no): demand for demand in seen.demands}
    return [
        _row(place, waiting, by_command[waiting.run_id, waiting.command_no], names, held)
        for place, waiting in enumerate(result.waiting, start=1)
    ]


def seen_now() -> PoolLook:
    """Look at demands, devices and rules, also while nobody waits: for pages that show more than the queue."""
    return look(store_connection(), always=True)


def queue_of(actor: Actor, run: Run) -> dict[str, Any] | None:
    """The place of one run, None when it waits for nothing."""
    return next((row for row in queue(actor) if row["run_no"] == run.no), None)


def waiting_by_pool(seen: PoolLook) -> dict[str, int]:
    """Count the requests that wait for each pool."""
    counts: dict[str, int] = {}
    for waiting in arbitrate(_waiting(seen), seen.free, seen.rules).waiting:
        for pool in waiting.positions:
            counts[pool] = counts.get(pool, 0) + 1
    return counts


def _waiting(seen: PoolLook) -> list[DeviceDemand]:
    return [demand for demand in seen.demands if not demand.extra]


def run_names(actor: Actor, numbers: list[int]) -> dict[int, dict[str, Any]]:
    """Map run numbers to what a caller may know of the runs; those out of reach are missing."""
    rows = in_reach(Run.objects.filter(no__in=set(numbers)), actor, Scope.RUNS_READ)
    return {
        run.no: {
            "id": str(run.id), "key": run.key, "name": run.name, "project": run.project_id,
            "owner": run.owner_id == actor.user_id, "url": f"/api/v1/runs/{run.id}", "web_url": f"/runs/{run.key}",
        }
        for run in rows
    }  # fmt: skip


def name_in(names: Mapping[int, Mapping[str, Any]], number: int) -> str:
    """Call a run by its key, or as one of another project."""
    return str(names[number]["key"]) if number in names else SOMEBODY


def _holders(waiting: Sequence[WaitingRun]) -> Held:
    """Read who holds devices of the pools in which something lacks free ones."""
    pools = {one.requirement.pool for one in waiting if one.requirement.code in (Unmet.NOT_FREE, Unmet.QUOTA_REACHED)}
    return pool_rules.holders(store_connection(), pools) if pools else {}


def _row(
    place: int, waiting: WaitingRun, demand: DeviceDemand, names: Mapping[int, Mapping[str, Any]], held: Held
) -> dict[str, Any]:
    lack, known = waiting.requirement, names.get(demand.run_id)
    return {
        "position": place,
        "run_no": demand.run_id if known else None,
        "run": None if known is None else {name: known[name] for name in ("id", "key", "name", "url", "web_url")},
        "run_text": known["key"] if known else SOMEBODY,
        "project": demand.project if known else None,
        "priority": demand.priority,
        "pools": [
            {"pool": pool, "devices": count, "position": waiting.positions[pool]}
            for pool, count in wanted_of(demand).items()
        ],
        "purpose": "replacement" if demand.running or demand.replaces else "start",
        "code": lack.code.value,
        "pool": lack.pool,
        "wanted": lack.wanted,
        "there": lack.there,
        "limit": lack.limit,
        "behind": names[lack.behind_run]["key"] if lack.behind_run in names else None,
        "never": lack.code in NEVER,
        "text": _text(waiting, names, held) if known else _hidden_text(waiting),
        "since": rfc3339(datetime.fromtimestamp(demand.since, UTC)),
    }


def _text(waiting: WaitingRun, names: Mapping[int, Mapping[str, Any]], held: Held) -> str:
    lack = waiting.requirement
    text = in_words(lack, lambda number: name_in(names, number))
    if lack.code is Unmet.QUOTA_REACHED:
        own = held.get((lack.pool, lack.project), [])
    else:
        own = [one for (pool, _), found in held.items() if pool == lack.pool for one in found]
    by = _held_by([one for one in own if one[0] != waiting.run_id], names)
    return f"{text}; held by {by}" if by and lack.code in (Unmet.NOT_FREE, Unmet.QUOTA_REACHED) else text


def _held_by(found: Sequence[tuple[int, int]], names: Mapping[int, Mapping[str, Any]]) -> str:
    """Name the runs that hold most, and count the others."""
    ranked = sorted(found, key=lambda one: (-one[1], one[0]))
    shown = [f"{name_in(names, number)} ({devices})" for number, devices in ranked[:MOST_NAMED]]
    more = len(ranked) - len(shown)
    return ", ".join(shown) + (f" and {more} more run{'' if more == 1 else 's'}" if more else "")


def _hidden_text(waiting: WaitingRun) -> str:
    """What anybody may know of a request of a project that they may not read."""
    return f"Waits for devices in {', '.join(waiting.positions)}"
