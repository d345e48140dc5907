"""The end of a run whose core cannot even be rebuilt: its row says so, its devices go back, the driver goes on."""

import structlog
from psycopg import Connection

from flexmarl.contracts.live import Progress
from flexmarl.contracts.status import RunReason, RunStatus
from flexmarl.store import decisions, leases, runs
from flexmarl.store.decisions import StoredDecision
from flexmarl.store.runs import RunLease

log = structlog.get_logger(__name__)


def abandon(conn: Connection, lease: RunLease, cause: str) -> None:
    """Fail a run without its core. Raises FenceLost when another driver holds it."""
    text = f"the orchestrator cannot go on: {cause[:500]}; report the log of this run's driver"
    with conn.transaction():
        stored = runs.load_run(conn, lease.run_id)
        decision = StoredDecision(
            entries=(),
            status=RunStatus.FAILED,
            reason=RunReason.ORCHESTRATOR_ERROR,
            reason_text=text,
            epoch=stored.epoch + 1,
            step=stored.step,
            progress=Progress.model_validate(stored.progress or {}),
            deadline=None,
        )
        decisions.append(conn, lease, decision)
        leases.release_run(conn, lease.run_id)
    log.error("run_abandoned", run_id=lease.run_id, cause=cause)
