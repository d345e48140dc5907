"""What drains, and nodes that are gone, mean for the runs of this driver: facts into their logs, never twice.

Invariants: the store says what is drained or silent, the core decides what follows; a fact has a key made of the lease
and the drain, or the last heartbeat, so looking again is harmless. Under `stop` a run trains on until its deadline is
near, is then asked to stop after the open step, and is killed when it still runs at the deadline.
"""

from collections.abc import Iterable, Mapping

import structlog
from psycopg import Connection

from flexmarl.contracts.events import Event, LeaseRecalled, RunVerb, Verb
from flexmarl.contracts.status import RunStatus
from flexmarl.controlplane.runs.driver.session import RunSession
from flexmarl.store.control import cordons, inbox
from flexmarl.store.control.cordons import Drained, DrainMode

log = structlog.get_logger(__name__)

MIN_GRACE_S = 30.0
GRACE_STEPS = 3.0
"""A run is asked to stop so many of its steps before the deadline, so that the open step ends before it."""
_STOPPABLE = frozenset({RunStatus.STARTING, RunStatus.RUNNING, RunStatus.PAUSING, RunStatus.PAUSED, RunStatus.RESUMING})


def grace_s(step_seconds: float | None) -> float:
    """Return how long before its deadline a run is asked to stop."""
    return max(MIN_GRACE_S, GRACE_STEPS * (step_seconds or 0.0))


def request_drains(
    conn: Connection, sessions: Mapping[int, RunSession], now: float, *, trusted: bool = True
) -> set[int]:
    """Put what drains ask of the runs held here into their inboxes; returns the runs that were told something.

    `trusted`: whether the database has been up for long enough, so that a silent node is silent of itself.
    """
    drained = cordons.drained_leases(conn, list(sessions)) if sessions else []
    if trusted:
        drained += cordons.engines_of_silent_nodes(conn, list(sessions))
    by_run: dict[int, list[Drained]] = {}
    for one in drained:
        by_run.setdefault(one.run_id, []).append(one)
    notified = set()
    for run_id, session in sessions.items():
        own = by_run.get(run_id, [])
        for key, event in (*_recalls(session, own), *_stops(session, own, now)):
            if inbox.put_event(conn, run_id, key, event):
                notified.add(run_id)
                log.info("drain_told", run_id=run_id, key=key)
    return notified


def _recalls(session: RunSession, drained: Iterable[Drained]) -> list[tuple[str, Event]]:
    """Recall what shall move, and let stay what was recalled for a reason that is over."""
    moving = {one.lease_id: one for one in drained if one.mode is DrainMode.MOVE}
    facts: list[tuple[str, Event]] = []
    for lease in session.core.state.fleet.leases.values():
        one = moving.get(lease.lease_id)
        if one is not None and not lease.recalled and not lease.releasing:
            event = LeaseRecalled(lease_id=one.lease_id, reason=one.reason)
            facts.append((f"recall:{one.lease_id}:{one.since}", event))
        elif one is None and lease.recalled and not lease.releasing:
            event = LeaseRecalled(lease_id=lease.lease_id, reason="its device may stay", withdrawn=True)
            facts.append((f"keep:{lease.lease_id}:{session.seq}", event))
    return facts


def _stops(session: RunSession, drained: Iterable[Drained], now: float) -> list[tuple[str, Event]]:
    due = [one for one in drained if one.mode is DrainMode.STOP and one.deadline is not None]
    if not due:
        return []
    first = min(due, key=lambda one: one.deadline or 0.0)
    deadline, status = first.deadline or 0.0, session.core.state.lifecycle.status
    reason = first.reason
    if now >= deadline and (status in _STOPPABLE or status is RunStatus.STOPPING):
        text = f"{reason}; the deadline has passed"
        return [(f"drain-kill:{first.lease_id}:{first.since}", RunVerb(verb=Verb.KILL, actor=first.by, reason=text))]
    if now >= deadline - grace_s(session.core.progress().step_seconds) and status in _STOPPABLE:
        return [(f"drain-stop:{first.lease_id}:{first.since}", RunVerb(verb=Verb.STOP, actor=first.by, reason=reason))]
    return []
