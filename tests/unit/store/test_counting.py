"""The tests' own counts of loss and doubling find each damage, whatever the product's report says of it."""

import pytest

from flexmarl.contracts.live import Progress
from flexmarl.contracts.status import RunStatus
from tests.support.counting import faults, tally

pytestmark = pytest.mark.services


@pytest.fixture
def ended(story):
    """Two groups of two members, one step, and the run's end."""
    lease_id = story.trainer("t1")
    story.settle(0, 1)
    story.cut(0, 0, 1)
    story.accumulate(lease_id, 0, "0:t1")
    story.step(lease_id, "0:t1", (0,), 1)
    story.progress = Progress(episodes_proposed=4, episodes_finished=4)
    story.status = RunStatus.COMPLETED
    story.decide()
    return story


def test_a_sound_run_adds_up(ended):
    found = tally(ended.conn, 1)
    assert (found.proposed, found.in_training, found.finished, found.said, found.applied) == (4, 4, 4, 4, 4)
    assert faults(found) == []


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("DELETE FROM store.episode WHERE member = 0 AND draw = 0", ["missing: 1", "4 episodes were proposed"]),
        ("UPDATE store.micro_batch SET status = 'void'", ["untrained: 4"]),
        (
            "INSERT INTO store.micro_batch SELECT run_id, policy, 9, cohort, status, reason, keys, advantages, weights,"
            " accumulator, stats, version, cut_at, done_at FROM store.micro_batch",
            ["doubled: 4"],
        ),
        (
            "UPDATE store.micro_batch SET keys = jsonb_set(keys, '{0,0}', '77')",
            ["foreign: 1", "untrained: 1"],
        ),
        ("DELETE FROM store.event WHERE seq = 1", ["log gaps: 1"]),
        (
            "INSERT INTO store.event SELECT run_id, seq + 1000, kind, body, at FROM store.event "
            "WHERE kind = 'step_committed'",
            ["steps doubled: 1"],
        ),
        (
            "INSERT INTO store.event SELECT run_id, seq + 1000, kind, body, at FROM store.event "
            "WHERE kind = 'group_settled' AND body ->> 'draw' = '0'",
            ["settled twice: 2"],
        ),
        (
            "INSERT INTO store.episode SELECT run_id, draw, member, attempt + 1, origin, status, reason, cohort, "
            "scores, team_score, solved, turns, tokens, pins, task, transcript, facts, judged, said, "
            "said_marks, breaks, started_at, finished_at FROM store.episode WHERE draw = 0 AND member = 0",
            ["settled twice: 1", "4 episodes were proposed and 5 ended"],
        ),
    ],
)
def test_each_damage_is_counted(ended, damage, said):
    ended.conn.execute(damage.encode())
    found = faults(tally(ended.conn, 1))
    for words in said:
        assert any(fault.startswith(words) for fault in found), found


def test_samples_that_may_stay_untrained_are_no_fault_where_the_run_drops_some(ended):
    ended.conn.execute("UPDATE store.micro_batch SET status = 'void'")
    assert faults(tally(ended.conn, 1), complete=False) == []
