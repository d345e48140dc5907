"""Leases that nobody ever hosted and nobody will: their node fell silent between the look at it and the grant.

Invariant: only a lease that had no host is ended here. Nothing of it runs, so its device needs no proof, and a host
that wakes up later finds it ended. One that had a host stays until its node ends it.
"""

from psycopg import Connection

from flexmarl.contracts.events import LeaseEnded
from flexmarl.store.control.inbox import put_event
from flexmarl.store.control.nodes import ALIVE_S

REASON = "its node fell silent before it took the lease"


def end_unclaimed(conn: Connection, run_id: int) -> list[int]:
    """End a run's leases that have expired without a host, on nodes that are silent; return them."""
    with conn.transaction():
        rows = conn.execute(
            """
            UPDATE store.lease l SET state = 'ended', ended_at = clock_timestamp(), reason = %s
            FROM store.device d JOIN store.node n ON n.name = d.node
            WHERE l.run_id = %s AND l.state = 'held' AND l.token IS NULL AND l.leader IS NULL AND d.id = l.device_id
              AND l.expires_at < clock_timestamp()
              AND n.heartbeat_at < clock_timestamp() - make_interval(secs => %s)
            RETURNING l.id
            """,
            [REASON, run_id, ALIVE_S],
        ).fetchall()
        for (lease_id,) in rows:
            put_event(conn, run_id, f"ended:{lease_id}", LeaseEnded(lease_id=lease_id, reason=REASON))
    return [lease_id for (lease_id,) in rows]
