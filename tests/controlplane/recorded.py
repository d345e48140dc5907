"""A run that has ended, with what it recorded of a few train steps."""

from typing import Any

from django.db import connection


def recorded_run(make_run: Any, editor: Any, steps: int = 3, tasks: int = 2, members: int = 2) -> Any:
    """A run with rows of a few train steps: each role replies with 4 tokens in 0.4 s, the environment takes 0.2 s."""

    run = make_run(
        editor,
        "completed",
        batch={"tasks_per_step": tasks, "episodes_per_task": members, "micro_batch_groups": 1, "rollout_groups": 1},
    )
    with connection.cursor() as cursor:
        for draw in range(steps * tasks):
            began = 1_700_000_000.0 + 10.0 * (draw // tasks)
            for member in range(members):
                cursor.execute(
                    "INSERT INTO store.episode (run_id, draw, member, attempt, origin, status, cohort, scores, "
                    "team_score, solved, turns, tokens, pins, task, transcript, started_at, finished_at) VALUES "
                    "(%s, %s, %s, 1, 'train', 'finished', %s, '{}', %s, false, 2, 8, '{}', '{}', "
                    """'[["speaker", 0], ["listener", 0]]', to_timestamp(%s), to_timestamp(%s))""",
                    [run.no, draw, member, draw // tasks, member, began, began + 1.0],
                )
                for role in ("speaker", "listener"):
                    cursor.execute(
                        "INSERT INTO store.sample (run_id, draw, member, attempt, role, turn, policy, version, "
                        "segments, n_prompt, n_response, finish, latency_ms, payload) VALUES "
                        "(%s, %s, %s, 1, %s, 0, %s, 0, '{0,4}', 4, 4, 'stop', 400, '')",
                        [run.no, draw, member, role, role],
                    )
        for step in range(1, steps + 1):
            cursor.execute(
                "INSERT INTO store.metric (run_id, name, step, value, at) VALUES (%s, 'time/step', %s, 2.0, now())",
                [run.no, step],
            )
    return run
