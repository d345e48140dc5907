"""Surplus that stands still while a step trains: held when the step has its groups, free when the next one begins."""

import pytest

from flexmarl.contracts.commands import HoldGroups
from flexmarl.contracts.events import PauseMode, RunVerb, Verb
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.status import RunStatus
from tests.unit.orchestrator.fake_cluster import Faults, make_spec, started
from tests.unit.orchestrator.test_redundancy import check_counts


def paused(extra=3, steps=6, **lag):
    return make_spec(
        mechanisms__redundancy={"type": "extra_groups", "extra": extra, "surplus": "pause"},
        mechanisms__lag_policy={"bound": 9, "at_admission": "trained", "in_flight": "resume"} | lag,
        batch__rollout_groups=1,
        batch__min_members=2,
        budget__train_steps=steps,
    )


def unfilled(cluster):
    """Rollout commands that are on their way for a cohort without groups of its own."""
    state = cluster.core.state
    if state.lifecycle.status is not RunStatus.RUNNING or state.lifecycle.pause.frozen:
        return set()
    keys = [key for cohort in state.cohorts if not cohort.filled for key in cohort.open.values()]
    return {state.outstanding[key].no for key in keys if key in state.outstanding}.intersection(cluster.open)


def standing(cluster):
    """Rollout commands that nobody goes on with, and that have not settled."""
    return cluster.held.intersection(cluster.open)


@pytest.mark.parametrize("lag", [{"bound": 1, "at_cut": "train"}, {"in_flight": "restart_turn"}])
def test_what_is_left_stands_still_from_a_steps_last_group_to_the_next_steps_first(lag):
    for seed in range(2):
        faults = Faults(twice=0.2, child_death=0.01 * seed, uncommitted=0.02, episode_failure=0.02)
        cluster, stood = started(paused(**lag), seed=seed, faults=faults, round_trip=seed == 1), 0
        while cluster.status not in (RunStatus.COMPLETED, RunStatus.FAILED):
            cluster.happen()
            assert standing(cluster) == unfilled(cluster)
            stood = max(stood, len(standing(cluster)))
        check_counts(cluster)
        assert stood > 0
        assert any(lag > 0 for lag in cluster.lags), "what stood still is trained a step later"


def test_nothing_of_it_settles_while_the_step_trains_and_no_group_is_lost():
    cluster = started(paused(), seed=4)
    cluster.run(until=standing)
    held = {group.draw for no in standing(cluster) for group in cluster.open[no].command.groups}
    step, settled = cluster.core.state.step, {f.draw for f, _ in cluster.log if f.kind == "group_settled"}
    cluster.run(until=lambda x: x.core.state.step > step)
    assert not held & ({f.draw for f, _ in cluster.log if f.kind == "group_settled"} - settled)
    cluster.run()
    trained = {sample.draw for one in cluster.commands("cut_micro_batch") for sample in one.samples}
    assert held <= trained


def test_a_command_that_is_played_anew_stands_still_as_the_one_before_it():
    cluster = started(paused(), seed=4)
    cluster.run(until=standing)
    no = min(standing(cluster))
    before = len(cluster.commands("hold_groups"))
    cluster.fail(no, cluster.open[no].command, "rollout_error")
    cluster.run(until=lambda x: len(x.commands("hold_groups")) > before)
    assert standing(cluster) == unfilled(cluster)


@pytest.mark.parametrize("verb", [RunVerb(verb=Verb.STOP), RunVerb(verb=Verb.PAUSE, mode=PauseMode.DRAIN)])
def test_a_run_that_begins_nothing_more_holds_nothing_back(verb):
    cluster = started(paused(), seed=4)
    cluster.run(until=standing)
    cluster.tell(verb)
    assert not standing(cluster)
    cluster.run(until=lambda x: x.status in (RunStatus.COMPLETED, RunStatus.PAUSED))


def test_a_frozen_run_goes_on_with_what_stood_still():
    cluster = started(paused(), seed=4)
    cluster.run(until=standing)
    cluster.tell(RunVerb(verb=Verb.PAUSE, mode=PauseMode.FREEZE))
    cluster.run(until=lambda x: x.status is RunStatus.PAUSED)
    cluster.verb(Verb.RESUME)
    check_counts(cluster.run())


def test_it_is_told_with_its_reason():
    cluster = started(paused(), seed=4)
    cluster.run(until=standing)
    told = [one for decision in cluster.decisions for one in decision.commands if isinstance(one.command, HoldGroups)]
    assert "is suspended until it is trained" in told[-1].reason
    cluster.run(until=lambda x: not standing(x))
    told = [one for decision in cluster.decisions for one in decision.commands if isinstance(one.command, HoldGroups)]
    assert "continues" in told[-1].reason


def test_where_devices_are_shared_the_trainer_has_them_while_surplus_stands_still():
    spec = paused().model_dump()
    spec["mechanisms"]["allocation"] = {"type": "colocated"}
    for seed in range(2):
        cluster = started(ExperimentSpec.model_validate(spec), seed=seed, round_trip=seed == 1)
        cluster.run(until=standing)
        steps, held = len(cluster.commands("optimizer_step")), standing(cluster)
        cluster.run(until=lambda x, steps=steps: len(x.commands("optimizer_step")) > steps)
        assert cluster.core.state.fleet.shared.side == "trainers"
        assert standing(cluster) == held
        check_counts(cluster.run())
