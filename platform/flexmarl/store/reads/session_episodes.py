"""What sessions of agent programs became: the episodes that were stored, their rows, and how much of these is trained.

Every query names the run, so only its partition is read; micro-batches are those of the episodes' cohorts alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import Connection

from flexmarl.store.reads.episodes import Key


@dataclass(frozen=True, slots=True)
class SessionEpisode:
    status: str
    chains: int
    """Training rows, whether a step was taken on them or not."""
    delivered: int
    """Sampled tokens in rows on which an optimizer step was taken."""


def episodes_of(conn: Connection, run_id: int, keys: Sequence[Key]) -> dict[Key, SessionEpisode]:
    """Read the episodes with these keys; those that are not stored are left out."""
    if not keys:
        return {}
    draws, members, attempts = zip(*keys, strict=True)
    rows = conn.execute(
        """
        WITH asked AS MATERIALIZED (
          SELECT e.draw, e.member, e.attempt, e.cohort, e.origin, e.status FROM store.episode e
          JOIN unnest(%(draws)s::int[], %(members)s::int[], %(attempts)s::int[]) AS w(draw, member, attempt)
            ON e.draw = w.draw AND e.member = w.member AND e.attempt = w.attempt
          WHERE e.run_id = %(run)s),
        trained AS MATERIALIZED (
          SELECT DISTINCT (k ->> 0)::int AS draw, (k ->> 1)::int AS member, (k ->> 2)::int AS attempt, k ->> 3 AS role,
            (k ->> 4)::int AS turn
          FROM store.micro_batch m, jsonb_array_elements(m.keys) AS k
          WHERE m.run_id = %(run)s AND m.status = 'applied'
            AND m.cohort = ANY (SELECT cohort FROM asked WHERE origin = 'train'))
        SELECT a.draw, a.member, a.attempt, a.status, count(s.role),
          coalesce(sum(s.n_response) FILTER (WHERE t.role IS NOT NULL), 0)
        FROM asked a
        LEFT JOIN store.sample s ON s.run_id = %(run)s AND s.draw = a.draw AND s.member = a.member
          AND s.attempt = a.attempt
        LEFT JOIN trained t ON t.draw = s.draw AND t.member = s.member AND t.attempt = s.attempt AND t.role = s.role
          AND t.turn = s.turn
        GROUP BY a.draw, a.member, a.attempt, a.status
        """,
        {"run": run_id, "draws": list(draws), "members": list(members), "attempts": list(attempts)},
    ).fetchall()
    return {row[:3]: SessionEpisode(*row[3:]) for row in rows}
