"""Tasks of rewards: one per attempt, one live token, settled once, and gone when they are read."""

import pytest

from flexmarl.store.control import commands, deletions
from flexmarl.store.data import rewards
from flexmarl.store.data.rewards import Given, RewardRequest
from flexmarl.store.errors import TokenLost
from tests.support.store_story import Story

pytestmark = pytest.mark.services


@pytest.fixture
def play(story: Story, store_conn):
    """The hold on a play."""
    no = story.play(0)
    taken = commands.take(store_conn, story.run_id, no, 60.0)
    assert taken is not None
    return taken


def asked(*members: int, attempt: int = 1) -> list[RewardRequest]:
    return [RewardRequest(0, member, attempt, f"body {member}") for member in members]


def test_a_task_is_taken_settled_and_read_once(store_conn, play):
    first, second = rewards.ask(store_conn, play, asked(0, 1))
    held = rewards.take(store_conn, 1, first, 60.0)
    assert (held.body, held.takes) == ("body 0", 1)
    assert rewards.take(store_conn, 1, first, 60.0) is None, "one live token"
    assert rewards.collect(store_conn, 1, [first, second]) == []
    assert rewards.settle(store_conn, held, "1.5")
    assert not rewards.settle(store_conn, held, "9"), "a reward settles once"
    assert rewards.collect(store_conn, 1, [first, second]) == [Given(first, "1.5", "")]
    assert rewards.collect(store_conn, 1, [first, second]) == []


def test_a_task_that_is_asked_for_twice_is_one(store_conn, play):
    again = rewards.ask(store_conn, play, asked(0, 1))
    assert rewards.ask(store_conn, play, asked(1, 0)) == again[::-1], "the answer of the first was lost"


def test_a_reward_that_is_computed_twice_settles_once(store_conn, play):
    (no,) = rewards.ask(store_conn, play, asked(0))
    slow = rewards.take(store_conn, 1, no, -1.0)
    fast = rewards.take(store_conn, 1, no, 60.0)
    assert (slow.takes, fast.takes) == (1, 2), "who lets its deadline pass is followed"
    assert not rewards.extend(store_conn, slow, 60.0)
    assert rewards.settle(store_conn, fast, "fast")
    assert not rewards.settle(store_conn, slow, "slow")
    assert rewards.collect(store_conn, 1, [no]) == [Given(no, "fast", "")]


def test_a_try_that_failed_comes_again_with_its_reason_and_the_last_one_is_the_result(store_conn, play):
    (no,) = rewards.ask(store_conn, play, asked(0))
    assert rewards.try_again(store_conn, rewards.take(store_conn, 1, no, 60.0), "busy", 0.0)
    assert rewards.due(store_conn, 1, [no]) == [no]
    assert rewards.due(store_conn, 1, [no]) == [], "told a moment ago"
    held = rewards.take(store_conn, 1, no, 60.0)
    assert (held.takes, held.reason) == (2, "busy")
    assert rewards.settle(store_conn, held, "", "busy again")
    assert rewards.collect(store_conn, 1, [no]) == [Given(no, "", "busy again")]


def test_what_a_worker_held_is_given_back(store_conn, play):
    first, second = rewards.ask(store_conn, play, asked(0, 1))
    for no in (first, second):
        rewards.take(store_conn, 1, no, 60.0, "box/reward")
    assert rewards.reopen_of(store_conn, "box/reward") == [(1, first), (1, second)]
    held = rewards.take(store_conn, 1, first, 60.0)
    assert held.takes == 2, "it died at a try, which counts"
    rewards.give_back(store_conn, held)
    assert rewards.take(store_conn, 1, first, 60.0).takes == 2, "one that was given back does not"


def test_nobody_works_for_a_play_that_is_not_held(story, store_conn, play):
    (no,) = rewards.ask(store_conn, play, asked(0))
    commands.reopen(store_conn, play)
    assert rewards.take(store_conn, 1, no, 60.0) is None
    with pytest.raises(TokenLost):
        rewards.ask(store_conn, play, asked(1))
    again = commands.take(store_conn, 1, play.no, 60.0)
    assert rewards.take(store_conn, 1, no, 60.0) is None, "nor for what an earlier taker played"
    rewards.ask(store_conn, again, asked(0, attempt=4))
    assert store_conn.execute("SELECT attempt FROM store.reward_task").fetchall() == [(4,)]


def test_what_another_play_left_of_the_same_members_is_not_read(story, store_conn, play):
    (old,) = rewards.ask(store_conn, play, asked(0))
    rewards.settle(store_conn, rewards.take(store_conn, 1, old, 60.0), "of the old play")
    no = story.play(0)
    taken = commands.take(store_conn, 1, no, 60.0)
    (new,) = rewards.ask(store_conn, taken, asked(0))
    assert new != old
    assert rewards.collect(store_conn, 1, [old, new]) == []


def test_what_nobody_waits_for_is_forgotten(store_conn, play):
    (no,) = rewards.ask(store_conn, play, asked(0))
    held = rewards.take(store_conn, 1, no, 60.0)
    rewards.forget(store_conn, 1, [no])
    assert not rewards.extend(store_conn, held, 60.0)
    assert not rewards.settle(store_conn, held, "late")


def test_a_run_that_is_dropped_takes_its_tasks_along(store_conn, play):
    rewards.ask(store_conn, play, asked(0))
    store_conn.execute("UPDATE store.run_state SET status = 'completed'")
    deletions.drop_run(store_conn, 1)
    assert store_conn.execute("SELECT count(*) FROM store.reward_task").fetchone() == (0,)
