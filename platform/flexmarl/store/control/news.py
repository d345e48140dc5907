"""Work that waits for nodes which no broker tells of it: what is open, or was taken by somebody who fell silent."""

from dataclasses import dataclass

from psycopg import Connection

AT_ONCE = 200
"""Of one look; what is left is there at the next."""

_WAITS = """(c.status = 'open' OR (c.status = 'taken' AND c.deadline < clock_timestamp()))
  AND c.status IN ('open', 'taken')"""
"""The second line lets the planner use the index of commands that are not done."""
_LIVE = "(c.kind = 'host_lease' OR (c.epoch = r.epoch AND r.status NOT IN ('failed', 'killed')))"


@dataclass(frozen=True, slots=True)
class WaitingWork:
    queue: str
    kind: str
    run_id: int
    no: int


def open_in_queue(conn: Connection, queue: str) -> list[WaitingWork]:
    """List commands of a queue that somebody should take."""
    return _commands(conn, [queue])


def open_for_devices(conn: Connection, node: str) -> list[WaitingWork]:
    """List leases of a node's devices that somebody should host."""
    devices = conn.execute("SELECT id FROM store.device WHERE node = %s", [node]).fetchall()
    return _commands(conn, [f"device.{device}" for (device,) in devices])


def _commands(conn: Connection, queues: list[str]) -> list[WaitingWork]:
    rows = conn.execute(
        f"""
        SELECT c.queue, c.kind, c.run_id, c.no FROM store.command c JOIN store.run_state r USING (run_id)
        WHERE c.queue = ANY(%s) AND {_WAITS} AND {_LIVE} ORDER BY c.run_id, c.no LIMIT {AT_ONCE}
        """.encode(),
        [queues],
    ).fetchall()
    return [WaitingWork(*row) for row in rows]


def open_rewards(conn: Connection, pool: str) -> list[WaitingWork]:
    """List rewards of plays of a pool that somebody should compute."""
    rows = conn.execute(
        f"""
        SELECT 'reward.' || %(pool)s, 'score_episode', t.run_id, t.no
        FROM store.reward_task t JOIN store.command c ON c.run_id = t.run_id AND c.no = t.command_no
        WHERE c.queue = 'rollout.' || %(pool)s AND c.status = 'taken'
          AND (t.status = 'open' OR (t.status = 'taken' AND t.deadline < clock_timestamp()))
          AND (t.takes = 0 OR t.next_send <= clock_timestamp())
        ORDER BY t.run_id, t.no LIMIT {AT_ONCE}
        """.encode(),
        {"pool": pool},
    ).fetchall()
    return [WaitingWork(*row) for row in rows]


def waits_on_node(conn: Connection, node: str) -> bool:
    """Tell whether children of a node have a command to carry out."""
    row = conn.execute(
        """
        SELECT 1 FROM store.lease l JOIN store.device d ON d.id = l.device_id
        JOIN store.command c ON c.lease_id = l.id AND c.route = 'node' AND c.status IN ('open', 'taken')
        WHERE d.node = %s AND l.state = 'held'
          AND (c.status = 'open' OR c.deadline < clock_timestamp()) LIMIT 1
        """,
        [node],
    ).fetchone()
    return row is not None
