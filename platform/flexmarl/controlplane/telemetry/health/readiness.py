"""Whether this installation can do its work, check by check, and which of its processes do not report.

Invariants: a check never raises; what one finds is its own. A service that fails is not ready, and so is an
installation whose driver is silent or stuck, for then no run moves. Other processes that do not report are named and
change nothing about whether requests may come here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog
from django.conf import settings
from django.core.cache import cache
from django.db import DatabaseError, connection, connections
from django.db.migrations.executor import MigrationExecutor

from flexmarl.controlplane.common import database
from flexmarl.controlplane.common.database import Purpose
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.inventory import machine
from flexmarl.controlplane.inventory.machine import Notice
from flexmarl.store import schema
from flexmarl.store.control import process_heartbeats
from flexmarl.store.control.process_heartbeats import ProcessState

log = structlog.get_logger(__name__)
ALIVE = {"status": "ok"}


@dataclass(frozen=True, slots=True)
class ReadinessReport:
    """What a look found."""

    checks: dict[str, str]
    """Check -> ok | failed | unknown: not looked at, since one before it did not answer in time."""
    processes: tuple[ProcessState, ...]
    """Those that are silent or stuck."""
    notices: tuple[Notice, ...] = ()
    """What is wrong with this machine itself, such as a full disk."""

    @property
    def status(self) -> int:
        """Status code of the answer."""
        return 200 if set(self.checks.values()) == {"ok"} else 503

    @property
    def body(self) -> dict[str, Any]:
        """The answer."""
        degraded = bool(self.processes) or any(notice.bad for notice in self.notices)
        silent = [{"process": p.kind, "node": p.node, "state": p.state, "detail": p.text} for p in self.processes]
        notices = [{"code": notice.code, "text": notice.text} for notice in self.notices]
        state = "unready" if self.status != 200 else "degraded" if degraded else "ok"
        return {"status": state, "checks": self.checks, "processes": silent, "notices": notices}


def report(checks: dict[str, str]) -> ReadinessReport:
    """Look at everything. For a thread of its own: its connection is given back at the end."""
    database.purpose.set(Purpose.HEALTH)
    try:
        return look(checks)
    finally:
        connections.close_all()


def look(checks: dict[str, str] | None = None) -> ReadinessReport:
    """Look at everything on the connection of this thread. Without any driver there is none to fail.

    `checks` takes what was found as soon as it was, for whoever does not wait for the end.
    """
    checks = {} if checks is None else checks
    for name, check in _CHECKS.items():
        checks[name] = "ok" if _passes(name, check) else "failed"
    found = _processes() if checks["store"] == "ok" else []
    drivers = [process for process in found if process.kind == "driver"]
    works = not drivers or any(process.state == "running" for process in drivers)
    checks["driver"] = "ok" if works else "failed"
    late = tuple(process for process in found if process.state != "running")
    return ReadinessReport(checks, late, tuple(machine.notices()))


def _processes() -> list[ProcessState]:
    try:
        return process_heartbeats.processes(store_connection())
    except DatabaseError as error:  # it answered the checks before: the next look tells more
        log.warning("not_ready", check="driver", error=str(error))
        return []


def unanswered(after_s: float, found: Mapping[str, str]) -> ReadinessReport:
    """Return the report of a look that did not end in time. Only the check that is under way is to blame."""
    left = [name for name in (*_CHECKS, "driver") if name not in found]
    log.warning("not_ready", check=left[0] if left else "", error=f"no answer within {after_s:g} s")
    checks = {**found, **{name: "unknown" if number else "failed" for number, name in enumerate(left)}}
    return ReadinessReport(checks, (), tuple(machine.notices()))


def _passes(name: str, check: Callable[[], None]) -> bool:
    try:
        check()
    except Exception as error:  # each service's client has errors of its own; any of them means not ready
        log.warning("not_ready", check=name, error=str(error))
        return False
    return True


def _database() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


def _migrations() -> None:
    executor = MigrationExecutor(connection)
    missing = executor.migration_plan(executor.loader.graph.leaf_nodes())
    if missing:
        raise DatabaseError(f"{len(missing)} migrations are not applied")


def _store() -> None:
    schema.check(store_connection())


def _broker() -> None:
    if settings.BROKER_URL:
        cache.set("readyz", 1, timeout=10)


_CHECKS: dict[str, Callable[[], None]] = {
    "database": _database,
    "migrations": _migrations,
    "store": _store,
    "broker": _broker,
}
