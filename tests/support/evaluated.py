"""Cells of an evaluation as the driver and the rollout workers would leave them."""

from collections.abc import Mapping
from typing import Any

from psycopg.types.json import Jsonb

from flexmarl.contracts.wire import EVALUATION_DRAWS
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.runs.models import Run
from tests.support.controlplane import set_state

_EPISODE = """
INSERT INTO store.episode (run_id, draw, member, attempt, origin, status, reason, cohort, scores, team_score, solved,
                           turns, tokens, pins, task, started_at, finished_at)
VALUES (%s, %s, %s, %s, 'eval', %s, %s, 0, %s, %s, %s, 2, 6, '{}', %s, now(), now() + interval '2 seconds')
"""


def play_cell(run: Run, solved: Mapping[int, list[bool | None]], *, first: int = 0, attempt: int = 1) -> None:
    """Write the attempts of tasks; None is one that failed. `first` is the draw of task 0, behind the first one."""
    conn: Any = store_connection()
    set_state(run, status="running")
    for task, attempts in solved.items():
        for member, one in enumerate(attempts):
            score = float(bool(one))
            scores = Jsonb({} if one is None else dict.fromkeys(run.spec["agents"], score))
            status, reason = ("failed", "environment: step") if one is None else ("finished", "")
            draw = EVALUATION_DRAWS + first + task
            row = (run.no, draw, member, attempt, status, reason, scores, score, bool(one), Jsonb({"title": "t"}))
            conn.execute(_EPISODE, row)
    set_state(run, status="completed", pending_verb="")
