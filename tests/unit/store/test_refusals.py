"""Bad input at the store's door: each is refused by its own name, and no row is changed by it."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from flexmarl.contracts.commands import Accumulate, GroupOrder, PlayGroups
from flexmarl.contracts.events import DeviceUse
from flexmarl.contracts.wire import Origin, TrainStats
from flexmarl.store.control import commands, runs
from flexmarl.store.data import groups, micro_batches, steps
from flexmarl.store.data.payload import pack
from flexmarl.store.errors import StoreError
from tests.support.store_story import Story

pytestmark = pytest.mark.services
TABLES = ("inbox", "event", "episode", "sample", "micro_batch", "policy_version", "note", "ruling")


def unknown_run(story: Story) -> None:
    runs.load_spec(story.conn, 999)


def foreign_run(story: Story) -> None:
    """A worker holds a command of run 1 and speaks of run 2."""
    taken = story.take(story.play(0))
    groups.put_groups(story.conn, replace(taken, run_id=2), [story.group(0, taken)])


def void_command(story: Story) -> None:
    no = story.play(0)
    taken = story.take(no)
    story.decide(void=(no,))
    groups.put_groups(story.conn, taken, [story.group(0, taken)])


def result_twice(story: Story) -> None:
    taken = story.take(story.play(0))
    groups.put_groups(story.conn, taken, [story.group(0, taken)])
    commands.finish(story.conn, taken)
    groups.put_groups(story.conn, taken, [story.group(0, taken)])


def taken_by_another(story: Story) -> None:
    no = story.play(0)
    late = story.take(no)
    story.lapse(no)
    story.take(no)
    groups.put_groups(story.conn, late, [story.group(0, late)])


def old_epoch(story: Story) -> None:
    taken = story.take(story.play(0))
    story.epoch = 2
    story.decide()
    groups.put_groups(story.conn, taken, [story.group(0, taken)])


def old_driver(story: Story) -> None:
    old = story.lease
    story.conn.execute("UPDATE store.run_state SET lease_until = now() - interval '1 s'")
    assert runs.claim_runs(story.conn, "driver-2", 30.0)
    story.decide(lease=old)


def old_fence(story: Story) -> None:
    lease_id = trained(story)
    taken = story.take_step(lease_id, "0:t1", (0,), 1)
    story.conn.execute("UPDATE store.lease SET incarnation = 't2' WHERE id = %s", [lease_id])
    steps.commit_step(story.conn, taken, story.step_of(lease_id, "0:t1", (0,), 1))


def other_draw(story: Story) -> None:
    taken = story.take(story.play(0))
    groups.put_groups(story.conn, taken, [story.group(7, taken)])


def other_members(story: Story) -> None:
    order = (GroupOrder(draw=0, task_seed=0, members=1),)
    no = story.issue(
        PlayGroups(pool="default", epoch=1, origin=Origin.TRAIN, groups=order, pins={}, sampling_seed=1, cohort=0)
    )
    taken = story.take(no)
    groups.put_groups(story.conn, taken, [story.group(0, taken)])


def other_micro_batch(story: Story) -> None:
    lease_id = trained(story)
    story.settle(2)
    story.cut(1, 2)
    order = Accumulate(lease_id=lease_id, policy="solver", micro_batch=0, accumulator="0:t1", entropy_coef=0.0)
    taken = story.take(story.issue(order))
    micro_batches.accumulated(story.conn, taken, "solver", 1, accumulator="0:t1", stats=TrainStats())


def other_policy(story: Story) -> None:
    lease_id = trained(story)
    taken = story.take_step(lease_id, "0:t1", (0,), 1)
    step = replace(story.step_of(lease_id, "0:t1", (0,), 1), policy="critic")
    steps.commit_step(story.conn, taken, step)


def gap_in_versions(story: Story) -> None:
    lease_id = trained(story)
    taken = story.take_step(lease_id, "0:t1", (0,), 2)
    steps.commit_step(story.conn, taken, story.step_of(lease_id, "0:t1", (0,), 2))


def other_accumulator(story: Story) -> None:
    lease_id = trained(story)
    taken = story.take_step(lease_id, "9:t1", (0,), 1)
    steps.commit_step(story.conn, taken, story.step_of(lease_id, "9:t1", (0,), 1))


def other_digest(story: Story) -> None:
    lease_id = trained(story)
    bind = steps.BoundState(lease_id, "t1", "solver", 0, "f" * 64, "state-0", False)
    steps.commit_bind(story.conn, story.take_step(lease_id, "0:t1", (0,), 1), bind)


def applied_micro_batch(story: Story) -> None:
    lease_id = trained(story)
    story.step(lease_id, "0:t1", (0,), 1)
    story.accumulate(lease_id, 0, "1:t1")


def absent_version(story: Story) -> None:
    steps.version_of(story.conn, 1, "solver", 3)


def absent_micro_batch(story: Story) -> None:
    micro_batches.read(story.conn, 1, "solver", 3)


def lost_sample(story: Story) -> None:
    trained(story)
    story.conn.execute("DELETE FROM store.sample WHERE draw = 0 AND member = 0")
    micro_batches.read(story.conn, 1, "solver", 0)


def uneven_payload(story: Story) -> None:
    pack([1], [2, 3], [-0.5])


def trained(story: Story) -> int:
    """Bring a trainer up with one micro-batch in its accumulator; returns its lease."""
    lease_id = story.granted()[DeviceUse.TRAINER]
    story.hosted(lease_id, DeviceUse.TRAINER, "t1")
    story.bind(lease_id, "t1", None)
    story.settle(0, 1)
    story.cut(0, 0, 1)
    story.accumulate(lease_id, 0, "0:t1")
    return lease_id


TABLE: list[tuple[Callable[[Story], None], str]] = [
    (unknown_run, "unknown_run"),
    (foreign_run, "token_lost"),
    (void_command, "token_lost"),
    (result_twice, "token_lost"),
    (taken_by_another, "token_lost"),
    (old_epoch, "epoch_stale"),
    (old_driver, "fence_lost"),
    (old_fence, "lease_lost"),
    (other_draw, "outside_command"),
    (other_members, "outside_command"),
    (other_micro_batch, "outside_command"),
    (other_policy, "outside_command"),
    (gap_in_versions, "version_conflict"),
    (other_accumulator, "accumulator_differs"),
    (other_digest, "version_differs"),
    (applied_micro_batch, "micro_batch_closed"),
    (absent_version, "no_version"),
    (absent_micro_batch, "no_micro_batch"),
    (lost_sample, "missing_sample"),
    (uneven_payload, "payload_shape"),
]


@pytest.mark.parametrize(("act", "code"), TABLE, ids=[act.__name__ for act, _ in TABLE])
def test_bad_input_has_a_name_and_changes_nothing(story: Story, monkeypatch, act, code) -> None:
    """The last call of `act` is the refused one; rows are counted by what is there before it and after."""
    seen: dict[str, list[int]] = {"before": []}
    guarded = (groups.put_groups, steps.commit_step, steps.commit_bind, micro_batches.accumulated)
    for door in guarded:
        module = __import__(door.__module__, fromlist=["x"])
        monkeypatch.setattr(module, door.__name__, counting(story, seen, door))
    with pytest.raises(StoreError) as refused:
        act(story)
    assert getattr(refused.value, "code", None) == code
    if seen["before"]:
        assert [story.count(table) for table in TABLES] == seen["before"]


def counting(story, seen, door):
    def call(*args, **options):
        seen["before"] = [story.count(table) for table in TABLES]
        answer = door(*args, **options)
        seen["before"] = []  # taken: the next call is the one to be refused
        return answer

    return call
