"""What evaluations came to, task by task: attempts, how many solved it, scores, tokens and time.

Invariants: an attempt counts once, by the last episode that was played for it. A run that was retried has played its
tasks again under later draws: only the last pass over the tasks counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import Connection
from psycopg.rows import class_row

from flexmarl.contracts.wire import EVALUATION_DRAWS


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One held-out task of a run."""

    run_id: int
    task: int
    """Place of the task in the evaluation, from 0."""
    draw: int
    attempts: int
    """Attempts that finished."""
    failed: int
    solved: int
    score: float
    """Sum of the team scores of attempts that finished."""
    seats: dict[str, float]
    """Role -> sum of its scores over attempts that finished."""
    tokens: int
    seconds: float
    reason: str
    """Why an attempt failed; empty where none did."""


_TASKS = """
WITH played AS (
  SELECT DISTINCT ON (e.run_id, e.draw, e.member)
         e.run_id, e.draw, e.status, e.reason, e.scores, e.team_score, e.solved, e.tokens, e.seconds,
         (e.draw - %(first)s) / s.tasks AS pass, (e.draw - %(first)s) %% s.tasks AS task
  FROM store.episode e JOIN unnest(%(runs)s::bigint[], %(tasks)s::int[]) AS s(run_id, tasks) USING (run_id)
  WHERE e.draw >= %(first)s AND e.origin = 'eval'
  ORDER BY e.run_id, e.draw, e.member, e.attempt DESC
), last AS (
  SELECT *, max(pass) OVER (PARTITION BY run_id) AS newest FROM played
), seats AS (
  SELECT run_id, draw, jsonb_object_agg(role, total) AS seats FROM (
    SELECT run_id, draw, role, sum(value::float8) AS total
    FROM last, jsonb_each_text(scores) AS one(role, value)
    WHERE pass = newest AND status = 'finished' GROUP BY run_id, draw, role
  ) AS summed GROUP BY run_id, draw
)
SELECT run_id, task, draw,
       count(*) FILTER (WHERE status = 'finished')::int AS attempts,
       count(*) FILTER (WHERE status <> 'finished')::int AS failed,
       count(*) FILTER (WHERE status = 'finished' AND solved)::int AS solved,
       coalesce(sum(team_score::float8) FILTER (WHERE status = 'finished'), 0) AS score,
       coalesce((array_agg(seats.seats))[1], '{}'::jsonb) AS seats,
       sum(tokens)::int AS tokens, sum(seconds)::float8 AS seconds,
       coalesce(max(reason) FILTER (WHERE status <> 'finished'), '') AS reason
FROM last LEFT JOIN seats USING (run_id, draw)
WHERE pass = newest
GROUP BY run_id, task, draw ORDER BY run_id, task
"""


def task_rows(conn: Connection, tasks: dict[int, int]) -> list[TaskRow]:
    """Return the tasks that runs have played so far. `tasks`: number of a run -> how many tasks it has."""
    if not tasks:
        return []
    asked: dict[str, int | Sequence[int]] = {
        "first": EVALUATION_DRAWS, "runs": list(tasks), "tasks": list(tasks.values()),
    }  # fmt: skip
    with conn.cursor(row_factory=class_row(TaskRow)) as cursor:
        return cursor.execute(_TASKS, asked).fetchall()
