"""Who came to devices and left them, newest first, each with what was moved and how long it took.

Policies on trainer devices, and engines whose devices trainers share.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from psycopg import Connection

PHASES = ("bind", "suspend", "resume", "sleep", "wake")


@dataclass(frozen=True, slots=True)
class SwapPosition:
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
    """`bind`: made or restored; `suspend`: taken off with all of it; `resume`: brought back with what it had. Of an
    engine that shares its device, without a policy: `sleep`: weights and caches let go; `wake`: it may load again."""
    policy: str
    began: float
    ended: float
    bytes: int
    """Length of the state that was moved, or of what was let go; 0 of a bind and of a wake."""


def page(
    conn: Connection, run_id: int, phases: Sequence[str], policies: Sequence[str], before: SwapPosition, limit: int
) -> list[Swap]:
    """Read the newest swaps behind a position; an empty filter means any."""
    rows = conn.execute(
        """
        SELECT lease_id, ord, device_id, phase, policy, t0, t1, bytes FROM store.interval
        WHERE run_id = %(run)s AND phase IN ('bind', 'suspend', 'resume', 'sleep', 'wake') AND phase = ANY(%(phases)s)
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
