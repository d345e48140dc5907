"""Reports of what rollout workers ask engines for, on their way to the driver.

Invariant: at most one report of a worker waits in the inbox, however long nobody reads it.
"""

from psycopg import Connection

from flexmarl.contracts.events import DemandReported
from flexmarl.store.control.inbox import put_event
from flexmarl.store.node_operations import for_nodes, run_with_work


@for_nodes(run_with_work("run_id"))
def report(conn: Connection, run_id: int, number: int, event: DemandReported) -> bool:
    """Queue a worker's report, unless its last one still waits; returns whether it was queued."""
    prefix = f"demand:{event.worker}:"
    with conn.transaction():
        waits = conn.execute(
            "SELECT 1 FROM store.inbox WHERE run_id = %s AND starts_with(producer_key, %s) LIMIT 1", [run_id, prefix]
        ).fetchone()
        return waits is None and put_event(conn, run_id, f"{prefix}{number}", event)
