"""How much an installation keeps: limits by age and by size, and which runs they let go next.

Invariant: only data of ended runs goes, of those that ended first in front; drafts and living runs are never touched
by a limit. Curves, episodes, events and checkpoints go with their run alone, which an operator has to ask for; a run
with a pinned checkpoint stays. 0 is no limit.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from psycopg import Connection

from flexmarl.contracts.status import TERMINAL
from flexmarl.store.control import deletions
from flexmarl.store.data import retention
from flexmarl.store.reads import storage
from flexmarl.store.telemetry import log_retention

DAY_S = 86_400.0
GIB = 2**30
ENDED = tuple(status.value for status in TERMINAL)
RUNS = "runs"
"""Whole runs: what no other limit covers goes with them."""


@dataclass(frozen=True, slots=True)
class RetentionLimit:
    """A limit on some kinds of data of ended runs."""

    name: str
    kinds: tuple[str, ...]
    days: int
    bytes: int
    days_setting: str
    size_setting: str


def limits() -> tuple[RetentionLimit, ...]:
    """Return the limits that are set."""
    return (
        RetentionLimit(
            storage.SAMPLES, (storage.SAMPLES, storage.PAYLOADS), settings.KEEP_SAMPLES_DAYS,
            settings.KEEP_SAMPLES_GIB * GIB, "FLEXMARL_KEEP_SAMPLES_DAYS", "FLEXMARL_KEEP_SAMPLES_GIB",
        ),
        RetentionLimit(
            storage.LOG, (storage.LOG,), settings.KEEP_LOGS_DAYS, settings.KEEP_LOGS_GIB * GIB,
            "FLEXMARL_KEEP_LOGS_DAYS", "FLEXMARL_KEEP_LOGS_GIB",
        ),
        RetentionLimit(
            RUNS, (storage.EPISODES, storage.EVENTS, storage.SERIES, storage.CHECKPOINTS), settings.KEEP_RUNS_DAYS,
            settings.KEEP_RUNS_GIB * GIB, "FLEXMARL_KEEP_RUNS_DAYS", "FLEXMARL_KEEP_RUNS_GIB",
        ),
    )  # fmt: skip


def due(conn: Connection, limit: RetentionLimit) -> list[int]:
    """List the runs whose data of a limit's kind goes now: too old, then those that ended first until the rest fits."""
    old = _older(conn, limit, limit.days * DAY_S) if limit.days else []
    return [*old, *(run_id for run_id in beyond(conn, limit) if run_id not in set(old))]


def beyond(conn: Connection, limit: RetentionLimit) -> list[int]:
    """List the ended runs, oldest end first, whose data has to go for the rest to fit."""
    if not limit.bytes:
        return []
    excess, found = storage.total(conn, limit.kinds) - limit.bytes, []
    still = set(_older(conn, limit, 0.0))
    for run_id, size in storage.by_end(conn, limit.kinds, ENDED):
        if excess <= 0:
            break
        if run_id in still:
            found.append(run_id)
            excess -= size
    return found


def upcoming(conn: Connection, limit: RetentionLimit, most: int) -> list[tuple[int, int]]:
    """List the ended runs that a limit lets go next: (run, bytes), oldest end first."""
    if not limit.days and not limit.bytes:
        return []
    still = set(_older(conn, limit, 0.0))
    return [(run_id, size) for run_id, size in storage.by_end(conn, limit.kinds, ENDED) if run_id in still][:most]


def _older(conn: Connection, limit: RetentionLimit, seconds: float) -> list[int]:
    if limit.name == storage.LOG:
        return log_retention.due(conn, seconds)
    if limit.name == RUNS:
        return deletions.due(conn, seconds)
    return retention.due(conn, seconds)


def as_row(limit: RetentionLimit, used: Mapping[str, int]) -> dict[str, Any]:
    """Return a limit as JSON values, with what its kinds take."""
    return {
        "name": limit.name,
        "kinds": list(limit.kinds),
        "days": limit.days,
        "bytes": limit.bytes,
        "used_bytes": sum(used.get(kind, 0) for kind in limit.kinds),
        "settings": [limit.days_setting, limit.size_setting],
    }
