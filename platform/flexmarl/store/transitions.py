"""The four events per policy: a sample becomes ready, its gradient is taken, the optimizer steps, weights are served.

Invariant: they are no records of their own but a view of the rows that already record them, so they cannot differ from
what happened: the cut, and the facts of the log. Owners: the driver cuts, a trainer's life accumulates and steps, an
engine's life serves.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from psycopg import Connection
from psycopg.rows import class_row

KINDS = ("ready", "backward", "step", "publish")


@dataclass(frozen=True, slots=True)
class Transition:
    kind: str
    policy: str
    at: datetime
    owner: str
    """`driver`, or the incarnation of the trainer or engine."""
    version: int | None
    """Backward: version the gradient is taken at; step: version made; publish: version served."""
    cohort: int | None
    micro_batch: int | None
    rows: int | None
    seq: int | None
    """Place in the event log; None for a cut, which the driver decides itself."""


def transitions(
    conn: Connection, run_id: int, *, policy: str = "", kind: str = "", before: datetime | None = None, limit: int = 100
) -> list[Transition]:
    """List a run's transitions, newest first, those before a moment."""
    with conn.cursor(row_factory=class_row(Transition)) as cursor:
        return cursor.execute(
            """
            SELECT kind, policy, at, owner, version, cohort, micro_batch, rows, seq FROM store.transition
            WHERE run_id = %(run)s AND (%(policy)s = '' OR policy = %(policy)s) AND (%(kind)s = '' OR kind = %(kind)s)
              AND (%(before)s::timestamptz IS NULL OR at < %(before)s)
            ORDER BY at DESC, kind, policy, micro_batch LIMIT %(limit)s
            """,
            {"run": run_id, "policy": policy, "kind": kind, "before": before, "limit": limit},
        ).fetchall()


def transition_counts(conn: Connection, run_id: int) -> Mapping[tuple[str, str], int]:
    """Count a run's transitions by (policy, kind)."""
    rows = conn.execute(
        "SELECT policy, kind, count(*) FROM store.transition WHERE run_id = %s GROUP BY policy, kind", [run_id]
    ).fetchall()
    return {(row[0], row[1]): row[2] for row in rows}
