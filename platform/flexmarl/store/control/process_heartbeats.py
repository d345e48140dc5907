"""Heartbeats of the platform's processes as rows, for readiness, doctor and pages, across machines.

Invariants: one row per process, or per place where a machine runs one process of a kind, so that a successor replaces
the row of the one before. Ages are computed by the database's clock alone. A process that ends in order removes its
row; one that was silent for `FORGOTTEN_S` is history and no longer listed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import Connection

from flexmarl.store.node_operations import for_nodes, own_node

SILENT_S = 8.0
"""A process that has not reported for longer is silent: stopped, hung, or ended without a successor."""
FORGOTTEN_S = 900.0


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """Who reports."""

    kind: str
    node: str
    place: str
    """Empty where a machine may run several processes of the kind."""
    pid: int
    started: float
    """Seconds since the epoch."""

    @property
    def id(self) -> str:
        """Key of the row."""
        return f"{self.place}/{self.kind}" if self.place else f"{self.node}/{self.kind}/{self.pid}"


@dataclass(frozen=True, slots=True)
class ProcessState:
    """What is known of a process now."""

    kind: str
    node: str
    pid: int
    started_at: float
    silent_s: float
    stalled_loop: str
    stalled_s: float

    @property
    def state(self) -> str:
        """`running`, `stuck` (it reports, but one of its loops does not move) or `silent`."""
        if self.silent_s > SILENT_S:
            return "silent"
        return "stuck" if self.stalled_loop else "running"

    @property
    def text(self) -> str:
        """The state in words."""
        if self.state == "silent":
            return f"no heartbeat for {self.silent_s:.0f} s"
        if self.state == "stuck":
            return f"its {self.stalled_loop} has not moved for {self.stalled_s:.0f} s"
        return "running"


def put_all(conn: Connection, calls: Sequence[Mapping[str, Any]]) -> list[None]:
    """Do many calls of `put` in one statement; of two for one row the last one counts."""
    last = {call["process"].id: call for call in calls}
    found = [last[row] for row in sorted(last)]  # in one order, so that two such statements never wait for each other
    of = [call["process"] for call in found]
    conn.execute(
        """
        INSERT INTO store.process_heartbeat (id, kind, node, place, pid, started_at, stalled_loop, stalled_s)
        SELECT id, kind, node, place, pid, to_timestamp(started), stalled_loop, stalled_s
        FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::int[], %s::float8[], %s::text[], %s::float8[])
          AS p(id, kind, node, place, pid, started, stalled_loop, stalled_s)
        ON CONFLICT (id) DO UPDATE SET kind = excluded.kind, node = excluded.node, place = excluded.place,
          pid = excluded.pid, started_at = excluded.started_at, heard_at = clock_timestamp(),
          stalled_loop = excluded.stalled_loop, stalled_s = excluded.stalled_s
        """,
        [
            sorted(last), [p.kind for p in of], [p.node for p in of], [p.place for p in of],
            [p.pid for p in of], [p.started for p in of], [call["stalled_loop"] for call in found],
            [call["stalled_s"] for call in found],
        ],
    )  # fmt: skip
    return [None] * len(calls)


@for_nodes(own_node("process.node"), many=put_all)
def put(conn: Connection, process: ProcessFacts, stalled_loop: str, stalled_s: float) -> None:
    """Report that a process lives; `stalled_loop` names a loop that has not moved within its bound."""
    put_all(conn, [{"process": process, "stalled_loop": stalled_loop, "stalled_s": stalled_s}])


@for_nodes(own_node("process.node"))
def remove(conn: Connection, process: ProcessFacts) -> None:
    """Remove the row of a process that ends in order; a successor's row stays."""
    conn.execute("DELETE FROM store.process_heartbeat WHERE id = %s AND pid = %s", [process.id, process.pid])


@for_nodes(own_node("node"))
def pids_of(conn: Connection, kind: str, node: str) -> list[int]:
    """List the processes of a kind that have a row on a host."""
    rows = conn.execute("SELECT pid FROM store.process_heartbeat WHERE kind = %s AND node = %s", [kind, node])
    return [int(pid) for (pid,) in rows.fetchall()]


@for_nodes(own_node("node"))
def bury(conn: Connection, kind: str, node: str, pids: list[int]) -> None:
    """Remove the rows of processes that are known to have ended; one that lives writes its row again."""
    query = "DELETE FROM store.process_heartbeat WHERE kind = %s AND node = %s AND pid = ANY(%s)"
    conn.execute(query, [kind, node, pids])


def clear(conn: Connection, place: str) -> None:
    """Remove the rows of a place before its processes start, and those that are long forgotten."""
    conn.execute(
        "DELETE FROM store.process_heartbeat WHERE (place <> '' AND place = %s) "
        "OR heard_at < clock_timestamp() - make_interval(secs => %s)",
        [place, FORGOTTEN_S],
    )


def processes(conn: Connection) -> list[ProcessState]:
    """List the processes that report, or did until lately."""
    rows = conn.execute(
        """
        SELECT kind, node, pid, extract(epoch FROM started_at)::float8,
          greatest(0, extract(epoch FROM clock_timestamp() - heard_at))::float8, stalled_loop, stalled_s::float8
        FROM store.process_heartbeat WHERE heard_at > clock_timestamp() - make_interval(secs => %s)
        ORDER BY node, kind, pid
        """,
        [FORGOTTEN_S],
    ).fetchall()
    return [ProcessState(*row) for row in rows]
