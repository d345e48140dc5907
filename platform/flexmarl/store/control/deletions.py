"""Deletion of whole runs: asked for by people, carried out by the janitor, finished by the nodes.

Invariants: a deletion is a row that is there before anything goes, so whoever comes next goes on with it. A run's rows
leave in batches of their own transactions, its `run_state` last; nothing ever waits for a long one. Files go after
the rows: those of nodes by the nodes, which remove only what a row of `run_deletion` names, never what they do not
know. A deletion has ended once every node that was registered then has said that nothing is left on its disks.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from uuid import UUID

from psycopg import Connection, sql

from flexmarl.contracts.status import TERMINAL, RunStatus
from flexmarl.store import partitions
from flexmarl.store.errors import StoreError
from flexmarl.store.node_operations import anyone, for_nodes, own_node

BATCH = 5000
"""Rows that one transaction deletes."""
BY_RUN = (
    "inbox", "handled", "event", "note", "ruling", "attempt", "verb_outcome", "command", "micro_batch",
    "policy_version", "tokenizer", "reply_grammar", "checkpoint", "lineage", "metric", "metric_span", "interval",
    "segment", "retirement", "engine_load", "asked_load", "open_turns", "moved_turns", "reward_task", "program_session",
    "log", "trimming", "storage_use", "tool_listing", "sharing", "shared_rollout",
)  # fmt: skip
"""Tables whose rows name the run they belong to, beside those that are parted by run, leases, and the run itself."""
_DELETABLE = frozenset({*(status.value for status in TERMINAL), RunStatus.DRAFT.value})


@dataclass(frozen=True, slots=True)
class DeletionRequest:
    """What is to be deleted, and who asked for it."""

    run_id: int
    operation: UUID
    run: UUID
    key: str
    project: str
    asked_by: str = ""
    reason: str = ""
    request_id: str = ""


def ask(conn: Connection, request: DeletionRequest) -> None:
    """Note that a run is to be deleted, in the caller's transaction."""
    conn.execute(
        "INSERT INTO store.run_deletion (run_id, operation, run, key, project, asked_by, reason, request_id) "
        "VALUES (%s, %s, %s, %s, %s, %s, %s, %s)",
        [
            request.run_id, request.operation, request.run, request.key, request.project, request.asked_by,
            request.reason, request.request_id,
        ],
    )  # fmt: skip


def waiting_forks(conn: Connection, run_id: int) -> list[int]:
    """List runs that are to begin with a run's weights and have no copy of them yet; those that ended need none."""
    rows = conn.execute(
        """
        SELECT DISTINCT l.run_id FROM store.lineage l JOIN store.run_state r USING (run_id)
        WHERE l.from_run = %s AND l.bound_at IS NULL AND r.finished_at IS NULL ORDER BY 1
        """,
        [run_id],
    ).fetchall()
    return [row[0] for row in rows]


def due(conn: Connection, ended_for_s: float) -> list[int]:
    """Find runs that ended so long ago, those that ended first in front; one with a pinned checkpoint is kept."""
    rows = conn.execute(
        """
        SELECT r.run_id FROM store.run_state r WHERE r.status = ANY(%s)
          AND r.finished_at < clock_timestamp() - make_interval(secs => %s::float8)
          AND NOT EXISTS (SELECT 1 FROM store.run_deletion d WHERE d.run_id = r.run_id)
          AND NOT EXISTS (SELECT 1 FROM store.checkpoint c WHERE c.run_id = r.run_id AND c.pinned_at IS NOT NULL)
        ORDER BY r.finished_at, r.run_id
        """,
        [[status.value for status in TERMINAL], ended_for_s],
    ).fetchall()
    return [row[0] for row in rows]


def open_deletions(conn: Connection) -> list[int]:
    """List runs whose rows have to go, in the order in which that was asked for."""
    rows = conn.execute(
        "SELECT run_id FROM store.run_deletion WHERE ended_at IS NULL AND rows_gone_at IS NULL ORDER BY asked_at"
    ).fetchall()
    return [row[0] for row in rows]


