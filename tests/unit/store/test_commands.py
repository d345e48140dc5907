"""A command has one live token; pushes repeat until somebody took it."""

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from flexmarl.contracts.commands import Accumulate, LoadWeights
from flexmarl.contracts.events import DeviceUse
from flexmarl.store.control import commands
from flexmarl.store.control.commands import ClaimStatus
from flexmarl.store.data import micro_batches, ready_commands
from flexmarl.store.errors import EpochStale, TokenLost
from tests.support.store_story import DIGEST

pytestmark = pytest.mark.services


def load(lease_id, version=0):
    return LoadWeights(lease_id=lease_id, policy="solver", version=version, digest=DIGEST)


def test_of_many_takers_one_gets_it(story, another):
    no = story.play(0)
    connections = [another() for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda conn: commands.take(conn, 1, no, 30), connections))
    assert sum(one is not None for one in taken) == 1


def test_a_deadline_that_passed_gives_the_command_a_new_token(story):
    no = story.play(0)
    first = story.take(no)
    assert commands.take(story.conn, 1, no, 30) is None
    story.lapse(no)
    second = story.take(no)
    assert (first.takes, second.takes) == (1, 2)
    for stale in (commands.finish, lambda c, t: commands.fail(c, t, "x", "y", False), commands.guard):
        with pytest.raises(TokenLost):
            stale(story.conn, first)
    commands.reopen(story.conn, first)
    assert commands.extend(story.conn, [second], 30) == [ClaimStatus.GOES_ON]
    commands.finish(story.conn, second)
    assert story.count("inbox") == 0


def test_an_extended_command_is_not_taken_again(story):
    no = story.play(0)
    taken = story.take(no)
    story.lapse(no)
    assert commands.extend(story.conn, [taken], 30) == [ClaimStatus.GOES_ON]
    assert commands.take(story.conn, 1, no, 30) is None


def test_many_are_extended_together_and_one_that_is_locked_is_not_waited_for(story):
    first, second, lost = (story.take(story.play(draw)) for draw in range(3))
    for one in (first, second, lost):
        story.lapse(one.no)
    again = commands.take(story.conn, 1, lost.no, 30)
    with psycopg.connect(story.conn.info.dsn, password=story.conn.info.password) as other:
        other.execute("SELECT FROM store.command WHERE no = %s FOR UPDATE", [second.no])
        assert commands.extend(story.conn, [first, second, lost, again], 30) == [
            ClaimStatus.GOES_ON,
            ClaimStatus.GOES_ON,
            ClaimStatus.GONE,
            ClaimStatus.GOES_ON,
        ]
    assert commands.take(story.conn, 1, first.no, 30) is None
    assert commands.take(story.conn, 1, second.no, 30) is not None, "nobody moved the deadline of the locked one"


def test_a_failure_is_an_event_once(story):
    taken = story.take(story.play(0))
    commands.fail(story.conn, taken, "rollout_error", "it broke", True)
    with pytest.raises(TokenLost):
        commands.fail(story.conn, taken, "rollout_error", "it broke", True)
    assert story.kinds() == ["command_failed"]
    assert (story.handled[0].command_no, story.handled[0].retryable) == (taken.no, True)


def test_guard_names_a_stale_epoch(story):
    taken = story.take(story.play(0))
    story.epoch = 2
    story.decide()
    with pytest.raises(EpochStale):
        commands.guard(story.conn, taken)


def test_pushes_back_off_and_start_again_when_the_command_is_given_back(story):
    no = story.play(0)
    gaps = []
    for _ in range(7):
        [due] = commands.due(story.conn, 1)
        assert (due.no, due.queue) == (no, "rollout.default")
        commands.mark_sent(story.conn, 1, [no])
        assert commands.due(story.conn, 1) == []
        gap = "SELECT extract(epoch FROM next_send - clock_timestamp())::float8 FROM store.command"
        gaps.append(story.conn.execute(gap).fetchone()[0])
        story.conn.execute("UPDATE store.command SET next_send = clock_timestamp()")
    assert gaps == pytest.approx([0.2, 0.5, 1, 2, 5, 5, 5], abs=0.1)
    taken = story.take(no)
    assert commands.due(story.conn, 1) == []
    commands.reopen(story.conn, taken)
    assert [due.sends for due in commands.due(story.conn, 1)] == [0]


