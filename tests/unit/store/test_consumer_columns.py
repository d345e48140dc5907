"""Who consumes samples reads the columns it needs, and no others: docs/architecture.md, "What each consumer reads"."""

import pytest

from flexmarl.contracts.commands import Accumulate
from flexmarl.store.control import inbox, runs
from flexmarl.store.data import micro_batches, rewards
from flexmarl.store.data.rewards import RewardRequest
from flexmarl.store.reads import cohort_rows, episodes, report, trajectories
from flexmarl.store.reads.episodes import EpisodeFilter
from tests.support.column_reads import column_reads

pytestmark = pytest.mark.services
TOKENS = {"payload", "segment", "seg_offset", "digest"}
"""Ids, log-probabilities and allowed ids, or where they lie."""
TEXTS = {"said", "said_marks", "transcript", "task", "facts", "judged", "breaks"}
BATCH = {"cohort", "status", "keys", "advantages", "?column?"}
"""The last is the version that the first step on its cohort began with."""
ROW = {
    "draw", "member", "attempt", "role", "turn", "segments", "temperature", "weights", "spans", "n_prompt",
    "n_response", "n_allowed",
}  # fmt: skip


@pytest.fixture
def played(story):
    """Two groups with texts and tokens, of which one is cut; a third is being played."""
    story.trainer("t1")
    story.settle(0, 1)
    story.cut(0, 0)
    return story


def test_a_trainer_reads_tokens_and_no_text_as_soon_as_its_own_group_is_there(played):
    taken = played.take(played.play(2))  # it plays, and nothing of it has been written
    command = Accumulate(lease_id=1, policy="solver", micro_batch=0, accumulator="0:t1", entropy_coef=0.0)
    assert played.take(played.issue(command)).command == command
    with column_reads(played.conn) as read:
        batch = micro_batches.read(played.conn, 1, "solver", 0)
    assert [row.draw for row in batch.rows] == [0, 0]
    assert set(read) == BATCH | TOKENS | ROW
    assert read["payload"] == sum(len(row.arrays.payload) for row in batch.rows)
    _a_reward_worker_reads_texts_alone(played, taken)


def _a_reward_worker_reads_texts_alone(played, taken):
    [number] = rewards.ask(played.conn, taken, [RewardRequest(2, 0, 1, '{"said": ["square"]}')])
    with column_reads(played.conn) as read:
        assert rewards.take(played.conn, 1, number, 30.0) is not None
    assert set(read) == {"run_id", "no", "token", "takes", "body", "reason"}


def test_decisions_lists_cohorts_and_checks_read_no_tokens_and_nothing_that_was_said(played):
    conn, events = played.conn, runs.events_after(played.conn, 1, 0)
    assert "square" not in str(events)
    inbox.put_event(conn, 1, "again", events[-1].event)
    readers = [
        lambda: runs.events_after(conn, 1, 0),
        lambda: inbox.heard(inbox.ask(conn, 1, 0, [], 10)).facts,
        lambda: episodes.page(conn, 1, EpisodeFilter(), limit=10).rows,
        lambda: cohort_rows.batches(conn, 1, 0, 0),
        lambda: report.full_report(conn, 1).checks,
    ]
    for reader in readers:
        with column_reads(conn) as read:
            assert reader()
        assert read
        assert not set(read) & (TOKENS | TEXTS - {"task"}), "a list names the tasks"
    # Without this one, the others would pass where nothing is counted.
    with column_reads(conn) as read:
        assert trajectories.episode(conn, 1, (0, 0, 1)) is not None
    assert min(read["payload"], read["said"], read["transcript"]) > 0
