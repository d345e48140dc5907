"""The end of a run whose core cannot be rebuilt or trusted: its row says so, its devices go back, others go on."""

import structlog
from psycopg import Connection

from flexmarl.contracts.events import Event, RunGivenUp, RunVerb
from flexmarl.contracts.live import Progress
from flexmarl.contracts.status import TERMINAL, RunReason, RunStatus
from flexmarl.store.control import attempts, decisions, inbox, leases, runs
from flexmarl.store.control.decisions import LogEntry, StoredDecision
from flexmarl.store.control.runs import RunLease

log = structlog.get_logger(__name__)


def abandon(conn: Connection, lease: RunLease, text: str, reason: RunReason = RunReason.ORCHESTRATOR_ERROR) -> None:
    """Fail a run without its core. Raises FenceLost when another driver holds it."""
    with conn.transaction():
        stored = runs.load_run(conn, lease.run_id)
        now = max(runs.database_now(conn), runs.last_event_at(conn, lease.run_id))
        decision = StoredDecision(
            entries=[
                LogEntry(stored.seq + 1, now, _given_up(reason, text)),
                *_left_behind(conn, lease.run_id, stored.seq + 1, now, reason, text),
            ],
            status=RunStatus.FAILED,
            reason=reason,
            reason_text=text,
            epoch=stored.epoch + (stored.status not in TERMINAL),
            step=stored.step,
            progress=Progress.model_validate(stored.progress or {}),
            deadline=None,
        )
        decisions.append(conn, lease, decision)
        decisions.void_all(conn, lease.run_id)
        attempts.close(conn, lease.run_id, decision.reason, text, stored.step)
        leases.release_run(conn, lease.run_id)
        runs.release_run(conn, lease)
    log.error("run_abandoned", run_id=lease.run_id, reason=reason, text=text)


def _left_behind(conn: Connection, run_id: int, seq: int, at: float, reason: RunReason, text: str) -> list[LogEntry]:
    """Take what waits, to be written down with the end: nothing else would ever take it.

    A verb had no effect, so it stands in the log as what it met: told to the core later, it must not begin anything.
    """
    try:
        with conn.transaction():
            waiting = inbox.take_events(conn, run_id)
    except ValueError as unreadable:
        log.error("unreadable_facts_dropped", run_id=run_id, cause=str(unreadable)[:500])
        inbox.drop_events(conn, run_id)
        return []
    return [
        LogEntry(seq + offset, at, _without_effect(taken.event, reason, text), taken.producer_key)
        for offset, taken in enumerate(waiting, start=1)
    ]


def _given_up(reason: RunReason, text: str, fact: str = "") -> RunGivenUp:
    differs = reason is RunReason.STORE_DIFFERS
    return RunGivenUp(cause="store_differs" if differs else "orchestrator_error", text=text, fact=fact)


def _without_effect(event: Event, reason: RunReason, text: str) -> Event:
    return _given_up(reason, text, event.model_dump_json()) if isinstance(event, RunVerb) else event
