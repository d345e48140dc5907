"""The end of a run whose core cannot even be rebuilt: its row says so, its devices go back, the driver goes on."""

import structlog
from psycopg import Connection

from flexmarl.contracts.events import Event, RunGivenUp, RunVerb
from flexmarl.contracts.live import Progress
from flexmarl.contracts.status import TERMINAL, RunReason, RunStatus
from flexmarl.store import attempts, decisions, inbox, leases, runs
from flexmarl.store.decisions import LogEntry, StoredDecision
from flexmarl.store.runs import RunLease

log = structlog.get_logger(__name__)


def abandon(conn: Connection, lease: RunLease, cause: str) -> None:
    """Fail a run without its core. Raises FenceLost when another driver holds it."""
    text = f"the orchestrator cannot go on: {cause[:500]}; report the log of this run's driver"
    with conn.transaction():
        stored = runs.load_run(conn, lease.run_id)
        now = max(runs.database_now(conn), runs.last_event_at(conn, lease.run_id))
        decision = StoredDecision(
            entries=[
                LogEntry(stored.seq + 1, now, RunGivenUp(cause="orchestrator_error", text=text)),
                *_left_behind(conn, lease.run_id, stored.seq + 1, now, text),
            ],
            status=RunStatus.FAILED,
            reason=RunReason.ORCHESTRATOR_ERROR,
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
    log.error("run_abandoned", run_id=lease.run_id, cause=cause)


def _left_behind(conn: Connection, run_id: int, seq: int, at: float, text: str) -> list[LogEntry]:
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
        LogEntry(seq + offset, at, _without_effect(taken.event, text), taken.producer_key)
        for offset, taken in enumerate(waiting, start=1)
    ]


def _without_effect(event: Event, text: str) -> Event:
    if not isinstance(event, RunVerb):
        return event
    return RunGivenUp(cause="orchestrator_error", text=text, fact=event.model_dump_json())
