"""Where a run's sample rows are: every written row is in exactly one place, or the sum tells.

Invariant: no place is a counter kept beside the rows. Rows of a policy are written; those of evaluation, of seats that
are not trained and of members or groups that were ruled out, or cancelled as surplus, stay recorded; those in a
micro-batch are cut, accumulated, applied or void; those that a ruling took out are dropped; what is left is ready for
its cut.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import Connection

from flexmarl.store.data.payload import SIZE


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Rows of one policy by place, and what they take."""

    policy: str
    written: int
    tokens: int
    payload_bytes: int
    by_reference: int
    """Rows whose payload lies in a segment file."""
    evaluation: int
    untrained: int
    """Of seats that are not trained, or without any response token."""
    ruled_out: int
    """Of members that failed and of groups that were refused, dropped, or cancelled before they settled."""
    cut: int
    accumulated: int
    applied: int
    void: int
    dropped: int

    @property
    def recorded(self) -> int:
        """Rows that are kept and never trained."""
        return self.evaluation + self.untrained + self.ruled_out

    @property
    def ready(self) -> int:
        """Rows of kept groups that wait for their cut; below zero when more were taken than written."""
        placed = self.recorded + self.cut + self.accumulated + self.applied + self.void + self.dropped
        return self.written - placed


@dataclass(frozen=True, slots=True)
class Partition:
    """One table that holds rows of the run. Sizes with indexes and large values, as the database counts them."""

    table: str
    size_bytes: int
    rows_estimate: int
    attached: bool


def places(conn: Connection, run_id: int, untrained_roles: Sequence[str]) -> list[RowCounts]:
    """Count a run's rows by policy and place. Reads every sample's row, never its payload."""
    rows = conn.execute(
        f"""
        WITH out AS (
          SELECT DISTINCT substr(target, 6)::int AS draw FROM store.ruling
          WHERE run_id = %(run)s AND target LIKE 'draw:%%'
            AND kind IN ('group_refused', 'group_dropped', 'group_surplus')
        ), sorted AS (
          SELECT s.policy, s.n_response, {SIZE.format("s")} AS bytes,
            s.segment IS NOT NULL AS apart,
            CASE WHEN e.origin = 'eval' THEN 'evaluation'
                 WHEN s.role = ANY(%(untrained)s) OR s.n_response = 0 THEN 'untrained'
                 WHEN e.status <> 'finished' OR o.draw IS NOT NULL THEN 'ruled_out' ELSE '' END AS place
          FROM store.sample s JOIN store.episode e USING (run_id, draw, member, attempt)
            LEFT JOIN out o ON o.draw = s.draw
          WHERE s.run_id = %(run)s
        ), written AS (
          SELECT policy, count(*) AS rows, sum(n_response) AS tokens, coalesce(sum(bytes), 0) AS bytes,
            count(*) FILTER (WHERE apart) AS apart,
            count(*) FILTER (WHERE place = 'evaluation') AS evaluation,
            count(*) FILTER (WHERE place = 'untrained') AS untrained,
            count(*) FILTER (WHERE place = 'ruled_out') AS ruled_out
          FROM sorted GROUP BY 1
        ), placed AS (
          SELECT policy, sum(n) FILTER (WHERE status = 'cut') AS cut,
            sum(n) FILTER (WHERE status = 'accumulated') AS accumulated,
            sum(n) FILTER (WHERE status = 'applied') AS applied, sum(n) FILTER (WHERE status = 'void') AS void
          FROM (SELECT policy, status, cardinality(weights) AS n FROM store.micro_batch
                WHERE run_id = %(run)s AND NOT replayed) m
          GROUP BY 1
        ), gone AS (
          SELECT policy, sum(rows) AS rows FROM store.ruling WHERE run_id = %(run)s AND kind = 'rows_dropped' GROUP BY 1
        )
        SELECT w.policy, w.rows, w.tokens::bigint, w.bytes::bigint, w.apart, w.evaluation, w.untrained, w.ruled_out,
          coalesce(p.cut, 0)::bigint, coalesce(p.accumulated, 0)::bigint, coalesce(p.applied, 0)::bigint,
          coalesce(p.void, 0)::bigint, coalesce(g.rows, 0)::bigint
        FROM written w LEFT JOIN placed p USING (policy) LEFT JOIN gone g USING (policy) ORDER BY 1
        """.encode(),
        {"run": run_id, "untrained": list(untrained_roles)},
    ).fetchall()
    return [RowCounts(*row) for row in rows]


def partitions(conn: Connection, run_id: int) -> list[Partition]:
    """List the tables that hold this run's rows; of one that runs share, with the run's part of it by its rows."""
    rows = conn.execute(
        """
        SELECT c.relname, pg_total_relation_size(c.oid), greatest(c.reltuples, 0)::bigint,
          EXISTS (SELECT 1 FROM pg_inherits i WHERE i.inhrelid = c.oid AND NOT i.inhdetachpending)
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = 'store' AND c.relkind = 'r' AND c.relname = ANY(%s) ORDER BY 1
        """,
        [[f"episode_{run_id}", f"sample_{run_id}"]],
    ).fetchall()
    own = [Partition(*row) for row in rows]
    return sorted(
        [*own, *_shared(conn, run_id, {one.table.partition("_")[0] for one in own})], key=lambda one: one.table
    )


def _shared(conn: Connection, run_id: int, besides: set[str]) -> list[Partition]:
    found = []
    for table in sorted({"episode", "sample"} - besides):
        row = conn.execute(
            f"""
            SELECT c.relname, pg_total_relation_size(c.oid) * n.rows / greatest(c.reltuples::bigint, n.rows, 1), n.rows
            FROM (SELECT count(*) AS rows, min(tableoid) AS leaf FROM store.{table} WHERE run_id = %s) n
              JOIN pg_class c ON c.oid = n.leaf
            """.encode(),
            [run_id],
        ).fetchone()
        if row is not None:
            found.append(Partition(row[0], int(row[1]), int(row[2]), True))
    return found


def segments(conn: Connection, run_id: int) -> int:
    """Count the segment files that hold payloads of a run."""
    row = conn.execute(
        "SELECT count(*) FROM store.segment WHERE run_id = %s AND retired_at IS NULL", [run_id]
    ).fetchone()
    assert row is not None
    return int(row[0])


def dropped(conn: Connection, run_id: int) -> list[tuple[str, str, int]]:
    """Count the rows that rulings took out of training, by (policy, cause)."""
    rows = conn.execute(
        """
        SELECT policy, CASE WHEN cause <> '' THEN cause ELSE kind END, sum(rows)::bigint FROM store.ruling
        WHERE run_id = %s AND rows > 0 AND kind IN ('rows_dropped', 'group_refused', 'group_dropped', 'group_surplus')
        GROUP BY 1, 2 ORDER BY 1, 2
        """,
        [run_id],
    ).fetchall()
    return [(str(policy), str(cause), int(count)) for policy, cause, count in rows]
