"""Facts reach the log once, whoever commits when."""

import threading

import pytest

from flexmarl.contracts.commands import RequestDevices
from flexmarl.contracts.events import ChildLost, RunVerb, Verb
from flexmarl.store.control import inbox, runs
from flexmarl.store.control.runs import RunLease
from flexmarl.store.errors import FenceLost

pytestmark = pytest.mark.services


def lost(number):
    return ChildLost(lease_id=number)


def test_a_row_committed_late_behind_a_later_one_is_not_lost(story, another):
    slow, quick = another(), another()
    with slow.transaction():
        inbox.put_event(slow, 1, "first", lost(1))  # takes the lower id, commits later
        inbox.put_event(quick, 1, "second", lost(2))
        assert story.kinds() == ["child_lost"]
        assert story.handled[0].lease_id == 2
    story.decide()
    assert [event.lease_id for event in story.handled] == [2, 1]


def test_a_key_is_accepted_once_while_it_waits_and_after_it_was_handled(story):
    assert inbox.put_event(story.conn, 1, "key", lost(1))
    assert not inbox.put_event(story.conn, 1, "key", lost(2))
    story.decide()
    assert not inbox.put_event(story.conn, 1, "key", lost(3))
    story.decide()
    assert [event.lease_id for event in story.handled] == [1]


def test_a_repetition_that_slips_in_while_the_driver_commits_is_discarded(story, another):
    inbox.put_event(story.conn, 1, "key", lost(1))
    repeater = another()
    with story.conn.transaction():
        story.decide()  # its row is deleted and its key handled, neither is committed
        repeating = threading.Thread(target=inbox.put_event, args=(repeater, 1, "key", lost(2)))
        repeating.start()
        repeating.join(0.3)
        assert repeating.is_alive()  # it waits for the unique key: its look at `handled` is over
    repeating.join(60)
    story.decide()
    assert [event.lease_id for event in story.handled] == [1]
    assert story.count("inbox") == 0


def test_what_a_stalled_driver_holds_is_skipped_and_comes_back(story, another):
    inbox.put_event(story.conn, 1, "key", lost(1))
    stalled = another()
    stalled.execute("BEGIN")
    assert len(inbox.take_events(stalled, 1)) == 1
    assert story.kinds() == []
    stalled.execute("ROLLBACK")
    assert story.kinds() == ["child_lost"]


def test_a_failed_decision_leaves_the_events_waiting(story):
    inbox.put_event(story.conn, 1, "key", lost(1))
    with pytest.raises(FenceLost):
        story.decide(lease=RunLease(1, "somebody", 99))
    assert story.kinds() == ["child_lost"]


def test_a_batch_is_bounded_and_in_order(story):
    inbox.put_events(story.conn, 1, [(str(i), lost(i)) for i in range(5)])
    with story.conn.transaction():
        assert [one.event.lease_id for one in inbox.take_events(story.conn, 1, limit=3)] == [0, 1, 2]


def test_the_driver_is_hinted(story, another):
    listener = another()
    listener.execute("LISTEN flexmarl_inbox")
    inbox.put_event(story.conn, 1, "key", lost(1))
    inbox.put_event(story.conn, 1, "key", lost(1))
    [first] = listener.notifies(timeout=30, stop_after=1)
    assert first.payload == "1"
    assert list(listener.notifies(timeout=0.3)) == [], "the same fact again is no news"


def test_who_provides_hosts_is_hinted_at_requests_for_devices_alone(story, another):
    listener = another()
    listener.execute("LISTEN flexmarl_demands")
    story.play(0)
    story.decide(RequestDevices(pool="default", engines=1, trainers=1))
    assert [note.payload for note in listener.notifies(timeout=30, stop_after=1)] == [""]
    assert list(listener.notifies(timeout=0.3)) == []


def test_a_wish_is_pending_until_it_is_handled(story):
    inbox.put_verb(story.conn, 1, "verb:a", RunVerb(verb=Verb.PAUSE))
    assert runs.load_run(story.conn, 1).pending_verb == "pause"
    story.decide()
    assert runs.load_run(story.conn, 1).pending_verb == ""
