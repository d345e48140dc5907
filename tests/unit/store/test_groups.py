"""Rows and the event that speaks of them appear together, once, from whoever holds the token."""

from dataclasses import replace

import pytest

from flexmarl.store.control import commands
from flexmarl.store.data import groups
from flexmarl.store.data.payload import pack, unpack
from flexmarl.store.errors import EpochStale, Refused, TokenLost

pytestmark = pytest.mark.services


def test_a_worker_that_commits_rows_and_dies_before_reporting_is_continued(story):
    no = story.play(0, 1, 2)
    dead = story.take(no)
    groups.put_groups(story.conn, dead, [story.group(0, dead), story.group(1, dead)])
    story.lapse(no)
    heir = story.take(no)
    assert groups.settled_members(story.conn, 1, [0, 1, 2]).keys() == {0, 1}
    # An heir that looks too early and plays a settled draw again adds nothing either.
    assert groups.put_groups(story.conn, heir, [story.group(1, heir), story.group(2, heir)]) == 1
    commands.finish(story.conn, heir)
    assert story.kinds() == ["group_settled"] * 3
    assert sorted(event.draw for event in story.handled) == [0, 1, 2]
    assert (story.count("episode"), story.count("sample")) == (6, 6)


def test_a_stalled_worker_and_its_redelivered_twin_do_not_both_write(story, another):
    no = story.play(0)
    stalled = story.take(no)
    story.lapse(no)
    twin_conn = another()
    twin = commands.take(twin_conn, 1, no, 30)
    with pytest.raises(TokenLost):
        groups.put_groups(story.conn, stalled, [story.group(0, stalled)])
    groups.put_groups(twin_conn, twin, [story.group(0, twin)])
    with pytest.raises(TokenLost):
        groups.put_groups(story.conn, stalled, [story.group(0, stalled)])
    attempts = story.conn.execute("SELECT DISTINCT attempt FROM store.sample").fetchall()
    assert attempts == [(2,)]
    assert story.kinds() == ["group_settled"]


def test_a_twin_waits_while_the_first_writes_and_then_sees_its_rows(story, another):
    no = story.play(0)
    first = story.take(no)
    story.lapse(no)
    other = another()
    other.execute("SET lock_timeout = '200ms'")
    with story.conn.transaction():
        groups.put_groups(story.conn, first, [story.group(0, first)])
        with pytest.raises(Exception, match="lock timeout"):
            commands.take(other, 1, no, 30)
    assert commands.take(other, 1, no, 30) is not None
    assert groups.settled_members(other, 1, [0]).keys() == {0}


def test_a_lost_acknowledgement_is_harmless(story):
    taken = story.take(story.play(0))
    assert groups.put_groups(story.conn, taken, [story.group(0, taken)]) == 1
    assert groups.put_groups(story.conn, taken, [story.group(0, taken)]) == 0


def test_work_of_an_older_epoch_is_refused(story):
    taken = story.take(story.play(0))
    story.epoch = 2
    story.decide()
    with pytest.raises(EpochStale):
        groups.put_groups(story.conn, taken, [story.group(0, taken)])
    assert story.count("episode") == 0


def test_a_group_is_written_whole_or_not_at_all(story):
    taken = story.take(story.play(0))
    good = story.group(0, taken)
    broken = groups.SettledGroup(good.event, good.episodes, [*good.samples, good.samples[0]])
    with pytest.raises(Exception, match="duplicate key"):
        groups.put_groups(story.conn, taken, [broken])
    assert (story.count("episode"), story.count("sample"), story.count("inbox")) == (0, 0, 0)


def test_zero_bytes_of_foreign_code_keep_no_group_from_being_written(story):
    """PostgreSQL holds none, neither in text nor in JSON; what only looks like an escaped one stays as it is."""
    taken = story.take(story.play(0))
    whole = story.group(0, taken)
    bad, fine = "a\x00b", "a\\u0000b"
    rows = [
        replace(row, reason=bad, task={"text": bad, "other": fine}, judged=[{"why": bad}]) for row in whole.episodes
    ]
    event = tuple(one.model_copy(update={"reason": bad}) for one in whole.event.episodes)
    group = replace(whole, event=whole.event.model_copy(update={"episodes": event}), episodes=rows)
    assert groups.put_groups(story.conn, taken, [group]) == 1
    query = "SELECT reason, task, judged->0->>'why' FROM store.episode WHERE run_id = 1"
    assert set(map(str, story.conn.execute(query).fetchall())) == {
        str(("a\ufffdb", {"text": "a\ufffdb", "other": fine}, "a\ufffdb"))
    }
    no = story.play(1)
    commands.fail(story.conn, story.take(no), "rollout_error", bad, retryable=False)
    assert story.conn.execute("SELECT error->>'message' FROM store.command WHERE no = %s", [no]).fetchone() == (
        "a\ufffdb",
    )


def test_payload_round_trip_and_refusal():
    packed = pack([1, 2], [3, 4, 5], [-0.5, -1.5, -2.5], [7])
    arrays = unpack(packed, 2, 3, 1)
    assert (arrays.prompt_ids().tolist(), arrays.response_ids().tolist()) == ([1, 2], [3, 4, 5])
    assert (arrays.response_logprobs().tolist(), arrays.allowed_ids().tolist()) == ([-0.5, -1.5, -2.5], [7])
    with pytest.raises(Refused):
        pack([1], [2, 3], [-0.5])
    with pytest.raises(Refused):
        unpack(packed, 2, 2, 1)


def test_members_that_settle_one_by_one_are_written_once_each(story):
    no = story.play(0)
    taken = story.take(no)
    whole = story.group(0, taken)
    parts = [
        groups.SettledGroup(
            event=whole.event.model_copy(
                update={"part": True, "episodes": tuple(x for x in whole.event.episodes if x.member == member)}
            ),
            episodes=[row for row in whole.episodes if row.member == member],
            samples=[row for row in whole.samples if row.member == member],
        )
        for member in (0, 1)
    ]
    assert groups.put_groups(story.conn, taken, parts[:1]) == 1
    story.lapse(no)
    heir = story.take(no)
    assert groups.settled_members(story.conn, 1, [0]) == {0: {0}}
    assert groups.put_groups(story.conn, heir, parts) == 1
    assert groups.settled_members(story.conn, 1, [0]) == {0: {0, 1}}
    assert story.kinds() == ["group_settled"] * 2
    assert (story.count("episode"), story.count("sample")) == (len(whole.episodes), len(whole.samples))