def carry_out(conn: Connection, run_id: int, removed_files: Callable[[], object] = lambda: None) -> None:
    """Delete the rows of a run and what lies on this machine. Needs autocommit; goes on where it was interrupted.

    Raises StoreError unless the run has ended or is a draft; psycopg's LockNotAvailable when readers hold its tables.
    """
    drop_run(conn, run_id)
    removed_files()
    conn.execute(
        """
        UPDATE store.run_deletion d SET rows_gone_at = clock_timestamp(), nodes = n.names,
          ended_at = CASE WHEN n.names = '{}' THEN clock_timestamp() END
        FROM (SELECT coalesce(array_agg(name ORDER BY name), '{}') AS names FROM store.node
              WHERE state <> 'gone') n
        WHERE d.run_id = %s AND d.rows_gone_at IS NULL
        """,
        [run_id],
    )


def drop_run(conn: Connection, run_id: int) -> None:
    """Delete every row of an ended run or a draft. Needs autocommit; may be repeated after an interruption."""
    row = conn.execute("SELECT status FROM store.run_state WHERE run_id = %s", [run_id]).fetchone()
    if row is not None and row[0] not in _DELETABLE:
        raise StoreError(f"run {run_id} is {row[0]}; only an ended run or a draft can be dropped")
    with partitions.lock_timeout(conn):
        for table in partitions.PARTITIONED:
            if partitions.has_own(conn, table, run_id):
                partitions.detach(conn, table, run_id)
                partitions.drop(conn, table, run_id)
            else:
                delete_rows(conn, table, run_id)
        for table in BY_RUN:
            delete_rows(conn, table, run_id)
        conn.execute(
            "WITH gone AS (DELETE FROM store.lease WHERE run_id = %s AND state = 'ended' RETURNING id) "
            "DELETE FROM store.engine_policy WHERE lease_id IN (SELECT id FROM gone)",
            [run_id],
        )
        conn.execute("DELETE FROM store.run_state WHERE run_id = %s", [run_id])


def delete_rows(conn: Connection, table: str, run_id: int) -> None:
    """Delete a run's rows of a table, some at a time. Needs autocommit."""
    statement = sql.SQL(
        "DELETE FROM {table} WHERE run_id = %(run)s AND ctid = ANY (ARRAY("
        "SELECT ctid FROM {table} WHERE run_id = %(run)s LIMIT %(batch)s))"
    ).format(table=sql.Identifier("store", table))
    while conn.execute(statement, {"run": run_id, "batch": BATCH}).rowcount == BATCH:
        pass


@for_nodes(anyone)
def deleted_among(conn: Connection, run_ids: Collection[int]) -> set[int]:
    """Return those of some runs that were deleted: what is left of them on a disk may go."""
    rows = conn.execute(
        "SELECT run_id FROM store.run_deletion WHERE run_id = ANY(%s) AND rows_gone_at IS NOT NULL", [list(run_ids)]
    ).fetchall()
    return {row[0] for row in rows}


@for_nodes(own_node("node"))
def awaiting(conn: Connection, node: str) -> set[int]:
    """Return the deleted runs of which a node has not said that nothing is left."""
    rows = conn.execute(
        "SELECT run_id FROM store.run_deletion WHERE ended_at IS NULL AND rows_gone_at IS NOT NULL AND %s = ANY(nodes)",
        [node],
    ).fetchall()
    return {row[0] for row in rows}


@for_nodes(own_node("node"))
def cleared(conn: Connection, node: str, run_ids: Collection[int]) -> None:
    """Note that nothing of some deleted runs is left on a node's disks. Nodes that were removed are not waited for."""
    conn.execute(
        """
        UPDATE store.run_deletion d SET nodes = n.left_over,
          ended_at = CASE WHEN n.left_over = '{}' THEN clock_timestamp() END
        FROM (
          SELECT o.run_id, coalesce(array_agg(w.name) FILTER (WHERE w.name IS NOT NULL), '{}') AS left_over
          FROM store.run_deletion o LEFT JOIN LATERAL (
            SELECT name FROM unnest(o.nodes) AS name
            WHERE name <> %(node)s AND name IN (SELECT r.name FROM store.node r WHERE r.state <> 'gone')) w ON true
          WHERE o.run_id = ANY(%(runs)s) AND o.ended_at IS NULL GROUP BY o.run_id) n
        WHERE d.run_id = n.run_id AND d.ended_at IS NULL
        """,
        {"node": node, "runs": list(run_ids)},
    )
