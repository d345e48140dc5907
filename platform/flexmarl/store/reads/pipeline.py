"""What passes through the pipeline: micro-batches with the episode groups they were made of, and their samples' age.

Reads only; every query carries the run. Groups of a micro-batch are taken from the first and last row of its fixed
slice: a cohort is cut in the order of its draws. One of the archive has none of its cohort's.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import Connection


@dataclass(frozen=True, slots=True)
class Slice:
    """One micro-batch. Times in seconds since the epoch."""

    policy: str
    no: int
    cohort: int
    status: str
    rows: int
    first_draw: int
    last_draw: int
    cut_at: float
    done_at: float | None
    version: int | None


@dataclass(frozen=True, slots=True)
class PlayedGroup:
    cohort: int
    draw: int
    started_at: float
    finished_at: float
    episodes: int
    failed: int


@dataclass(frozen=True, slots=True)
class OpenGroup:
    """A group that is asked for and not settled; `since` is when a worker took it, None while it waits."""

    cohort: int
    draw: int
    since: float | None


def slices(conn: Connection, run_id: int, cohorts: Sequence[int]) -> list[Slice]:
    """List the micro-batches of some cohorts, by policy and number."""
    rows = conn.execute(
        """
        SELECT policy, no, cohort, status, cardinality(weights),
          CASE WHEN replayed THEN 0 ELSE coalesce((keys->0->>0)::int, -1) END,
          CASE WHEN replayed THEN -1 ELSE coalesce((keys->-1->>0)::int, -1) END,
          extract(epoch FROM cut_at)::float8, extract(epoch FROM done_at)::float8,
          version
        FROM store.micro_batch WHERE run_id = %s AND cohort = ANY(%s) ORDER BY policy, no
        """,
        [run_id, list(cohorts)],
    ).fetchall()
    return [Slice(*row) for row in rows]


def groups(conn: Connection, run_id: int, cohorts: Sequence[int]) -> list[PlayedGroup]:
    """List the settled training groups of some cohorts."""
    rows = conn.execute(
        """
        SELECT cohort, draw, extract(epoch FROM min(started_at))::float8, extract(epoch FROM max(finished_at))::float8,
          count(*), count(*) FILTER (WHERE status <> 'finished')
        FROM store.episode WHERE run_id = %s AND cohort = ANY(%s) AND origin = 'train' GROUP BY cohort, draw
        ORDER BY draw
        """,
        [run_id, list(cohorts)],
    ).fetchall()
    return [PlayedGroup(*row) for row in rows]


def open_groups(conn: Connection, run_id: int) -> list[OpenGroup]:
    """List the training groups that are asked for and not settled yet."""
    rows = conn.execute(
        """
        SELECT (c.body->>'cohort')::int, (g->>'draw')::int, extract(epoch FROM c.taken_at)::float8
        FROM store.command c CROSS JOIN LATERAL jsonb_array_elements(c.body->'groups') g
        WHERE c.run_id = %s AND c.kind = 'play_groups' AND c.status IN ('open', 'taken') AND c.body->>'origin' <> 'eval'
          AND NOT EXISTS (SELECT 1 FROM store.episode e WHERE e.run_id = c.run_id AND e.draw = (g->>'draw')::int)
        ORDER BY 2
        """,
        [run_id],
    ).fetchall()
    return [OpenGroup(*row) for row in rows]


def ages(conn: Connection, run_id: int, cohort: int) -> list[tuple[str, int, int]]:
    """Count the samples of a cohort by (policy, versions behind the weights that were trained)."""
    rows = conn.execute(
        """
        WITH made AS (SELECT policy, max(version) - 1 AS trained FROM store.micro_batch
                      WHERE run_id = %(run)s AND cohort = %(cohort)s AND status = 'applied' GROUP BY policy)
        SELECT s.policy, m.trained - s.version, count(*)
        FROM store.episode e JOIN store.sample s USING (run_id, draw, member, attempt)
          JOIN made m ON m.policy = s.policy
        WHERE e.run_id = %(run)s AND e.cohort = %(cohort)s AND e.origin = 'train' AND m.trained IS NOT NULL
        GROUP BY 1, 2 ORDER BY 1, 2
        """,
        {"run": run_id, "cohort": cohort},
    ).fetchall()
    return [(str(policy), int(lag), int(count)) for policy, lag, count in rows]


def step_times(conn: Connection, run_id: int, last: int) -> list[tuple[int, float]]:
    """Return (step, seconds) of the newest finished steps, oldest first."""
    rows = conn.execute(
        """
        SELECT step, value FROM store.metric WHERE run_id = %s AND name = 'time/step' AND agent = '' AND stat = 'mean'
        ORDER BY step DESC LIMIT %s
        """,
        [run_id, last],
    ).fetchall()
    return [(int(step), float(value)) for step, value in reversed(rows)]
