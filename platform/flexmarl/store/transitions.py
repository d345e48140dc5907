"""The four events per policy: a sample becomes ready, its gradient is taken, the optimizer steps, weights are served.

Invariant: they are no records of their own but a view of the rows that already record them, so they cannot differ from
what happened: the cut, and the facts of the log. Owners: the driver cuts, a trainer's life accumulates and steps, an
engine's life serves.
"""

from collections.abc import Sequence
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
    conn: Connection, run_id: int, *, kinds: Sequence[str] = (), policies: Sequence[str] = (), limit: int = 100
) -> list[Transition]:
    """List a run's newest transitions, of all kinds and policies where none are named."""
    with conn.cursor(row_factory=class_row(Transition)) as cursor:
        return cursor.execute(
            """
            SELECT kind, policy, at, owner, version, cohort, micro_batch, rows, seq FROM store.transition
            WHERE run_id = %(run)s AND (%(kinds)s::text[] = '{}' OR kind = ANY(%(kinds)s))
              AND (%(policies)s::text[] = '{}' OR policy = ANY(%(policies)s))
            ORDER BY at DESC, seq DESC NULLS LAST, policy, micro_batch DESC LIMIT %(limit)s
            """,
            {"run": run_id, "kinds": list(kinds), "policies": list(policies), "limit": limit},
        ).fetchall()