def test_a_command_past_its_deadline_is_due_again(story):
    no = story.play(0)
    story.take(no)
    story.lapse(no)
    story.conn.execute("UPDATE store.command SET next_send = clock_timestamp()")
    assert [due.no for due in commands.due(story.conn, 1)] == [no]


def test_node_commands_name_their_node_and_come_in_order(story):
    lease_id = story.granted()[DeviceUse.ENGINE]
    story.hosted(lease_id, DeviceUse.ENGINE, "e1")
    first, second = story.issue(load(lease_id, 0)), story.issue(load(lease_id, 1))
    due = [one for one in commands.due(story.conn, 1) if one.kind == "load_weights"]
    assert [(one.no, one.address, one.lease_id) for one in due] == [
        (first, "127.0.0.1:1", lease_id),
        (second, "127.0.0.1:1", lease_id),
    ]
    assert commands.open_on_node(story.conn, "box") == [(1, first, lease_id), (1, second, lease_id)]
    taken = commands.take_next(story.conn, lease_id, 30).taken
    assert taken.no == first
    assert commands.take_next(story.conn, lease_id, 30) is None  # the older one is in work
    commands.finish(story.conn, taken)
    assert commands.take_next(story.conn, lease_id, 30).taken.no == second


def test_a_command_comes_with_the_rows_that_it_accumulates_and_without_those_that_are_not_there(story):
    lease_id = story.granted()[DeviceUse.TRAINER]
    story.hosted(lease_id, DeviceUse.TRAINER, "t1")
    assert ready_commands.take_next(story.conn, lease_id, 30) is None
    for number in (1, 9):
        order = {"micro_batch": number, "accumulator": "1:t1", "entropy_coef": 0.0}
        story.issue(Accumulate(lease_id=lease_id, policy="solver", **order))
    story.settle(1, 2)
    story.cut(1, 1, 2)
    first = ready_commands.take_next(story.conn, lease_id, 30)
    assert first.more
    assert first.batch == micro_batches.read(story.conn, 1, "solver", 1)
    second = ready_commands.take_next(story.conn, lease_id, 30, first.taken.no)
    assert (second.taken.command.micro_batch, second.batch) == (9, None), "taken nevertheless"
    assert not second.more


def test_a_lane_whose_answer_was_lost_takes_its_command_anew(story):
    lease_id = story.granted()[DeviceUse.ENGINE]
    story.hosted(lease_id, DeviceUse.ENGINE, "e1")
    first, second = story.issue(load(lease_id, 0)), story.issue(load(lease_id, 1))
    lost = commands.take_next(story.conn, lease_id, 30, holder="lane:a").taken
    assert commands.take_next(story.conn, lease_id, 30, holder="lane:b") is None, "another lane waits"
    again = commands.take_next(story.conn, lease_id, 30, holder="lane:a").taken
    assert (again.no, again.takes) == (first, 2)
    with pytest.raises(TokenLost):
        commands.guard(story.conn, lost)
    assert commands.take_next(story.conn, lease_id, 30, first, "lane:a").taken.no == second
    assert commands.take_next(story.conn, lease_id, 30, first, "lane:a") is None, "who holds one took ahead knowingly"


def test_a_successor_in_the_same_place_gives_back_what_was_held(story):
    mine, other, done = story.play(0), story.play(1), story.play(2)
    held = commands.take(story.conn, 1, mine, 30, "here/rollout")
    commands.take(story.conn, 1, other, 30, "there/rollout")
    commands.finish(story.conn, commands.take(story.conn, 1, done, 30, "here/rollout"))
    assert [command.no for command in commands.reopen_of(story.conn, "here/rollout")] == [mine]
    with pytest.raises(TokenLost):
        commands.guard(story.conn, held)
    assert commands.take(story.conn, 1, mine, 30, "here/rollout").takes == 2
    assert commands.take(story.conn, 1, other, 30) is None


def test_nobody_takes_over_from_a_taker_without_a_place(story):
    no = story.play(0)
    held = commands.take(story.conn, 1, no, 30)
    assert commands.reopen_of(story.conn, "") == []
    commands.finish(story.conn, held)
