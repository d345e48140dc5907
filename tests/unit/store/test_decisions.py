"""A decision is written whole, by the driver that holds the run, or not at all."""

import pytest

from flexmarl.contracts.commands import GroupOrder, HoldGroups, PlayGroups, ReleaseLease
from flexmarl.contracts.decisions import Metric
from flexmarl.contracts.events import ChildLost, DeviceUse
from flexmarl.contracts.live import Progress
from flexmarl.contracts.status import RunReason, RunStatus
from flexmarl.store.control import commands, decisions, inbox, runs
from flexmarl.store.control.commands import ClaimStatus
from flexmarl.store.errors import FenceLost
from flexmarl.store.telemetry import metrics

pytestmark = pytest.mark.services


def decision(entries=(), status=RunStatus.RUNNING, **fields):
    return decisions.StoredDecision(entries, status, RunReason.NONE, "", 1, 0, Progress(), None, **fields)


def expire(conn):
    conn.execute("UPDATE store.run_state SET lease_until = clock_timestamp() - interval '1 ms'")


def test_two_drivers_only_the_newer_fence_writes(story):
    old = story.lease
    expire(story.conn)
    [new] = runs.claim_runs(story.conn, "driver-2", 30)
    assert new.fence == old.fence + 1
    inbox.put_event(story.conn, 1, "key", ChildLost(lease_id=1))
    with pytest.raises(FenceLost):
        story.decide()
    assert (story.count("event"), story.count("inbox")) == (0, 1)
    story.decide(lease=new)
    assert story.count("event") == 1


def test_a_held_run_is_not_claimed_and_an_ended_or_draft_one_neither(story):
    runs.create_run(story.conn, 2, {}, RunStatus.DRAFT)
    runs.create_run(story.conn, 3, {}, RunStatus.COMPLETED)
    assert runs.claim_runs(story.conn, "driver-2", 30) == []
    assert runs.renew_runs(story.conn, "driver-1", 30) == {1}
    runs.release_runs(story.conn, "driver-1")
    assert [lease.run_id for lease in runs.claim_runs(story.conn, "driver-2", 30)] == [1]
    assert runs.renew_runs(story.conn, "driver-1", 30) == set()


def test_the_log_takes_no_gap_and_no_repetition(story):
    entry = decisions.LogEntry(1, 1.0, ChildLost(lease_id=1))
    decisions.append(story.conn, story.lease, decision([entry]))
    for seq in (1, 3):
        wrong = decision([decisions.LogEntry(seq, 1.0, ChildLost(lease_id=1))])
        with pytest.raises(FenceLost):
            decisions.append(story.conn, story.lease, wrong)
    assert [one.seq for one in runs.events_after(story.conn, 1, 0)] == [1]


def test_a_snapshot_stays_until_a_newer_one_comes(story):
    def log(seq, snapshot):
        entry = decisions.LogEntry(seq, float(seq), ChildLost(lease_id=seq))
        decisions.append(story.conn, story.lease, decision([entry], snapshot=snapshot))

    log(1, b"one")
    log(2, None)
    stored = runs.load_run(story.conn, 1)
    assert (stored.snapshot, stored.snapshot_seq, stored.seq) == (b"one", 1, 2)
    assert [one.event.lease_id for one in runs.events_after(story.conn, 1, stored.snapshot_seq)] == [2]
    log(3, b"three")
    assert runs.load_run(story.conn, 1).snapshot_seq == 3


def test_metrics_are_replaced_per_step_and_listed_with_their_range(story):
    points = [(10.0 + step, Metric("reward/team", step, value)) for step, value in ((0, 1.0), (1, 5.0))]
    decisions.append(story.conn, story.lease, decision(metrics=points))
    again = [(11.0, Metric("reward/team", 1, 3.0))]
    decisions.append(story.conn, story.lease, decision(metrics=again))
    [summary] = metrics.catalogue(story.conn, 1)
    assert (summary.first, summary.last, summary.max, summary.last_step) == (1.0, 3.0, 3.0, 1)
    [series] = metrics.series(story.conn, 1, ["reward/team"], window=metrics.SeriesWindow(x="time"))
    assert (series.x, series.y) == ([10.0, 11.0], [1.0, 3.0])


def test_a_voided_command_tells_its_taker(story):
    no = story.play(0)
    taken = story.take(no)
    story.decide(void=(no,))
    assert commands.extend(story.conn, [taken], 5) == [ClaimStatus.GONE]
    assert commands.take(story.conn, 1, no, 5) is None


def test_a_held_command_tells_its_taker_and_whoever_takes_it_next(story):
    held, other = story.play(0), story.play(1)
    taken, beside = story.take(held), story.take(other)
    story.decide(HoldGroups(commands=(held,), hold=True))
    assert (taken.held, commands.extend(story.conn, [taken, beside], 5)) == (
        False,
        [ClaimStatus.HELD, ClaimStatus.GOES_ON],
    )
    assert commands.held_among(story.conn, [beside, taken]) == [ClaimStatus.GOES_ON, ClaimStatus.HELD]
    story.lapse(held)
    again = commands.take(story.conn, 1, held, 5)
    assert again.held, "its worker is gone: who comes next begins with it held"
    story.decide(HoldGroups(commands=(held,), hold=False))
    assert commands.extend(story.conn, [again, taken], 5) == [ClaimStatus.GOES_ON, ClaimStatus.GONE]
    assert commands.held_among(story.conn, [again, taken]) == [ClaimStatus.GOES_ON, ClaimStatus.GONE]
    assert commands.due(story.conn, 1) == [], "holding is no work of anybody"


def test_an_ended_run_leaves_no_micro_batch_half_done(story):
    story.settle(0, 1)
    story.cut(0, 0)
    story.status = RunStatus.KILLED
    story.decide()
    row = story.conn.execute("SELECT status, reason FROM store.micro_batch").fetchone()
    assert row == ("void", "killed")
    assert runs.load_run(story.conn, 1).finished_at is not None


def test_a_lease_that_was_never_hosted_ends_with_its_release(story):
    leased = story.granted()
    story.decide(ReleaseLease(lease_id=leased[DeviceUse.ENGINE]))
    assert story.kinds()[-1] == "lease_ended"
    story.hosted(leased[DeviceUse.TRAINER], DeviceUse.TRAINER, "t")
    story.decide(ReleaseLease(lease_id=leased[DeviceUse.TRAINER]))
    states = story.conn.execute("SELECT state FROM store.lease ORDER BY id").fetchall()
    assert states == [("ended",), ("releasing",)]


def test_an_older_epoch_is_not_taken_and_learns_it_when_held(story):
    held, waiting = story.take(story.play(0)), story.play(1)
    story.epoch = 2
    story.decide()
    assert commands.extend(story.conn, [held], 5) == [ClaimStatus.GONE]
    assert commands.take(story.conn, 1, waiting, 5) is None
    order = (GroupOrder(draw=2, task_seed=2, members=2),)
    fresh = story.issue(PlayGroups(pool="p", epoch=2, origin="train", groups=order, pins={}, sampling_seed=1))
    assert commands.take(story.conn, 1, fresh, 5) is not None
