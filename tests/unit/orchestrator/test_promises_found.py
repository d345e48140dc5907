"""Broken promises that random schedules found, each as the smallest run that shows it."""

import pytest

from flexmarl.contracts.events import DeviceUse, Verb
from flexmarl.contracts.status import RunStatus
from tests.support.virtual import faults
from tests.support.virtual.accounts import check_end
from tests.support.virtual.clock import Durations
from tests.support.virtual.specs import small_spec
from tests.support.virtual.world import World


@pytest.mark.parametrize("protocol", ["micro_batch", "per_group", "batch"])
def test_what_is_carried_into_the_last_cohort_is_stepped_there(protocol: str) -> None:
    few = {"batch": {"min_rows": 1000, "max_carry": 9}, "mechanisms": {"trainer_protocol": protocol}}
    world = World(small_spec(few), seed=1)
    asked = [world.ask(Verb.START)]
    world.run()
    check_end(world, asked)
    assert world.status is RunStatus.COMPLETED
    assert {name: policy.version for name, policy in world.core.state.policies.items()} == {"speaker": 1, "listener": 1}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("surplus", ["join", "keep"])
def test_groups_beyond_a_cohorts_size_belong_to_its_last_step_and_make_none_of_their_own(
    surplus: str, seed: int
) -> None:
    """A second step of surplus groups, carried, left an accumulator that no step of the next cohort named."""
    extra = {"type": "extra_groups", "extra": 2, "surplus": surplus}
    parts = {
        "mechanisms": {"redundancy": extra, "lag_policy": {"bound": 3}},
        "batch": {"min_rows": 40, "max_carry": 1},
    }
    world = World(small_spec(parts), seed=seed)
    asked = [world.ask(Verb.START)]
    world.run()
    check_end(world, asked)
    assert all(policy.version is not None and policy.version <= 3 for policy in world.core.state.policies.values())


@pytest.mark.parametrize("publication", ["cohort", "wavefront", "delayed"])
@pytest.mark.parametrize("seed", range(8))
def test_surplus_that_plays_on_never_opens_a_settled_cohort_again(publication: str, seed: int) -> None:
    extra = {"type": "extra_groups", "extra": 2, "surplus": "continue"}
    world = World(
        small_spec({"mechanisms": {"redundancy": extra, "lag_policy": {"bound": 3}, "publication": publication}}),
        seed=seed,
        durations=Durations(spread=1.5),
    )
    asked = [world.ask(Verb.START)]
    world.run()
    check_end(world, asked)


def test_a_lease_whose_end_is_told_before_its_grant_is_asked_for_again() -> None:
    world = World(small_spec(), seed=0)
    world.ask(Verb.START)
    world.run(lambda w: any(key.startswith("granted") for key in w.store.inbox))
    lease = world.store.leases[2]
    world.end_lease(lease, "the device is gone")
    facts = dict(reversed(world.store.inbox.items()))
    for key, event in facts.items():
        world.log.entries.append((event, world.clock.now))
        decision = world.core.handle(event, world.clock.now)
        world.log.decisions.append(decision)
        world.store.commit_decision(decision)
        world.store.handled.add(key)
    world.store.inbox.clear()
    world.run()
    assert world.status is RunStatus.COMPLETED


@pytest.mark.parametrize("admission", ["admit", "wait"])
@pytest.mark.parametrize("seed", [*range(4), 415])
def test_who_waits_for_a_version_that_others_keep_out_does_not_keep_them_from_their_place(
    admission: str, seed: int
) -> None:
    """An evaluation began under a version that no engine could load yet, and its turns held the only place."""
    parts = {
        "agents": {"speaker": {"trainable": False}, "listener": {}},
        "mechanisms": {
            "lag_policy": {"bound": 3, "at_admission": admission},
            "redundancy": {"type": "extra_groups", "extra": 2, "surplus": "continue"},
        },
        "resources": {"rollout_devices": 1, "engine_policies": 1},
    }
    world = World(small_spec(parts), seed=seed)
    asked = [world.ask(Verb.START)]
    world.run()
    check_end(world, asked)


@pytest.mark.parametrize("seed", range(4))
def test_devices_that_stand_by_for_recalled_ones_go_to_a_trainer_that_has_none(seed: int) -> None:
    """Replacements of both engines held the last devices, and took over only after the cohort, which had no trainer."""
    world = World(small_spec({"resources": {"rollout_devices": 2}}), seed=seed)
    asked = [world.ask(Verb.START)]
    world.run(lambda w: w.core.state.step >= 1)
    faults.leave(world, 0)
    world.run(lambda w: any(lease.replaces for lease in w.core.state.fleet.leases.values()))
    trainer = next(number for number, x in enumerate(world.leased().values()) if x.use is DeviceUse.TRAINER)
    faults.end_lease(world, trainer)
    world.run()
    check_end(world, asked)


@pytest.mark.parametrize("seed", [70, *range(8)])
def test_cancelled_groups_of_a_long_round_are_counted_by_the_members_that_they_play(seed: int) -> None:
    """They were counted with the members beyond those that a group needs, which a long round does not play."""
    parts = {
        "mechanisms": {
            "policy_clock": True,
            "publication": "cohort",
            "redundancy": {"type": "extra_groups", "extra": 3, "extra_members": 1, "surplus": "defer"},
            "lag_policy": {"bound": 3, "at_admission": "trained", "in_flight": "continue", "at_cut": "drop"},
        },
        "batch": {"min_rows": 40, "max_carry": 1, "min_members": 2},
    }
    world = World(small_spec(parts), seed=seed)
    asked = [world.ask(Verb.START)]
    world.run()
    check_end(world, asked)
