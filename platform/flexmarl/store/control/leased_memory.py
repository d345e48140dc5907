"""Memory as it is leased with devices: what is left of it, and the hold of a grant on its part.

A room is a memory: a GPU's own, or a host's, which all its CPU devices share. A room of unknown size has no end.
"""

from collections.abc import Mapping

from psycopg import Connection


class MemoryLeased(Exception):
    """A grant would lease more of a memory than there is."""


def left(conn: Connection) -> dict[str, int]:
    """Return the bytes of each room that nobody has leased; rooms of unknown size are left out."""
    rows = conn.execute(
        """
        SELECT CASE WHEN d.kind = 'cpu' THEN d.node ELSE d.id END AS room,
          (sum(d.memory_bytes) - coalesce(sum(l.leased), 0))::bigint
        FROM store.device d LEFT JOIN LATERAL (
          SELECT sum(memory_bytes) AS leased FROM store.lease WHERE device_id = d.id AND state <> 'ended'
        ) l ON true
        WHERE d.state <> 'lost' GROUP BY room HAVING sum(d.memory_bytes) > 0
        """
    ).fetchall()
    return {room: int(count) for room, count in rows}


def room_of(kind: str, node: str, device_id: str) -> str:
    """Name the room of a device."""
    return node if kind == "cpu" else device_id


def take(conn: Connection, memory: Mapping[str, int]) -> None:
    """Lease bytes with devices that were leased just now. Raises MemoryLeased.

    Whoever grants on the same node waits here for the other's commit.
    """
    conn.execute(
        "SELECT 1 FROM store.node WHERE name IN (SELECT node FROM store.device WHERE id = ANY(%s)) "
        "ORDER BY name FOR NO KEY UPDATE",
        [list(memory)],
    )
    for device_id, count in memory.items():
        conn.execute(
            "UPDATE store.lease SET memory_bytes = %s WHERE device_id = %s AND state <> 'ended' AND beside IS NULL",
            [count, device_id],
        )
    rows = conn.execute("SELECT kind, node, id FROM store.device WHERE id = ANY(%s)", [list(memory)]).fetchall()
    rooms = left(conn)
    if any(rooms.get(room_of(*row), 0) < 0 for row in rows):
        raise MemoryLeased
