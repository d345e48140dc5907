"""The four events per policy: a sample becomes ready, its gradient is taken, the optimizer steps, weights are served.

Invariant: they are no records of their own but read from the rows that already record them, so they cannot differ from
what happened: the cut, and the facts of the log. Owners: the driver cuts, a trainer's life accumulates and steps, an
engine's life serves. Facts follow their places in the log and cuts their times; both go down with time, so a position
is one place in each, and a page neither skips nor repeats rows while others are added.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from psycopg import Connection

KINDS = ("ready", "backward", "step", "publish")
_FACTS = {"backward": "micro_batch_accumulated", "step": "step_committed", "publish": "weights_served"}
_END = datetime(9999, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class TransitionPosition:
    """Everything before it was read: the last fact's place in the log, and the last cut."""

    seq: int = 2**62
    cut_at: datetime = _END
    policy: str = ""
    no: int = 0


@dataclass(frozen=True, slots=True)
class TransitionFilter:
    """Empty, or None: any."""

    kinds: Sequence[str] = ()
    policies: Sequence[str] = ()
    cohort: int | None = None


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
    """None of a publication, which is of no cohort."""
    micro_batch: int | None
    rows: int | None
    seq: int | None
    """Place in the event log; None for a cut, which the driver decides itself."""


def page(
    conn: Connection, run_id: int, wanted: TransitionFilter, before: TransitionPosition, limit: int
) -> list[Transition]:
    """Read the newest transitions behind a position."""
    kinds = wanted.kinds or KINDS
    facts = [_FACTS[kind] for kind in kinds if kind in _FACTS and (kind != "publish" or wanted.cohort is None)]
    arguments = {
        "run": run_id, "kinds": facts, "policies": list(wanted.policies) or None, "cohort": wanted.cohort,
        "seq": before.seq, "cut_at": before.cut_at, "policy": before.policy, "no": before.no, "limit": limit,
    }  # fmt: skip
    found: list[Transition] = []
    if "ready" in kinds:
        found += [Transition(*row) for row in conn.execute(_CUT, arguments).fetchall()]
    if facts:
        found += [Transition(*row) for row in conn.execute(_LOGGED, arguments).fetchall()]
    return sorted(found, key=lambda row: row.at, reverse=True)[:limit]


def behind(rows: Sequence[Transition], before: TransitionPosition) -> TransitionPosition:
    """Return the position after a page."""
    seq = min((row.seq for row in rows if row.seq is not None), default=before.seq)
    cuts = [(row.at, row.policy, row.micro_batch or 0) for row in rows if row.seq is None]
    return TransitionPosition(seq, *min(cuts, default=(before.cut_at, before.policy, before.no)))


_CUT = b"""
SELECT 'ready', policy, cut_at, 'driver', NULL::int, cohort, no, cardinality(advantages), NULL::bigint
FROM store.micro_batch
WHERE run_id = %(run)s AND (cut_at, policy, no) < (%(cut_at)s, %(policy)s, %(no)s)
  AND (%(policies)s::text[] IS NULL OR policy = ANY(%(policies)s))
  AND (%(cohort)s::int IS NULL OR cohort = %(cohort)s)
ORDER BY cut_at DESC, policy DESC, no DESC LIMIT %(limit)s
"""

# The rows of a page are found first; only then is it looked up which micro-batches each of them is about.
_LOGGED = b"""
WITH made AS MATERIALIZED (
  SELECT DISTINCT policy, no, version FROM store.micro_batch
  WHERE run_id = %(run)s AND cohort = %(cohort)s::int
), shown AS MATERIALIZED (
  SELECT e.seq, e.kind, e.at, e.body, e.body ->> 'policy' AS policy FROM store.event e
  WHERE e.run_id = %(run)s AND e.seq < %(seq)s AND e.kind = ANY(%(kinds)s)
    AND (%(policies)s::text[] IS NULL OR e.body ->> 'policy' = ANY(%(policies)s))
    AND (%(cohort)s::int IS NULL OR EXISTS (
      SELECT 1 FROM made WHERE made.policy = e.body ->> 'policy'
        AND CASE e.kind WHEN 'micro_batch_accumulated' THEN made.no = (e.body ->> 'micro_batch')::int
                        ELSE made.version = (e.body ->> 'version')::int END))
  ORDER BY e.seq DESC LIMIT %(limit)s
)
SELECT CASE s.kind WHEN 'micro_batch_accumulated' THEN 'backward' WHEN 'step_committed' THEN 'step' ELSE 'publish' END,
  s.policy, s.at,
  CASE s.kind WHEN 'weights_served' THEN s.body ->> 'incarnation'
              ELSE split_part(s.body ->> 'accumulator', ':', 2) END,
  CASE s.kind WHEN 'micro_batch_accumulated' THEN split_part(s.body ->> 'accumulator', ':', 1)::int
              ELSE (s.body ->> 'version')::int END,
  m.cohort, (s.body ->> 'micro_batch')::int,
  CASE s.kind WHEN 'step_committed' THEN coalesce(m.rows, 0) ELSE (s.body #>> '{stats,rows}')::int END, s.seq
FROM shown s LEFT JOIN LATERAL (
  SELECT max(b.cohort) AS cohort, sum(cardinality(b.advantages))::int AS rows FROM store.micro_batch b
  WHERE b.run_id = %(run)s AND b.policy = s.policy
    AND CASE s.kind WHEN 'micro_batch_accumulated' THEN b.no = (s.body ->> 'micro_batch')::int
                    WHEN 'step_committed' THEN b.version = (s.body ->> 'version')::int
                    ELSE false END
) m ON true
ORDER BY s.seq DESC
"""
