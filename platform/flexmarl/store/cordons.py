"""An administrator's choices about nodes and devices: cordons and pools. They survive registrations.

A cordon only keeps new leases away; what runs there goes on.
"""

from psycopg import Connection


def cordon_node(conn: Connection, name: str, cordoned: bool) -> bool:
    """Keep new leases off a node, or let them on again. False when there is no such node."""
    state = "cordoned" if cordoned else "ready"
    return conn.execute("UPDATE store.node SET state = %s WHERE name = %s", [state, name]).rowcount == 1


def cordon_device(conn: Connection, device_id: str, cordoned: bool) -> bool:
    """Keep new leases off a device, or let them on again. False when there is none or it is lost."""
    state = "cordoned" if cordoned else "ready"
    query = "UPDATE store.device SET state = %s WHERE id = %s AND state <> 'lost'"
    return conn.execute(query, [state, device_id]).rowcount == 1


def move_device(conn: Connection, device_id: str, pool: str) -> bool:
    """Put a device into a pool. A lease it holds goes on. False when there is no such device."""
    return conn.execute("UPDATE store.device SET pool = %s WHERE id = %s", [pool, device_id]).rowcount == 1
