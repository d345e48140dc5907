"""Runs that agent programs play, for looking at: one with sessions in each state, one that waits for its first
and chooses among its tasks.

They are archived drafts, so that lists of runs do not show them. Workers of live sessions were heard of ahead of their
time, so that the page looks the same for an hour.
"""

from typing import Any
from uuid import UUID

AHEAD_S = 3600
SESSIONS: tuple[tuple[Any, ...], ...] = (
    # task, held out, state, reason, report, seconds ago of opening, of taking, of the end, calls, tokens
    (412, False, "finished", "", '{"reward": 1.0}', 540, 520, 470, 8, 1920),
    (412, False, "finished", "", '{"rewards": {"solver": 1.0, "reviser": 0.25}}', 540, 515, 440, 12, 3071),
    (97, False, "ended", "environment: program: the shop answered 502 three times, at /basket/checkout?step=payment",
     '{"error": "the shop answered 502"}', 500, 480, 430, 3, 644),
    (97, False, "ended", "environment: boot: no program took the session within 600 s", "{}", 900, None, 300, 0, 0),
    (1003, True, "finished", "", '{"reward": 0.5}', 260, 250, 200, 8, 2210),
    (98, False, "taken", "", "{}", 90, 20, None, 4, 1004),
    (99, False, "open", "", "{}", 60, None, None, 0, 0),
    (100, False, "awaiting_reward", "", "{}", 240, 230, None, 6, 1430),
)  # fmt: skip
CHANGES = """{"count": 3, "cut": true, "files": [
  {"path": "shop.py", "change": "changed", "size": 1204, "before": 1187, "shown": true},
  {"path": "src/a_rather_long_name_of_a_file_that_an_agent_made_up_itself.py", "change": "added", "size": 88, "before":
    null, "shown": true},
  {"path": "cart.db", "change": "removed", "size": null, "before": 40960, "shown": false}],
  "diff": "--- a/shop.py\\n+++ b/shop.py\\n@@ -1,2 +1,2 @@\\n def price(item):\\n-    return 0\\n+    return 1"}"""
"""What the command of a session made of its workspace."""


def programs(owner: Any) -> list[Any]:
    """Make both runs and return them."""
    from flexmarl.controlplane.accounts.queries import actor_of_user
    from flexmarl.controlplane.common.store import store_connection
    from flexmarl.controlplane.experiments.plans import Draft
    from flexmarl.controlplane.runs import actions
    from flexmarl.store import partitions
    from tests.support.controlplane import PROGRAM

    actor = actor_of_user(owner)
    chooses = {**PROGRAM, "sampling": {"task_sampler": {"type": "greso"}}}
    made = [
        actions.create_run(actor, Draft(name=name, spec=spec))
        for name, spec in (("Shop program", PROGRAM), ("Waits for a program", chooses))
    ]
    for run in made:
        actions.archive(actor, run)
    conn = store_connection()
    partitions.ensure(conn, made[0].no)
    for place, row in enumerate(SESSIONS):
        _session(conn, made[0].no, place, *row)
    conn.execute(
        "UPDATE store.program_session SET output = 'shop.py: mended', changes = %s WHERE run_id = %s AND draw = 0",
        [CHANGES, made[0].no],
    )
    conn.execute(
        "INSERT INTO store.episode (run_id, draw, member, attempt, origin, status, scores, team_score, solved, turns, "
        "tokens, pins, task, started_at, finished_at) SELECT run_id, draw, member, attempt, 'train', 'finished', "
        """'{"solver": 1.0, "reviser": 1.0}', 1, true, calls, tokens, '{"solver": 0, "reviser": 0}', """
        """'{"title": "Task 412"}', taken_at, ended_at FROM store.program_session """
        "WHERE run_id = %s AND state = 'finished' AND draw < 2",
        [made[0].no],
    )
    _believe(conn, made[1])
    return made


def _believe(conn: Any, run: Any) -> None:
    """Put a snapshot of a driver there whose task sampler has seen some groups."""
    import zstandard

    from flexmarl.contracts.specification.experiment import ExperimentSpec
    from flexmarl.orchestrator import Orchestrator

    core = Orchestrator(ExperimentSpec.model_validate(run.spec))
    for task in range(12):
        kind = task % 3
        core.state.choice.belief.put(
            core.plan.tasks.chosen_from, task, float(kind == 0) * (1 + task), float(kind == 1), task
        )
    snapshot = zstandard.compress(core.snapshot())
    conn.execute("UPDATE store.run_state SET snapshot = %s WHERE run_id = %s", [snapshot, run.no])


def _session(
    conn: Any, run_no: int, place: int, task: int, held_out: bool, state: str, reason: str, report: str, opened: float,
    taken: float | None, ended: float | None, calls: int, tokens: int,
) -> None:  # fmt: skip
    conn.execute(
        "INSERT INTO store.program_session (id, run_id, base_url, held_out, task, draw, member, attempt, state, "
        "reason, report, opened_at, taken_at, reward_deadline_at, ended_at, seen_at, calls, tokens, left_s) VALUES "
        "(%(id)s, %(run)s, 'http://atlas:9800', %(held_out)s, %(task)s, %(place)s, 0, 1, %(state)s, %(reason)s, "
        "%(report)s, now() - make_interval(secs => %(opened)s), now() - make_interval(secs => %(taken)s), "
        "CASE %(state)s WHEN 'awaiting_reward' THEN now() + make_interval(secs => %(ahead)s) END, "
        "now() - make_interval(secs => %(ended)s), now() + make_interval(secs => %(ahead)s), %(calls)s, %(tokens)s, "
        "42 - %(ahead)s)",
        {
            "id": UUID(int=(0x5A1D_2900 + place * 0x1D_0F35) << 96 | place), "run": run_no, "held_out": held_out,
            "task": task, "place": place, "state": state, "reason": reason, "report": report, "opened": opened,
            "taken": taken, "ended": ended, "ahead": AHEAD_S, "calls": calls, "tokens": tokens,
        },
    )  # fmt: skip
