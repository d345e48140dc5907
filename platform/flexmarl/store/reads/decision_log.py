"""A run's decisions, newest first: its commands and its rulings, each with the event it was made on and its reason.

Commands follow their numbers and rulings their events; both go down with time, so a position is one place in each.
Every query carries the run and reads from its primary key downwards.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import Connection

NEWEST = 2**62


@dataclass(frozen=True, slots=True)
class DecisionPosition:
    """Everything before it was read: the last command's number, and the last ruling's event and place."""

    command: int = NEWEST
    seq: int = NEWEST
    ord: int = 0


@dataclass(frozen=True, slots=True)
class DecisionFilter:
    """None: any."""

    kinds: Sequence[str] | None = None
    policies: Sequence[str] | None = None
    cohort: int | None = None


@dataclass(frozen=True, slots=True)
class DecisionRow:
    seq: int
    place: int
    """Command number, or place among the rulings of its event."""
    command: bool
    kind: str
    event: str
    at: float
    policy: str
    cohort: int | None
    target: str
    reason: str
    cause: str
    rows: int | None
    status: str
    """Of the command; empty for a ruling."""
    error: str
    """Code of a failed command's refusal."""


def page(
    conn: Connection, run_id: int, wanted: DecisionFilter, before: DecisionPosition, limit: int
) -> list[DecisionRow]:
    """Read the newest decisions behind a position."""
    arguments = {
        "run": run_id, "kinds": None if wanted.kinds is None else list(wanted.kinds),
        "policies": None if wanted.policies is None else list(wanted.policies), "cohort": wanted.cohort,
        "no": before.command, "seq": before.seq, "ord": before.ord, "limit": limit,
    }  # fmt: skip
    found = [DecisionRow(*row) for row in conn.execute(_COMMANDS, arguments).fetchall()]
    found += [DecisionRow(*row) for row in conn.execute(_RULINGS, arguments).fetchall()]
    return sorted(found, key=lambda row: (row.seq, row.command, row.place), reverse=True)[:limit]


def behind(rows: Sequence[DecisionRow], before: DecisionPosition) -> DecisionPosition:
    """Return the position after a page."""
    commands = [row.place for row in rows if row.command]
    ruled = [(row.seq, row.place) for row in rows if not row.command]
    seq, place = min(ruled, default=(before.seq, before.ord))
    return DecisionPosition(min(commands, default=before.command), seq, place)


# A checkpoint and an evaluation are of the cohort whose step they follow; a gradient is of its micro-batch's.
_COMMANDS = b"""
SELECT c.seq, c.no, true, c.kind, coalesce(e.kind, ''), extract(epoch FROM coalesce(e.at, c.created_at))::float8,
  coalesce(c.body ->> 'policy', c.body #>> '{ref,policy}', ''), o.cohort,
  CASE WHEN c.body ? 'micro_batch' THEN 'micro-batch ' || (c.body ->> 'micro_batch')
       WHEN c.body ? 'ref' THEN 'micro-batch ' || (c.body #>> '{ref,no}')
       WHEN c.lease_id IS NOT NULL THEN 'lease ' || c.lease_id ELSE '' END,
  c.reason, c.cause, NULL::int, c.status, coalesce(c.error ->> 'code', '')
FROM store.command c LEFT JOIN store.event e ON e.run_id = c.run_id AND e.seq = c.seq
  LEFT JOIN store.micro_batch m ON c.kind = 'accumulate' AND m.run_id = c.run_id
    AND m.policy = c.body ->> 'policy' AND m.no = (c.body ->> 'micro_batch')::int
  CROSS JOIN LATERAL (SELECT CASE
    WHEN c.kind = 'write_checkpoint' THEN nullif((c.body ->> 'step')::int - 1, -1)
    WHEN c.body ->> 'origin' = 'eval' THEN nullif((c.body ->> 'cohort')::int - 1, -1)
    ELSE coalesce((c.body ->> 'cohort')::int, (c.body ->> 'step')::int, m.cohort) END AS cohort) o
WHERE c.run_id = %(run)s AND c.no < %(no)s
  AND (%(kinds)s::text[] IS NULL OR c.kind = ANY(%(kinds)s))
  AND (%(policies)s::text[] IS NULL OR coalesce(c.body ->> 'policy', c.body #>> '{ref,policy}') = ANY(%(policies)s))
  AND (%(cohort)s::int IS NULL OR o.cohort = %(cohort)s)
ORDER BY c.no DESC LIMIT %(limit)s
"""

_RULINGS = b"""
SELECT r.seq, r.ord, false, r.kind, coalesce(e.kind, ''), extract(epoch FROM r.at)::float8, r.policy,
  CASE WHEN r.cohort >= 0 THEN r.cohort END, replace(r.target, ':', ' '), r.reason, r.cause, r.rows, '', ''
FROM store.ruling r LEFT JOIN store.event e ON e.run_id = r.run_id AND e.seq = r.seq
WHERE r.run_id = %(run)s AND (r.seq, r.ord) < (%(seq)s, %(ord)s)
  AND (%(kinds)s::text[] IS NULL OR r.kind = ANY(%(kinds)s))
  AND (%(policies)s::text[] IS NULL OR r.policy = ANY(%(policies)s))
  AND (%(cohort)s::int IS NULL OR r.cohort = %(cohort)s)
ORDER BY r.seq DESC, r.ord DESC LIMIT %(limit)s
"""
