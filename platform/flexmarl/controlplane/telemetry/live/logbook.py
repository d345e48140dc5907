"""A run's log lines, and one feed of them with the notes that the driver wrote, ordered by time.

A note is a row of the run's history: it stays as long as the run. A log line is help for people: the newest 50 000 of
a run stay, and any may be missing. Both are read here; nothing is written.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

import psycopg
from channels.db import database_sync_to_async
from django.db import transaction

from flexmarl.controlplane.accounts.callers import Caller, actor_now
from flexmarl.controlplane.common.problems import FieldError, ProblemError, ValidationProblem
from flexmarl.controlplane.common.store import giving_back, store_connection
from flexmarl.controlplane.common.times import from_epoch, rfc3339
from flexmarl.controlplane.runs.models import Note, Run
from flexmarl.controlplane.runs.queries import find_run
from flexmarl.store.telemetry import logs
from flexmarl.store.telemetry.logs import LogFilter, StoredLine

LEVELS = ("debug", "info", "warning", "error")
COMPONENTS = ("history", "driver", "node", "device", "rollout", "engine", "trainer")
"""`history` are the notes of the driver: life cycle and decisions."""
DEFAULT_LIMIT = 200
MAX_LIMIT = 1000
FOLLOW_S = 600.0
"""A stream of lines ends after this long; the reader comes again with its cursor."""
LOOK_S = 0.5
QUIET_S = 15.0
"""A stream without lines writes an empty one this often, so that a lost reader is noticed."""


def log_lines(
    run: Run,
    wanted: LogFilter,
    *,
    after: int | None = None,
    before: int | None = None,
    limit: int = DEFAULT_LIMIT,
) -> list[dict[str, Any]]:
    """Return log lines in their order: behind `after`, before `before`, or the newest. Refuses a wrong pattern."""
    return [_line(row) for row in _page(run, wanted, limit, after=after, before=before)]


def feed(run: Run, wanted: LogFilter, limit: int = DEFAULT_LIMIT) -> list[dict[str, Any]]:
    """Return the newest notes and log lines that match, merged by time, oldest first."""
    lines = [] if wanted.components is not None and set(wanted.components) <= {"history"} else _page(run, wanted, limit)
    rows = [{**_line(row), "source": "log"} for row in lines] + _notes(run, wanted, limit)
    rows.sort(key=lambda row: (row["at"], row["source"], row["seq"], row.get("ord", 0)))
    return rows[-limit:]


def origins(run: Run) -> dict[str, list[str]]:
    """Return the components, agents and nodes that the newest lines of a run speak of."""
    components, agents, nodes = logs.origins(store_connection(), run.no)
    known = [name for name in COMPONENTS if name in components]
    return {"components": ["history", *known], "agents": sorted(agents), "nodes": sorted(nodes)}


async def export(run: Run, wanted: LogFilter) -> AsyncIterator[bytes]:
    """Yield all matching lines of a run as NDJSON, oldest first, `MAX_LIMIT` at a time."""
    read = giving_back(_page)
    after = 0
    while rows := await read(run, wanted, MAX_LIMIT, after=after):
        yield b"".join(_json(_line(row)) for row in rows)
        after = rows[-1].seq


async def follow(caller: Caller, reference: str, wanted: LogFilter, after: int) -> AsyncIterator[bytes]:
    """Yield lines behind a cursor as they come, until the reader may not read any more or `FOLLOW_S` has passed."""
    end, told = time.monotonic() + FOLLOW_S, time.monotonic()
    while time.monotonic() < end:
        try:
            rows = await _next(caller, reference, wanted, after)
        except ProblemError:
            return
        if rows:
            after, told = rows[-1].seq, time.monotonic()
            yield b"".join(_json(_line(row)) for row in rows)
            if len(rows) == MAX_LIMIT:
                continue
        elif time.monotonic() - told > QUIET_S:
            told = time.monotonic()
            yield b"\n"
        await asyncio.sleep(LOOK_S)


@database_sync_to_async
def _next(caller: Caller, reference: str, wanted: LogFilter, after: int) -> list[StoredLine]:
    return _page(find_run(actor_now(caller), reference), wanted, MAX_LIMIT, after=after)


def _page(
    run: Run, wanted: LogFilter, limit: int, *, after: int | None = None, before: int | None = None
) -> list[StoredLine]:
    try:
        with transaction.atomic():  # a refused pattern must not end the request's transaction
            return logs.page(store_connection(), run.no, wanted, limit, after=after, before=before)
    except Exception as error:  # Django wraps the driver's errors; only a refused pattern is the caller's fault
        if not isinstance(error.__cause__ or error, psycopg.errors.InvalidRegularExpression):
            raise
        detail = f"pattern={wanted.pattern} is not a regular expression."
        hint = "Send a POSIX regular expression, such as ^child (lost|ready)."
        raise ValidationProblem(detail, errors=[FieldError("pattern", "wrong_type", detail, hint, "query")]) from None


def _notes(run: Run, wanted: LogFilter, limit: int) -> list[dict[str, Any]]:
    if (wanted.components is not None and "history" not in wanted.components) or wanted.node:
        return []
    rows = Note.objects.filter(run_id=run.no)
    if wanted.levels is not None:
        rows = rows.filter(level__in=list(wanted.levels))
    if wanted.agent:
        rows = rows.filter(target=wanted.agent)
    if wanted.text:
        rows = rows.filter(text__icontains=wanted.text)
    if wanted.pattern:
        rows = rows.filter(text__iregex=wanted.pattern)
    if wanted.since is not None:
        rows = rows.filter(at__gte=from_epoch(wanted.since))
    if wanted.until is not None:
        rows = rows.filter(at__lte=from_epoch(wanted.until))
    return [
        {
            "seq": note.seq, "ord": note.ord, "at": rfc3339(note.at), "level": note.level, "component": "history",
            "agent": "", "node": "", "text": note.text, "target": note.target, "actor": note.actor, "fields": {},
            "source": "note",
        }
        for note in rows.order_by("-seq", "-ord")[:limit]
    ]  # fmt: skip


def _line(row: StoredLine) -> dict[str, Any]:
    return {**asdict(row), "at": rfc3339(from_epoch(row.at))}


def _json(row: dict[str, Any]) -> bytes:
    return json.dumps(row, separators=(",", ":")).encode() + b"\n"
