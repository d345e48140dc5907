"""Shared devices that generate for a while only: what is left goes on elsewhere, and trainers begin beside it."""

import pytest

from flexmarl.algorithms.rollout_window import next_window
from flexmarl.contracts import commands as c
from flexmarl.contracts.events import DeviceUse
from flexmarl.contracts.status import RunStatus
from tests.unit.orchestrator.fake_cluster import Faults, make_spec, running, started
from tests.unit.orchestrator.test_colocated import ended_well, turns

TINY = {"type": "fixed", "seconds": 0.01}


def windowed(devices=3, trainers=1, window=None, **changes):
    return make_spec(
        resources__rollout_devices=devices, resources__training_devices=trainers,
        mechanisms__allocation={"type": "colocated", "window": window or TINY}, **changes,
    )  # fmt: skip


def trained_beside(cluster):
    """Run to the end; list the policies whose gradients were computed while an episode of the cohort played."""
    found = set()
    while cluster.status not in (RunStatus.COMPLETED, RunStatus.FAILED):
        cluster.happen()
        state = cluster.core.state
        if any(cohort.open for cohort in state.cohorts):
            found |= {name for name in state.policies if state.outstanding.count_about("accumulate", name)}
    return found


@pytest.mark.parametrize(("devices", "trainers"), [(2, 1), (3, 1), (3, 2)])
def test_trainers_begin_while_the_other_engines_play(devices, trainers):
    found = set()
    for seed in range(8):
        cluster = started(windowed(devices, trainers), seed=seed)
        found |= trained_beside(cluster)
    assert found == {"speaker", "listener"}
    ended_well(cluster)
    shared = set(range(1, trainers + 1))  # the first engines
    emptied = cluster.commands("unload_policy")
    assert {command.lease_id for command in emptied} == shared, "who has a device of its own keeps what it plays"
    assert all(command.hand_over for command in emptied)
    assert len(turns(cluster)) <= 2 * cluster.spec.budget.train_steps + 3, "there and back once a step"
    assert turns(cluster).count("to_trainers") >= cluster.spec.budget.train_steps


@pytest.mark.parametrize("seed", range(6))
def test_engines_give_devices_up_once_the_window_of_the_step_has_passed_and_others_go_on(seed):
    faults, window = Faults(child_death=0.15 * (seed % 2)), {"type": "fixed", "seconds": 0.05}
    cluster, told, early = started(windowed(window=window), seed=seed, faults=faults), 0, 0
    while cluster.status not in (RunStatus.COMPLETED, RunStatus.FAILED):
        cluster.happen()
        said = [ruling.reason for decision in cluster.decisions[told:] for ruling in decision.rulings]
        told = len(cluster.decisions)
        if not any(reason.startswith("the window has passed") for reason in said):
            continue
        early, fleet, head = early + 1, cluster.core.state.fleet, cluster.core.state.cohort
        assert cluster.now >= head.times.opened_at + window["seconds"], "each step has its window"
        shared = {trainer.sharing.engine_lease for trainer in fleet.trainers()}
        assert any(
            {name: pin.version for name, pin in head.pins.items()}.items() <= lease.weights.held.items()
            for lease in fleet.at_work(DeviceUse.ENGINE)
            if lease.lease_id not in shared
        ), "somebody goes on"
    assert early or seed % 2


def test_an_engine_forgets_all_before_it_sleeps():
    cluster = ended_well(started(windowed(), seed=5))
    issued = [numbered.command for decision in cluster.decisions for numbered in decision.commands]
    order = [command.kind for command in issued if isinstance(command, c.UnloadPolicy | c.SleepEngine | c.WakeEngine)]
    turned = [order[place - 1] for place, kind in enumerate(order) if kind == "sleep_engine" and place]
    assert turned.count("unload_policy") >= cluster.spec.budget.train_steps


def test_a_window_that_outlasts_play_changes_nothing():
    plain = make_spec(
        resources__rollout_devices=3, resources__training_devices=1, mechanisms__allocation={"type": "colocated"}
    )
    long = windowed(window={"type": "fixed", "seconds": 86_400.0})
    before, after = ended_well(started(plain, seed=4)), ended_well(started(long, seed=4))
    assert [decision.commands for decision in after.decisions] == [decision.commands for decision in before.decisions]


def test_steps_are_those_of_a_run_with_devices_of_its_own():
    own = ended_well(started(make_spec(mechanisms__allocation="static"), seed=1, turns=1))
    shared = ended_well(started(windowed(), seed=1, turns=1))
    assert shared.versions == own.versions
    assert shared.trained == own.trained


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("mix", [{}, {"resources__trainer_policies": 1}, {"mechanisms__ordered": True}])
def test_nothing_is_lost_or_trained_twice_under_faults(mix, seed):
    faults = Faults(twice=0.1, child_death=0.01, lease_end=0.001, uncommitted=0.05, refused=0.02, zombie=0.05,
                    recall=0.002, gang_recall=0.01, episode_failure=0.02)  # fmt: skip
    cluster = started(windowed(3, 2, **mix), seed=seed, faults=faults, round_trip=seed % 2 == 0)
    cluster.run()
    assert cluster.status in (RunStatus.COMPLETED, RunStatus.FAILED)


def test_without_another_engine_the_devices_play_to_the_end():
    cluster = running(windowed(2, 1), seed=3)
    [apart] = [
        lease for lease in cluster.core.state.fleet.leases.values()
        if lease.use == "engine" and lease.lease_id not in
        {trainer.sharing.engine_lease for trainer in cluster.core.state.fleet.trainers()}
    ]  # fmt: skip
    cluster.end_lease(apart.lease_id, "its host is gone")
    ended_well(cluster)


@pytest.mark.parametrize(
    ("window_s", "generated_s", "waited_s", "idle_s", "expected"),
    [
        (150.0, 200.0, 0.0, 60.0, 130.0),
        (150.0, 200.0, 90.0, 60.0, 160.0),
        (150.0, 200.0, 60.0, 60.0, 150.0),
        (150.0, 90.0, 0.0, 30.0, 80.0),
    ],
)
def test_a_window_moves_by_a_third_of_what_the_two_waited_longer(window_s, generated_s, waited_s, idle_s, expected):
    assert next_window(window_s, generated_s, waited_s, idle_s) == pytest.approx(expected)


def test_a_measured_window_never_gets_shorter_than_its_least():
    spec = windowed(window={"type": "measured", "first_s": 0.02, "least_s": 0.015})
    cluster = ended_well(started(spec, seed=5))
    assert cluster.core.state.fleet.shared.window_s >= 0.015


def test_a_window_that_was_measured_down_to_nothing_does_not_begin_anew():
    nothing = {"type": "measured", "first_s": 3600.0, "least_s": 0.0}
    cluster = started(windowed(window=nothing, budget__train_steps=1), seed=5)
    cluster.core.state.fleet.shared.window_s = 0.0
    ended_well(cluster)
    said = [ruling.reason for decision in cluster.decisions for ruling in decision.rulings]
    assert any(reason.startswith("the window has passed") for reason in said)
