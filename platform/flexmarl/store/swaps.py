"""Policies that came to trainer devices and left them, newest first, each with what was moved and how long it took."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from psycopg import Connection

PHASES = ("bind", "suspend", "resume")


@dataclass(frozen=True, slots=True)
class Position:
    """Everything before it was read."""

    ended: float = inf
    lease_id: int = 2**62
    ord: int = 0


@dataclass(frozen=True, slots=True)
class Swap:
    lease_id: int
    ord: int
    device_id: str
    phase: str
    """`bind`: made or restored; `suspend`: taken off with all of it; `resume`: brought back with what it had."""
    policy: str
    began: float
    ended: float
    bytes: int
    """Length of the state that was moved; 0 of a bind."""


def page(
    conn: Connection, run_id: int, phases: Sequence[str], policies: Sequence[str], before: Position, limit: int
) -> list[Swap]:
    """Read the newest swaps behind a position; an empty filter means any."""
    rows = conn.execute(
        """
        SELECT lease_id, ord, device_id, phase, policy, t0, t1, bytes FROM store.interval
        WHERE run_id = %(run)s AND phase IN ('bind', 'suspend', 'resume') AND phase = ANY(%(phases)s)
          AND (%(policies)s::text[] IS NULL OR policy = ANY(%(policies)s))
          AND (t1, lease_id, ord) < (%(ended)s::float8, %(lease)s::bigint, %(ord)s::bigint)
        ORDER BY t1 DESC, lease_id DESC, ord DESC LIMIT %(limit)s
        """,
        {
            "run": run_id, "phases": list(phases or PHASES), "policies": list(policies) or None,
            "ended": before.ended, "lease": before.lease_id, "ord": before.ord, "limit": limit,
        },
    ).fetchall()  # fmt: skip
    return [Swap(*row) for row in rows]
