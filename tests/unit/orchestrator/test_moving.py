"""A recalled lease moves between two cohorts: training goes on meanwhile, nothing is played or trained twice."""

import pytest

from flexmarl.contracts.events import DeviceUse, LeaseRecalled, PoolsChanged, Verb
from flexmarl.contracts.status import RunReason, RunStatus
from tests.unit.orchestrator.asking import account
from tests.unit.orchestrator.fake_cluster import FakeCluster, Faults, make_spec, running, started
from tests.unit.orchestrator.fake_parts import lost


def lease_of(cluster, use):
    return next(lease for lease in cluster.core.state.fleet.at_work(use))


def recall(cluster, lease, withdrawn=False):
    cluster.tell(LeaseRecalled(lease_id=lease.lease_id, reason="box is drained by ada", withdrawn=withdrawn))


@pytest.mark.parametrize("use", list(DeviceUse))
def test_a_recalled_lease_is_replaced_after_the_open_cohort_and_released(use):
    cluster = running(make_spec(budget__train_steps=8), seed=2)
    cluster.run(until=lambda x: x.core.state.step == 2 and x.core.state.cohort)
    old = lease_of(cluster, use)
    played = list(cluster.plays)
    recall(cluster, old)
    [asked] = [command for command in cluster.commands("request_devices") if command.replaces]
    assert (asked.replaces, asked.engines, asked.trainers) == (
        old.lease_id, int(use is DeviceUse.ENGINE), int(use is DeviceUse.TRAINER),
    )  # fmt: skip
    cohort = cluster.core.state.cohort.no
    cluster.run(until=lambda x: old.releasing)
    assert cluster.core.state.cohort is None or cluster.core.state.cohort.no > cohort, "it moves between cohorts only"
    assert lease_of(cluster, use).lease_id != old.lease_id
    cluster.run()
    assert (cluster.status, cluster.core.state.step) == (RunStatus.COMPLETED, 8)
    assert old.lease_id in cluster.ended
    assert cluster.core.state.fleet.replacements == 0, "a move is no loss"
    assert len(set(cluster.plays)) == len(cluster.plays) >= len(played)


def test_both_leases_of_a_node_move_and_no_micro_batch_is_accumulated_again():
    cluster = running(make_spec(budget__train_steps=10), seed=4)
    cluster.run(until=lambda x: x.core.state.step == 1)
    before = [lease_of(cluster, use) for use in DeviceUse]
    for lease in before:
        recall(cluster, lease)
    cluster.run()
    assert cluster.status is RunStatus.COMPLETED
    assert all(lease.releasing for lease in before)
    asked = [(c.policy, c.micro_batch) for c in cluster.commands("accumulate")]
    assert len(asked) == len(set(asked)), "a move at the boundary replays nothing"


@pytest.mark.parametrize("use", list(DeviceUse))
def test_a_recalled_lease_whose_child_is_gone_is_replaced_in_the_middle_of_a_cohort(use):
    """Its node has vanished: the open cohort waits for it, and would wait for ever."""
    cluster = running(make_spec(budget__train_steps=8), seed=2)
    cluster.run(until=lambda x: x.core.state.step == 2 and x.core.state.cohort and x.core.state.cohort.open)
    old = lease_of(cluster, use)
    cluster.put(*lost(old.lease_id, cluster.children.pop(old.lease_id)))
    cluster.ended.add(old.lease_id)  # its node tells nothing more, nor that it has ended
    cohort = cluster.core.state.cohort.no
    recall(cluster, old)
    cluster.run(until=lambda x: old.releasing)
    assert cluster.core.state.cohort is not None
    assert cluster.core.state.cohort.no == cohort, "nothing of it goes on, so nothing is waited for"
    cluster.run()
    assert (cluster.status, cluster.core.state.step) == (RunStatus.COMPLETED, 8)
    account(cluster)


def test_without_a_free_device_the_run_goes_on_and_says_so():
    cluster = running(make_spec(budget__train_steps=30), seed=1)
    cluster.run(until=lambda x: x.core.state.step == 1)
    cluster.grants = False
    old = lease_of(cluster, DeviceUse.TRAINER)
    recall(cluster, old)
    step = cluster.core.state.step
    cluster.run(until=lambda x: x.core.state.step == step + 3)
    state = cluster.core.state
    assert state.lifecycle.reason is RunReason.MOVING
    assert "keeps its device until another is free" in state.lifecycle.reason_text
    assert not old.releasing
    cluster.grants = True
    cluster.run(until=lambda x: old.releasing)
    cluster.run(until=lambda x: x.core.state.lifecycle.reason is RunReason.NONE)


