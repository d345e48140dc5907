"""What a run played of late, as plain rows: for playing it again.

Reads training episodes of the newest draws only, and only attempts that counted.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from psycopg import Connection

from flexmarl.store.data.spans import EACH_TURN


class RecentRows(NamedTuple):
    """Rows of the newest draws."""

    episodes: list[tuple[Any, ...]]
    """(draw, member, cohort, began, ended, team score, transcript)"""
    turns: list[tuple[Any, ...]]
    """(draw, member, role, turn, prompt tokens, reply tokens, latency in seconds)"""
    failed_share: float
    """Share of attempts that failed."""


def counted(conn: Connection, run_id: int) -> tuple[int, int]:
    """Count finished training episodes whose rows are stored, and the train steps that they were played for."""
    return counted_of(conn, [run_id]).get(run_id, (0, 0))


def counted_of(conn: Connection, run_ids: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Count both for several runs; those that have none stored are left out."""
    rows = conn.execute(
        """
        SELECT run_id, count(*), count(DISTINCT cohort) FROM store.episode e
        WHERE run_id = ANY(%s) AND origin = 'train' AND status = 'finished' AND EXISTS (
          SELECT FROM store.sample s WHERE s.run_id = e.run_id AND s.draw = e.draw AND s.member = e.member
            AND s.attempt = e.attempt)
        GROUP BY run_id
        """,
        [list(run_ids)],
    ).fetchall()
    return {int(run): (int(episodes), int(steps)) for run, episodes, steps in rows}


def stretch(conn: Connection, run_id: int, episodes: int) -> RecentRows:
    """Read the newest draws: whole groups, until about so many episodes."""
    since = conn.execute(
        """
        SELECT min(draw) FROM (
          SELECT draw FROM store.episode WHERE run_id = %s AND origin = 'train' AND status = 'finished'
          ORDER BY draw DESC LIMIT %s) AS newest
        """,
        [run_id, episodes],
    ).fetchone()
    first = {"run": run_id, "first": since[0] if since and since[0] is not None else 0}
    rows = conn.execute(
        """
        SELECT DISTINCT ON (draw, member) draw, member, cohort, extract(epoch FROM started_at)::float8,
          extract(epoch FROM finished_at)::float8, team_score::float8, transcript
        FROM store.episode
        WHERE run_id = %(run)s AND origin = 'train' AND status = 'finished' AND draw >= %(first)s
        ORDER BY draw, member, attempt DESC
        """,
        first,
    ).fetchall()
    turns = conn.execute(
        f"""
        SELECT DISTINCT ON (s.draw, s.member, s.role, t.turn) s.draw, s.member, s.role, t.turn, t.n_prompt,
          t.n_response, t.latency_ms::float8 / 1000.0
        FROM store.sample s, {EACH_TURN} WHERE s.run_id = %(run)s AND s.draw >= %(first)s AND EXISTS (
          SELECT FROM store.episode e WHERE e.run_id = %(run)s AND e.draw = s.draw AND e.member = s.member
            AND e.attempt = s.attempt AND e.origin = 'train' AND e.status = 'finished')
        ORDER BY s.draw, s.member, s.role, t.turn, s.attempt DESC
        """.encode(),
        first,
    ).fetchall()
    failed = conn.execute(
        """
        SELECT coalesce(avg((status = 'failed')::int)::float8, 0.0) FROM store.episode
        WHERE run_id = %(run)s AND origin = 'train' AND status IN ('finished', 'failed') AND draw >= %(first)s
        """,
        first,
    ).fetchone()
    return RecentRows(rows, turns, float(failed[0]) if failed else 0.0)


def step_seconds(conn: Connection, run_id: int, since_step: int) -> list[float]:
    """List how long the train steps from one on took, as the run itself wrote it."""
    rows = conn.execute(
        """
        SELECT value FROM store.metric
        WHERE run_id = %s AND name = 'time/step' AND agent = '' AND stat = 'mean' AND step >= %s ORDER BY step
        """,
        [run_id, since_step],
    ).fetchall()
    return [float(row[0]) for row in rows]
