"""Policies on trainer devices of which there is a choice, or too few: whole runs under faults, and single decisions."""

import itertools

import pytest

from flexmarl.contracts import events as e
from flexmarl.contracts.rulings import RulingKind
from flexmarl.contracts.status import RunStatus
from flexmarl.orchestrator.allocation.binding import on_gang_s, took_work
from flexmarl.orchestrator.state.policy import PolicyPlacement, PolicyState
from flexmarl.orchestrator.training import trainers
from tests.unit.orchestrator.fake_cluster import Faults, make_spec, running, started


def team(devices, places=None, **changes):
    """A team of two with devices to choose from."""
    return make_spec(resources__training_devices=devices, resources__trainer_policies=places, **changes)


def ended_well(cluster):
    cluster.run()
    assert cluster.status is RunStatus.COMPLETED, cluster.core.state.lifecycle.reason_text
    assert cluster.core.state.step == cluster.spec.budget.train_steps
    return cluster


@pytest.mark.parametrize("kind", ["agent_centric", "static"])
@pytest.mark.parametrize(("devices", "places"), [(2, None), (2, 1), (3, 1)])
def test_a_team_trains_on_several_devices(devices, places, kind):
    cluster = ended_well(started(team(devices, places, mechanisms__allocation=kind), seed=3))
    assert len({command.lease_id for command in cluster.commands("optimizer_step")}) == 2
    if kind == "static":
        assert not cluster.commands("suspend_policy")


def test_policies_that_share_one_place_take_turns_with_what_they_have_gathered():
    cluster = ended_well(started(team(1, 1), seed=3))
    assert cluster.commands("suspend_policy")
    resumed = [command for command in cluster.commands("bind_policy") if command.resume]
    assert resumed
    assert all(command.accumulator for command in resumed)
    numbers = [(command.policy, command.micro_batch) for command in cluster.commands("accumulate")]
    assert len(numbers) == len(set(numbers)), "a gradient was computed twice although no trainer was lost"


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(("devices", "places"), [(1, 1), (2, 1), (2, None), (3, 1)])
def test_nothing_is_lost_or_trained_twice_under_faults(devices, places, seed):
    faults = Faults(twice=0.1, child_death=0.01, lease_end=0.001, uncommitted=0.05, refused=0.02, zombie=0.05,
                    recall=0.002, episode_failure=0.02)  # fmt: skip
    cluster = started(team(devices, places), seed=seed, faults=faults, round_trip=seed % 2 == 0)
    cluster.run()
    assert cluster.status in (RunStatus.COMPLETED, RunStatus.FAILED)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("places", [None, 1])
def test_gangs_come_and_go_under_faults_and_nobody_waits_for_ever(places, seed):
    faults = Faults(twice=0.1, child_death=0.01, lease_end=0.001, uncommitted=0.05, refused=0.02, zombie=0.05,
                    recall=0.002, episode_failure=0.02)  # fmt: skip
    own = team(4, places, policies={"speaker": {"devices": {"least": 1, "most": 4}}, "listener": {"devices": 2}},
               batch__micro_batch_groups=1, batch__tasks_per_step=16)  # fmt: skip
    cluster = started(own, seed=seed, faults=faults, round_trip=seed % 2 == 0)
    cluster.run()
    assert cluster.status in (RunStatus.COMPLETED, RunStatus.FAILED)
    gangs = {(command.policy, len(command.gang)) for command in cluster.commands("bind_policy")}
    assert {size for name, size in gangs if name == "listener"} == {2}
    assert {size for name, size in gangs if name == "speaker"} > {0}, "it is never given more than one device"


@pytest.mark.parametrize("seed", range(8))
def test_whoever_is_impatient_lets_others_get_on(seed):
    impatient = {"mechanisms__allocation": {"type": "agent_centric", "patience_s": 0.0}}
    batch = {"batch__micro_batch_groups": 1, "batch__rollout_groups": 1}
    cluster = ended_well(started(team(1, 1, **impatient, **batch), seed=seed))
    causes = [r.cause for d in cluster.decisions for r in d.rulings if r.kind is RulingKind.DEVICES_TAKEN]
    assert "patience" in causes
    assert len(causes) < len(cluster.commands("accumulate")) + len(cluster.commands("optimizer_step")), "mere swapping"


@pytest.mark.parametrize(("seconds", "most"), [(0.0, 2), (0.015, 3), (1e9, 9)])
def test_a_device_has_enough_before_it_to_last_until_an_answer_arrives(seconds, most, monkeypatch):
    monkeypatch.setattr(trainers, "AHEAD_S", seconds)  # micro-batches are said to take 0.01 s
    cluster = started(team(1, 1, batch__micro_batch_groups=1, batch__tasks_per_step=16), seed=3)
    found = []

    def counted(at):
        found.append(len(list(at.core.state.outstanding.keys_of("accumulate:"))))
        return at.status is RunStatus.COMPLETED

    cluster.run(until=counted)
    assert max(found) == most


def test_what_work_takes_is_learned_from_the_rank_that_has_most_of_it():
    policy = PolicyState(placement=PolicyPlacement(gang=[1, 2, 3]))
    took_work(policy, seconds=2.0, tokens=40, rows=4)  # two rows of one rank took as long
    assert policy.placement.token_s == pytest.approx(4.0 / 40)
    assert on_gang_s(policy, rows=4, tokens=40) == pytest.approx(2.0)
    policy.placement.gang = [1, 2]
    assert on_gang_s(policy, rows=4, tokens=40) == pytest.approx(2.0), "a rank more than rows divide by is of no use"
    policy.placement.gang = [1, 2, 3, 4]
    assert on_gang_s(policy, rows=4, tokens=40) == pytest.approx(1.0)


def test_what_a_lost_trainer_had_suspended_is_bound_anew():
    cluster = running(team(1, 1), seed=1)
    cluster.run(until=lambda x: any(p.placement.ticket for p in x.core.state.policies.values()))
    name = next(name for name, p in cluster.core.state.policies.items() if p.placement.ticket)
    trainer = cluster.core.state.fleet.trainers()[0]
    del cluster.children[trainer.lease_id]
    cluster.tell(e.ChildLost(lease_id=trainer.lease_id, incarnation=trainer.child.incarnation, reason="killed"))
    policy = cluster.core.state.policies[name]
    assert (policy.placement.ticket, policy.placement.gang, policy.accumulator) == ("", [], "")
    cluster.start_child(trainer.lease_id)
    ended_well(cluster)


def test_each_binding_and_each_taking_is_told_with_its_cause():
    cluster = ended_well(started(team(1, 1), seed=3))
    rulings = [r for d in cluster.decisions for r in d.rulings if r.kind.startswith("devices_")]
    causes = {kind: {r.cause for r in rulings if r.kind is kind} for kind in {r.kind for r in rulings}}
    assert causes == {RulingKind.DEVICES_BOUND: {"work"}, RulingKind.DEVICES_TAKEN: {"drained"}}
    assert all(r.reason and r.policy for r in rulings)
    own = [r.kind for r in rulings if r.policy == "speaker"]
    assert all(a != b for a, b in itertools.pairwise(own)), "bound or suspended twice in a row"
