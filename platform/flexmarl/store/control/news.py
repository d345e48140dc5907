"""Work that waits for nodes which no broker tells of it: what is open, or was taken by somebody who fell silent.

A look is made for all nodes at once, so its statements are as many for a thousand as for one.
"""

from collections.abc import Collection
from dataclasses import dataclass

from psycopg import Connection

AT_ONCE = 200
"""Of one queue in one look; what is left is there at the next."""

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


def open_in_queues(conn: Connection, queues: Collection[str] | None = None) -> list[WaitingWork]:
    """List commands of queues, or of all (None), that somebody should take."""
    rows = conn.execute(
        f"""
        SELECT queue, kind, run_id, no FROM (
          SELECT c.queue, c.kind, c.run_id, c.no, row_number() OVER (PARTITION BY c.queue ORDER BY c.run_id, c.no) AS n
          FROM store.command c JOIN store.run_state r USING (run_id)
          WHERE c.queue <> '' AND (%(queues)s::text[] IS NULL OR c.queue = ANY(%(queues)s)) AND {_WAITS} AND {_LIVE}
        ) waiting WHERE n <= {AT_ONCE} ORDER BY run_id, no
        """.encode(),
        {"queues": None if queues is None else list(queues)},
    ).fetchall()
    return [WaitingWork(*row) for row in rows]


def open_rewards(conn: Connection, queues: Collection[str] | None = None) -> list[WaitingWork]:
    """List rewards that somebody should compute, of plays of the pools of queues `reward.POOL`, or of all (None)."""
    rows = conn.execute(
        f"""
        SELECT queue, 'score_episode', run_id, no FROM (
          SELECT 'reward.' || substr(c.queue, 9) AS queue, t.run_id, t.no,
            row_number() OVER (PARTITION BY c.queue ORDER BY t.run_id, t.no) AS n
          FROM store.reward_task t JOIN store.command c ON c.run_id = t.run_id AND c.no = t.command_no
          WHERE c.queue LIKE 'rollout.%%' AND c.status = 'taken'
            AND (%(queues)s::text[] IS NULL OR 'reward.' || substr(c.queue, 9) = ANY(%(queues)s))
            AND (t.status = 'open' OR (t.status = 'taken' AND t.deadline < clock_timestamp()))
            AND (t.takes = 0 OR t.next_send <= clock_timestamp())
        ) waiting WHERE n <= {AT_ONCE} ORDER BY run_id, no
        """.encode(),
        {"queues": None if queues is None else list(queues)},
    ).fetchall()
    return [WaitingWork(*row) for row in rows]


def waiting_nodes(conn: Connection) -> list[str]:
    """Name the nodes without an address whose children have a command to carry out."""
    rows = conn.execute(
        """
        SELECT DISTINCT d.node FROM store.command c
        JOIN store.lease l ON l.id = c.lease_id AND l.state = 'held'
        JOIN store.device d ON d.id = l.device_id JOIN store.node n ON n.name = d.node AND n.address = ''
        WHERE c.route = 'node' AND c.status IN ('open', 'taken')
          AND (c.status = 'open' OR c.deadline < clock_timestamp())
        """
    ).fetchall()
    return [node for (node,) in rows]
