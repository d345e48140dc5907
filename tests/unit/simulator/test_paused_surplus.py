"""Surplus that stands still in the simulator: engines have nothing of it while trainers work, and nothing is lost."""

import pytest

from flexmarl.simulator import SimulationError
from flexmarl.simulator.reporting.invariants import broken
from flexmarl.simulator.reporting.watching import RunWatch
from flexmarl.simulator.runs import alone, long_enough, simulate
from flexmarl.simulator.scenarios.library import compose

STEPS = 3
BATCH = {"tasks_per_step": 8, "episodes_per_task": 4}


def played(surplus: str, **mechanisms: object) -> RunWatch:
    spec = {"mechanisms": {"redundancy": {"surplus": surplus}, **mechanisms}, "batch": BATCH}
    changes = {"steps": STEPS, "warm_up": 0, "spec": spec | {"resources": {"rollout_devices": 2}}}
    cluster = alone(long_enough(compose("long_tail", "april", changes)))
    watch = RunWatch.over(cluster)
    while len(cluster.log.stepped) < STEPS and not cluster.driver.ended and cluster.clock.play():
        pass
    return watch


def beside(watch: RunWatch) -> float:
    """Return the seconds in which an engine generates while a trainer works on the step, a step.

    The first one is left out: the evaluation of what is not trained yet plays beside it.
    """
    first = watch.cluster.log.stepped[0]
    done = [one for one in watch.cluster.trace.until(watch.cluster.clock.now) if one.began > first]
    trains = [one for one in done if one.kind in ("train", "step")]
    plays = [one for one in done if one.kind == "rollout"]
    both = (min(a.ended, b.ended) - max(a.began, b.began) for a in trains for b in plays)
    return sum(max(0.0, seconds) for seconds in both) / (STEPS - 1)


def test_nothing_of_it_plays_on_while_the_step_trains():
    paused, continued = played("pause"), played("continue")
    known = 2 * paused.cluster.scenario.machine.delays.hold
    assert beside(paused) <= known + 1e-6, "two engines, until the rollout workers know"
    assert beside(continued) > 4 * known
    for watch in (paused, continued):
        assert not broken(watch)
        assert len(watch.cluster.log.stepped) == STEPS
        first = {fact.draw for _, fact, _ in watch.settled() if fact.draw < 2 * BATCH["tasks_per_step"]}
        assert len(first) >= 2 * BATCH["tasks_per_step"] - 2, (
            "what the first step left has gone on, all but the longest"
        )


def test_where_devices_are_shared_it_gives_them_to_the_trainer_and_goes_on_when_they_are_back():
    watch = played("pause", allocation="colocated")
    assert not broken(watch)
    assert len(watch.cluster.log.stepped) == STEPS
    assert beside(watch) == 0.0
    assert watch.cluster.driver.core.state.cohorts[-1].older, "what it has of older steps was not played to its end"


def test_episodes_that_are_played_as_a_whole_do_not_show_it():
    with pytest.raises(SimulationError, match="pause takes single replies back"):
        simulate(compose("long_tail", "april", {"granularity": "episode", "spec": {"batch": BATCH}}))
