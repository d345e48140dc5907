"""Who takes how much room, which limits hold, and what they let go next: as the janitor measured it last."""

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from psycopg import Connection

from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.common.times import from_epoch, rfc3339
from flexmarl.controlplane.runs import limits
from flexmarl.controlplane.runs.limits import RetentionLimit
from flexmarl.controlplane.runs.models import Run, RunDeletion
from flexmarl.store.reads import storage
from flexmarl.store.reads.storage import Use

MOST_RUNS = 50
MOST_NEXT = 10


def report() -> dict[str, Any]:
    """Return everything that the page and the API show."""
    conn = store_connection()
    uses, last = storage.uses(conn), storage.last_pass(conn)
    known = _known({use.run_id for use in uses} | {one["run"] for one in (last.done if last else [])})
    by_kind = _sums(uses, lambda use: use.kind)
    return {
        "measured_at": rfc3339(from_epoch(last.ended_at)) if last else None,
        "seconds": round(last.ended_at - last.began_at, 3) if last else None,
        "host": last.host if last else "",
        "places": [{"name": name, "bytes": size} for name, size in sorted(last.places.items())] if last else [],
        "kinds": [{"kind": kind, "rows": by_kind[kind][0], "bytes": by_kind[kind][1]} for kind in storage.KINDS],
        "projects": _projects(uses, known),
        "runs": _runs(uses, known),
        "limits": [_limit(conn, limit, by_kind, known) for limit in limits.limits()],
        "removed": [_removed(one, known) for one in last.done] if last else [],
        "deletions": [
            {"key": one.key, "project": one.project, "asked_at": rfc3339(one.asked_at), "nodes": one.nodes}
            for one in RunDeletion.objects.filter(ended_at=None).order_by("asked_at")[:MOST_RUNS]
        ],
    }


def _known(numbers: Iterable[int]) -> dict[int, Run]:
    rows = Run.objects.filter(no__in=set(numbers)).select_related("state").defer("spec", "sources", "note")
    return {run.no: run for run in rows}


def _sums(uses: Iterable[Use], by: Any) -> dict[Any, tuple[int, int]]:
    found: dict[Any, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for use in uses:
        rows, size = found[by(use)]
        found[by(use)] = (rows + use.rows, size + use.bytes)
    return found


def _projects(uses: list[Use], known: dict[int, Run]) -> list[dict[str, Any]]:
    sums = _sums(uses, lambda use: _project(use.run_id, known))
    runs = {name: len({use.run_id for use in uses if _project(use.run_id, known) == name}) for name in sums}
    rows = [{"project": name, "runs": runs[name], "bytes": size} for name, (_, size) in sums.items()]
    return sorted(rows, key=lambda row: -row["bytes"])


def _project(number: int, known: dict[int, Run]) -> str:
    return known[number].project_id if number in known else ""


def _runs(uses: list[Use], known: dict[int, Run]) -> list[dict[str, Any]]:
    sums = _sums(uses, lambda use: use.run_id)
    largest = sorted(sums, key=lambda number: -sums[number][1])[:MOST_RUNS]
    kinds = {(use.run_id, use.kind): use.bytes for use in uses}
    return [
        {
            **_named(number, known),
            "bytes": sums[number][1],
            "kinds": {kind: kinds.get((number, kind), 0) for kind in storage.KINDS},
        }
        for number in largest
    ]


def _named(number: int, known: dict[int, Run]) -> dict[str, Any]:
    run = known.get(number)
    if run is None:  # it is being deleted, or was since the last measurement
        return {"no": number, "id": None, "key": "", "project": "", "status": "", "finished_at": None}
    return {
        "no": number,
        "id": str(run.id),
        "key": run.key,
        "project": run.project_id,
        "status": run.state.status,
        "finished_at": rfc3339(run.state.finished_at),
    }


def _limit(
    conn: Connection, limit: RetentionLimit, by_kind: dict[str, tuple[int, int]], known: dict[int, Run]
) -> dict[str, Any]:
    used = {kind: size for kind, (_, size) in by_kind.items()}
    beyond = set(limits.beyond(conn, limit))
    following = limits.upcoming(conn, limit, MOST_NEXT)
    return {
        **limits.as_row(limit, used),
        "next": [
            {
                **_named(number, known),
                "bytes": size,
                "reason": "size" if number in beyond else "age",
                "due_at": None if number in beyond else rfc3339(_due(limit, known.get(number))),
            }
            for number, size in following
            if number in beyond or limit.days
        ],
    }


def _due(limit: RetentionLimit, run: Run | None) -> datetime | None:
    if run is None or run.state.finished_at is None or not limit.days:
        return None
    due: datetime = run.state.finished_at + timedelta(days=limit.days)
    return due


def _removed(one: dict[str, Any], known: dict[int, Run]) -> dict[str, Any]:
    return {
        "key": _named(one["run"], known)["key"], "kind": one["kind"], "amount": one["amount"], "kept": one["kept"],
    }  # fmt: skip
