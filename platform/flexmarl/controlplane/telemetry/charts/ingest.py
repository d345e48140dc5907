"""Series that scripts add to a run: checked line by line, all or nothing.

A batch sent again changes nothing, and of two points with the same (name, agent, stat, step) the last one counts, so a
script may repeat what it is not sure of. Names begin with `user/`: no series of the platform can be overwritten. These
writes are figures, not decisions, and leave no line in the audit trail.
"""

import math
import re
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from django.utils.dateparse import parse_datetime

from flexmarl.contracts.decisions import Metric
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.problems import FieldError, PermissionDenied, ValidationProblem
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.runs.models import Run
from flexmarl.controlplane.runs.queries import may_edit
from flexmarl.controlplane.telemetry.charts.definitions import USER_PREFIX
from flexmarl.controlplane.telemetry.charts.series import policies
from flexmarl.store.control.attempts import Timed
from flexmarl.store.telemetry import metrics
from flexmarl.store.telemetry.metric_ingest import put_points

MAX_LINES = 20_000
MAX_SERIES = 1000
"""Series of scripts a run may have: a script that puts a number into a name is stopped, not stored."""
STATS = ("mean", "min", "max", "sum", "share", "last", "std", "p10", "p50", "p90")
MEMBERS = ("name", "agent", "stat", "step", "value", "at", "samples")
_NAME = re.compile(r"user/[a-z0-9_.-]+(/[a-z0-9_.-]+)*")
_MAX_NAME = 120
_MAX_STEP = 2**31 - 1
_SHOWN_ERRORS = 50


def add_points(actor: Actor, run: Run, lines: Sequence[Any]) -> dict[str, int]:
    """Write the points of a batch. Raises PermissionDenied, or ValidationProblem naming each wrong line."""
    actor.require(Scope.RUNS_WRITE, run.project_id)
    if not may_edit(actor, run):
        raise PermissionDenied("Only its owner and operators may add series to a run.")
    if len(lines) > MAX_LINES:
        raise _refuse("", "too_many", f"{len(lines)} lines.", f"At most {MAX_LINES}: send several batches.")
    agents = {"", *policies(run), *policies(run).values()}
    now, points, errors = time.time(), [], []
    for number, line in enumerate(lines):
        wrong = _errors(line, agents)
        if wrong:
            errors += [FieldError(f"/{number}{e.pointer}", e.code, e.detail, e.hint, "body") for e in wrong]
        else:
            points.append(_point(line, now))
    if errors:
        raise ValidationProblem(
            f"{len(errors)} errors; nothing was written.", errors=errors[:_SHOWN_ERRORS], extra={"wrong": len(errors)}
        )
    _refuse_flood(run, points)
    stored = put_points(store_connection(), run.no, points)
    return {"lines": len(lines), **asdict(stored)}


def _errors(line: Any, agents: set[str]) -> list[FieldError]:
    """Check one line; pointers are inside the line."""
    if not isinstance(line, Mapping):
        return [FieldError("", "wrong_type", "A line must be an object.", f"Members: {', '.join(MEMBERS)}.")]
    found = [
        FieldError(f"/{name}", "unknown_field", f"{name} is not a member of a point.", f"Legal: {', '.join(MEMBERS)}.")
        for name in line
        if name not in MEMBERS
    ]
    checks = (
        ("name", _is_name(line.get("name")), f"{USER_PREFIX} and lower-case letters, digits, . _ - /, to {_MAX_NAME}."),
        (
            "agent",
            _one_of(line.get("agent", ""), agents),
            f"Omit it, or use one of {', '.join(sorted(agents - {''}))}.",
        ),
        ("stat", _one_of(line.get("stat", "mean"), STATS), f"One of {', '.join(STATS)}."),
        ("step", _whole(line.get("step"), _MAX_STEP), f"A whole number from 0 to {_MAX_STEP}."),
        ("value", _finite(line.get("value")), "A finite number."),
        ("at", "at" not in line or _at(line["at"]) is not None, "An RFC 3339 time such as 2026-01-31T12:00:00Z."),
        ("samples", _whole(line.get("samples", 0), 2**53), "A whole number from 0: samples trained so far."),
    )
    for name, legal, hint in checks:
        if not legal:
            code = "required" if name not in line else "not_legal"
            found.append(FieldError(f"/{name}", code, f"{name} is missing or invalid.", hint))
    return found


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _MAX_NAME and _NAME.fullmatch(value) is not None


def _one_of(value: Any, legal: Collection[str]) -> bool:
    return isinstance(value, str) and value in legal


def _whole(value: Any, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def _finite(value: Any) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def _at(value: Any) -> float | None:
    if not isinstance(value, str):
        return None
    try:
        found = parse_datetime(value)
    except ValueError:
        return None
    return found.timestamp() if found is not None and found.tzinfo is not None and found.year >= 1970 else None


def _point(line: Mapping[str, Any], now: float) -> Timed[Metric]:
    at = _at(line.get("at"))
    agent, stat = str(line.get("agent", "")), str(line.get("stat", "mean"))
    return (
        now if at is None else at,
        Metric(line["name"], line["step"], float(line["value"]), agent, stat, line.get("samples", 0)),
    )


def _refuse_flood(run: Run, points: Sequence[Timed[Metric]]) -> None:
    """Refuse a batch that would bring the run's series of scripts above the most it may have."""
    known = {(s.name, s.agent, s.stat) for s in metrics.catalogue(store_connection(), run.no)}
    own = {key for key in known if key[0].startswith(USER_PREFIX)} | {(p.name, p.agent, p.stat) for _, p in points}
    if len(own) > MAX_SERIES:
        raise _refuse(
            "", "too_many_series", f"The run would have {len(own)} series of scripts.", f"At most {MAX_SERIES}."
        )


def _refuse(pointer: str, code: str, detail: str, hint: str) -> ValidationProblem:
    return ValidationProblem(detail, errors=[FieldError(pointer, code, detail, hint, "body")])
