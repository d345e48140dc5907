"""How often the agents of runs have solved a question: over all finished episodes of its runs."""

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import Connection


@dataclass(frozen=True, slots=True)
class QuestionRate:
    episodes: int
    """Finished ones that asked it, of training and of evaluation."""
    solved: int
    mean_score: float
    """Of the team."""


def rates_of(conn: Connection, run_ids: Sequence[int], questions: Sequence[str]) -> dict[str, QuestionRate]:
    """Map questions to what came of them; those that no episode has asked are left out.

    It reads all episodes of the runs: a question is part of an episode's task, which has no index.
    """
    if not run_ids or not questions:
        return {}
    rows = conn.execute(
        """
        SELECT task #>> '{facts,question}', count(*), count(*) FILTER (WHERE solved), avg(team_score)
        FROM store.episode
        WHERE run_id = ANY(%s) AND status = 'finished' AND task #>> '{facts,question}' = ANY(%s)
        GROUP BY 1
        """,
        [list(run_ids), list(questions)],
    ).fetchall()
    return {question: QuestionRate(episodes, solved, float(mean)) for question, episodes, solved, mean in rows}