def test_a_withdrawn_recall_gives_the_replacement_back():
    cluster = running(make_spec(budget__train_steps=8), seed=3)
    cluster.run(until=lambda x: x.core.state.cohort and x.core.state.cohort.open)
    old = lease_of(cluster, DeviceUse.ENGINE)
    recall(cluster, old)
    [number] = [n for n, x in cluster.open.items() if x.command.kind == "request_devices"]
    cluster.execute(number)
    cluster.deliver(next(i for i, x in enumerate(cluster.inbox) if x.kind == "devices_granted"))
    [standby] = [lease for lease in cluster.core.state.fleet.leases.values() if lease.replaces]
    recall(cluster, old, withdrawn=True)
    assert standby.releasing
    cluster.run()
    assert cluster.status is RunStatus.COMPLETED
    assert old.lease_id not in {command.lease_id for command in cluster.commands("release_lease")[:1]}


def test_a_grant_that_came_after_its_request_was_withdrawn_is_given_back():
    cluster = running(make_spec(budget__train_steps=8), seed=3)
    old = lease_of(cluster, DeviceUse.ENGINE)
    recall(cluster, old)
    [number] = [n for n, x in cluster.open.items() if x.command.kind == "request_devices"]
    cluster.execute(number)
    recall(cluster, old, withdrawn=True)
    cluster.deliver(next(i for i, x in enumerate(cluster.inbox) if x.kind == "devices_granted"))
    assert [command.lease_id for command in cluster.commands("release_lease")] == [3]
    assert all(lease.lease_id != 3 for lease in cluster.core.state.fleet.leases.values())


def test_a_recalled_lease_that_ends_first_is_a_loss_and_its_replacement_steps_in():
    cluster = running(make_spec(budget__train_steps=8), seed=6)
    cluster.run(until=lambda x: x.core.state.step == 1 and x.core.state.cohort and x.core.state.cohort.open)
    old = lease_of(cluster, DeviceUse.TRAINER)
    recall(cluster, old)
    [number] = [n for n, x in cluster.open.items() if x.command.kind == "request_devices"]
    cluster.execute(number)
    cluster.deliver(next(i for i, x in enumerate(cluster.inbox) if x.kind == "devices_granted"))
    cluster.end_lease(old.lease_id, "device gone")
    cluster.deliver(next(i for i, x in enumerate(cluster.inbox) if x.kind == "lease_ended"))
    assert lease_of(cluster, DeviceUse.TRAINER).replaces == old.lease_id
    assert "devices" not in cluster.core.state.outstanding, "nothing more is to be asked for"
    cluster.run()
    assert (cluster.status, cluster.core.state.step) == (RunStatus.COMPLETED, 8)


def test_a_paused_run_moves_at_once():
    cluster = running(make_spec(budget__train_steps=8), seed=5)
    cluster.verb(Verb.PAUSE)
    cluster.run(until=lambda x: x.status is RunStatus.PAUSED)
    old = lease_of(cluster, DeviceUse.TRAINER)
    recall(cluster, old)
    cluster.run(until=lambda x: old.releasing)
    assert cluster.status is RunStatus.PAUSED
    cluster.verb(Verb.RESUME)
    cluster.run()
    assert cluster.status is RunStatus.COMPLETED


def test_moves_with_deaths_in_any_order_lose_nothing():
    faults = Faults(twice=0.1, recall=0.03, child_death=0.004, uncommitted=0.05, zombie=0.1)
    moved = 0
    for seed in range(20):
        cluster = started(make_spec(batch__min_members=2), seed=seed, faults=faults, round_trip=seed % 2 == 0).run()
        assert cluster.status is RunStatus.COMPLETED, cluster.core.state.lifecycle.reason_text
        assert cluster.core.state.totals.samples_trained == len(cluster.trained)
        moved += any(command.replaces for command in cluster.commands("request_devices"))
    assert moved > 10


def test_a_queued_run_asks_in_the_pools_it_was_moved_to_and_a_late_move_changes_nothing():
    cluster = FakeCluster(make_spec())
    cluster.verb(Verb.START)
    cluster.tell(PoolsChanged(rollout_pool="gpu", training_pool="cpu", actor="ada"))
    first, second = cluster.commands("request_devices")
    assert (first.pool, second.pool, second.trainer_pool) == ("default", "gpu", "cpu")
    assert len(cluster.open) == 1, "the former request is void"
    cluster.run(until=lambda x: x.status is RunStatus.RUNNING)
    cluster.tell(PoolsChanged(rollout_pool="default", training_pool="default"))
    assert cluster.core.state.fleet.pools.rollout == "gpu"
    assert "came too late" in cluster.notes[-1].text
    assert {command.pool for command in cluster.commands("play_groups")} == {"gpu"}
