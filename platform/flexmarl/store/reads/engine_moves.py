"""Places on engines that were given or moved, newest first, each with what it took until the engine served.

Read from the driver's rulings and from the commands that carried them out, so a move's cost is what was measured and
not what was expected. Rulings follow their events, and so does a position among them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import Connection

from flexmarl.contracts.rulings import RulingKind

KINDS = (RulingKind.ENGINE_MOVED.value, RulingKind.ENGINE_ASSIGNED.value)


@dataclass(frozen=True, slots=True)
class EngineMovePosition:
    """Everything before it was read."""

    seq: int = 2**62
    ord: int = 0


@dataclass(frozen=True, slots=True)
class EngineMove:
    seq: int
    ord: int
    at: float
    kind: str
    cause: str
    """Of a move: `waiting` or `disparity`."""
    policy: str
    """That serves from the place now."""
    out: str
    """That had the place; empty where it was free."""
    lease_id: int
    device_id: str
    reason: str
    """With the queues it was decided by."""
    load_s: float | None
    """From the load's begin to its end."""
    until_served_s: float | None
    """From the decision until the engine served; None while it does not."""


def page(
    conn: Connection, run_id: int, kinds: Sequence[str], policies: Sequence[str], before: EngineMovePosition, limit: int
) -> list[EngineMove]:
    """Read the newest moves behind a position; an empty filter means any."""
    rows = conn.execute(
        _MOVES,
        {
            "run": run_id, "kinds": list(kinds or KINDS), "policies": list(policies) or None, "seq": before.seq,
            "ord": before.ord, "limit": limit,
        },
    ).fetchall()  # fmt: skip
    return [EngineMove(*row) for row in rows]


# The commands of a move are written with it or after it; what they are looked up by has an index each.
_MOVES = b"""
SELECT r.seq, r.ord, extract(epoch FROM r.at)::float8, r.kind, r.cause, r.policy, coalesce(gone.policy, ''),
  r.lease_id, coalesce(l.device_id, ''), r.reason,
  extract(epoch FROM load.done_at - load.taken_at)::float8,
  extract(epoch FROM CASE WHEN load.done_at IS NOT NULL THEN greatest(load.done_at - r.at, interval '0') END)::float8
FROM (
  SELECT r.*, nullif(split_part(r.target, ':', 2), '')::bigint AS lease_id FROM store.ruling r
  WHERE r.run_id = %(run)s AND (r.seq, r.ord) < (%(seq)s, %(ord)s) AND r.kind = ANY(%(kinds)s)
    AND (%(policies)s::text[] IS NULL OR r.policy = ANY(%(policies)s))
  ORDER BY r.seq DESC, r.ord DESC LIMIT %(limit)s
) r LEFT JOIN store.lease l ON l.id = r.lease_id
LEFT JOIN LATERAL (
  SELECT c.taken_at, c.done_at
  FROM store.command c
  WHERE c.run_id = r.run_id AND coalesce(c.body ->> 'policy', c.body #>> '{ref,policy}') = r.policy
    AND c.kind = 'load_weights' AND c.lease_id = r.lease_id AND c.seq >= r.seq AND c.status = 'done'
  ORDER BY c.no LIMIT 1
) load ON true
LEFT JOIN LATERAL (
  SELECT c.body ->> 'policy' AS policy FROM store.command c
  WHERE r.kind = 'engine_moved' AND c.run_id = r.run_id AND c.created_at >= r.at - interval '1 minute'
    AND c.kind = 'unload_policy' AND c.lease_id = r.lease_id AND c.seq >= r.seq
  ORDER BY c.no LIMIT 1
) gone ON true
ORDER BY r.seq DESC, r.ord DESC
"""
