"""An administrator's choices about nodes and devices: cordons, drains, notes, pools. They survive registrations.

A cordon only keeps new leases away; what runs there goes on. A drain does so too and says what becomes of the leases:
`wait` until the runs end, `move` them to other devices, or `stop` the runs at a deadline. `drained` is not stored: it
is `draining` with no lease left. Every change raises `ruled`, the version that an administrator must have read.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from psycopg import Connection, sql

SILENT_S = 90.0
"""A node without a heartbeat for longer is taken for gone: engines move away from it, as if it were drained."""
Kind = Literal["node", "device"]
_KEY = {"node": "name", "device": "id"}


class DrainMode(StrEnum):
    WAIT = "wait"
    MOVE = "move"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class CordonRow:
    """What an administrator decided about a node or device."""

    state: str
    """ready | cordoned | draining; of a device also lost."""
    note: str
    drain_mode: str
    drain_deadline: float | None
    drain_by: str
    drain_since: float | None
    ruled: int
    pool: str = ""
    """Of a device."""


@dataclass(frozen=True, slots=True)
class Drained:
    """A lease on a device that is being emptied, with the strictest rule over it."""

    lease_id: int
    """Of an engine of several devices the one that its child serves, whichever of them is emptied."""
    run_id: int
    device_id: str
    where: str
    """The node or device that is drained."""
    mode: DrainMode
    deadline: float | None
    by: str
    """Who drains it; empty: nobody does, its node is silent."""
    since: float

    @property
    def reason(self) -> str:
        """Say why the lease shall not stay."""
        if self.by:
            return f"{self.where} is being drained by {self.by}"
        return f"node {self.where} has sent no heartbeat for more than {SILENT_S:g} s"


def ruling(conn: Connection, kind: Kind, key: str) -> CordonRow | None:
    """Read what holds for a node or device now, and keep others from changing it until the transaction ends."""
    pool = sql.SQL("pool" if kind == "device" else "''")
    query = sql.SQL(
        """
        SELECT state, note, drain_mode, extract(epoch FROM drain_deadline)::float8, drain_by,
          extract(epoch FROM drain_since)::float8, ruled, {pool}
        FROM {table} WHERE {key} = %s FOR UPDATE
        """
    ).format(pool=pool, **_names(kind))
    row = conn.execute(query, [key]).fetchone()
    return None if row is None else CordonRow(*row)


def cordon(conn: Connection, kind: Kind, key: str) -> None:
    """Keep new leases away; a drain under way ends."""
    _rule(conn, kind, key, "cordoned")


def enable(conn: Connection, kind: Kind, key: str) -> None:
    """Let new leases on again; a cordon or drain ends."""
    _rule(conn, kind, key, "ready")


def drain(conn: Connection, kind: Kind, key: str, mode: DrainMode, *, deadline: float | None, by: str) -> None:
    """Keep new leases away and empty what is held."""
    _rule(conn, kind, key, "draining", mode.value, deadline, by)


def set_note(conn: Connection, kind: Kind, key: str, note: str) -> None:
    """Say something about a node or device to whoever looks at it."""
    query = sql.SQL("UPDATE {table} SET note = %s, ruled = ruled + 1 WHERE {key} = %s").format(**_names(kind))
    conn.execute(query, [note, key])


def move_device(conn: Connection, device_id: str, pool: str) -> bool:
    """Put a device into a pool. A lease it holds goes on. False when there is no such device."""
    query = "UPDATE store.device SET pool = %s, ruled = ruled + 1 WHERE id = %s"
    return conn.execute(query, [pool, device_id]).rowcount == 1


def drained_leases(conn: Connection, runs: list[int] | None = None) -> list[Drained]:
    """List the leases (of some runs) that somebody drains. A device's own drain goes before its node's."""
    rows = conn.execute(
        """
        SELECT coalesce(l.leader, l.id), l.run_id, d.id,
          CASE WHEN d.state = 'draining' THEN d.id ELSE n.name END,
          CASE WHEN d.state = 'draining' THEN d.drain_mode ELSE n.drain_mode END,
          extract(epoch FROM CASE WHEN d.state = 'draining' THEN d.drain_deadline ELSE n.drain_deadline END)::float8,
          CASE WHEN d.state = 'draining' THEN d.drain_by ELSE n.drain_by END,
          extract(epoch FROM CASE WHEN d.state = 'draining' THEN d.drain_since ELSE n.drain_since END)::float8
        FROM store.lease l JOIN store.device d ON d.id = l.device_id JOIN store.node n ON n.name = d.node
        WHERE l.state = 'held' AND (d.state = 'draining' OR n.state = 'draining')
          AND (%(runs)s::bigint[] IS NULL OR l.run_id = ANY(%(runs)s)) ORDER BY 1, l.id
        """,
        {"runs": runs},
    ).fetchall()
    return [
        Drained(lease, run, device, where, DrainMode(mode), deadline, by, since)
        for lease, run, device, where, mode, deadline, by, since in rows
    ]


def engines_of_silent_nodes(conn: Connection, runs: list[int]) -> list[Drained]:
    """List the leases of engines of some runs whose nodes are taken for gone.

    Engines hold nothing that is not elsewhere. What a trainer made last may lie on its node alone: it moves when
    somebody drains the node, and with it an engine that shares its device.
    """
    rows = conn.execute(
        """
        SELECT l.id, l.run_id, d.id, n.name, extract(epoch FROM n.heartbeat_at)::float8
        FROM store.lease l JOIN store.device d ON d.id = l.device_id JOIN store.node n ON n.name = d.node
        WHERE l.state = 'held' AND l.use = 'engine' AND l.leader IS NULL AND l.run_id = ANY(%s)
          AND n.heartbeat_at < clock_timestamp() - make_interval(secs => %s)
          AND NOT EXISTS (SELECT 1 FROM store.lease t WHERE t.device_id = l.device_id AND t.use = 'trainer'
            AND t.state = 'held')
        ORDER BY l.id
        """,
        [runs, SILENT_S],
    ).fetchall()
    return [Drained(lease, run, device, node, DrainMode.MOVE, None, "", at) for lease, run, device, node, at in rows]


def _rule(
    conn: Connection, kind: Kind, key: str, state: str, mode: str = "", deadline: float | None = None, by: str = ""
) -> None:
    query = sql.SQL(
        """
        UPDATE {table} SET state = %(state)s, drain_mode = %(mode)s, drain_deadline = to_timestamp(%(deadline)s),
          drain_by = %(by)s, drain_since = CASE WHEN %(mode)s = '' THEN NULL ELSE clock_timestamp() END,
          ruled = ruled + 1
        WHERE {key} = %(id)s
        """
    ).format(**_names(kind))
    conn.execute(query, {"state": state, "mode": mode, "deadline": deadline, "by": by, "id": key})


def _names(kind: Kind) -> dict[str, sql.Composable]:
    return {"table": sql.Identifier("store", kind), "key": sql.Identifier(_KEY[kind])}
