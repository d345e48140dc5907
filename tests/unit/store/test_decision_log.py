"""Decisions and transitions of one policy are read from an index, however many other policies the run has."""

import pytest

from flexmarl.store.reads import decision_log, transitions
from flexmarl.store.reads.decision_log import DecisionFilter, DecisionPosition
from tests.support.store_story import Story

pytestmark = pytest.mark.services

POLICIES = 60
EACH = 200


@pytest.fixture
def crowded(story: Story) -> Story:
    """Commands and rulings of many policies, and a policy of which there are few."""
    for run in (1, 2):
        story.conn.execute(
            """
            INSERT INTO store.command (run_id, no, seq, epoch, kind, route, body)
            SELECT %(run)s, 100 + i, i, 1, CASE WHEN i %% 2 = 0 THEN 'accumulate' ELSE 'cut_micro_batch' END, 'node',
              CASE WHEN i %% 2 = 0 THEN jsonb_build_object('policy', 'p' || i %% %(policies)s)
                   ELSE jsonb_build_object('ref', jsonb_build_object('policy', 'p' || i %% %(policies)s, 'no', i)) END
            FROM generate_series(1, %(rows)s) i
            """,
            {"run": run, "policies": POLICIES, "rows": POLICIES * EACH},
        )
        story.conn.execute(
            """
            INSERT INTO store.ruling (run_id, seq, ord, kind, policy, at)
            SELECT %(run)s, i, 0, 'null_step', 'p' || i %% %(policies)s, now() FROM generate_series(1, %(rows)s) i
            """,
            {"run": run, "policies": POLICIES, "rows": POLICIES * EACH},
        )
    story.conn.execute('UPDATE store.command SET body = \'{"policy": "rare"}\' WHERE run_id = 1 AND no IN (150, 9000)')
    story.conn.execute("UPDATE store.ruling SET policy = 'rare' WHERE run_id = 1 AND seq = 40")
    story.conn.execute("ANALYZE store.command, store.ruling")
    return story


def test_a_rare_policys_decisions_are_found_without_a_walk_over_the_run(crowded: Story) -> None:
    wanted = DecisionFilter(policies=["rare"])
    found = decision_log.page(crowded.conn, 1, wanted, DecisionPosition(), 50)
    assert [(row.command, row.place, row.seq) for row in found] == [
        (True, 9000, 8900), (True, 150, 50), (False, 0, 40),
    ]  # fmt: skip
    arguments = {
        "run": 1, "kinds": None, "policies": ["rare"], "cohort": None, "no": 2**62, "seq": 2**62, "ord": 0, "limit": 50,
    }  # fmt: skip
    for statement, index in ((decision_log._COMMANDS, "command_policy"), (decision_log._RULINGS, "ruling_policy")):
        plan = "\n".join(row[0] for row in crowded.conn.execute(b"EXPLAIN " + statement, arguments).fetchall())
        assert index in plan, plan


def test_cuts_are_read_in_their_order_from_an_index(crowded: Story) -> None:
    crowded.conn.execute(
        """
        INSERT INTO store.micro_batch (run_id, policy, no, cohort, keys, advantages, weights, cut_at)
        SELECT 1, 'p' || i %% %s, i, i / 100, '[]', '{0.5}', '{1}', now() - make_interval(secs => i)
        FROM generate_series(1, %s) i
        """,
        [POLICIES, POLICIES * EACH],
    )
    crowded.conn.execute("ANALYZE store.micro_batch")
    before = transitions.TransitionPosition()
    arguments = {
        "run": 1, "policies": None, "cohort": None, "limit": 50, "cut_at": before.cut_at, "policy": "", "no": 0,
    }  # fmt: skip
    plan = "\n".join(row[0] for row in crowded.conn.execute(b"EXPLAIN " + transitions._CUT, arguments).fetchall())
    assert "micro_batch_cut" in plan, plan
    assert "Sort" not in plan, plan
    found = transitions.page(crowded.conn, 1, transitions.TransitionFilter(kinds=["ready"]), before, 3)
    assert [row.micro_batch for row in found] == [1, 2, 3]
