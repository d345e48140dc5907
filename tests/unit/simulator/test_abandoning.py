"""Episodes given up between two turns in the simulator: steps are fuller, and less is made in vain."""

from functools import cache
from typing import Any

import pytest

from flexmarl.contracts.commands import CutMicroBatch
from flexmarl.contracts.problems import SpecProblems
from flexmarl.contracts.specification.mechanisms import Parallel
from flexmarl.contracts.wire import EpisodeOutcome
from flexmarl.simulator.reporting.invariants import broken
from flexmarl.simulator.reporting.watching import RunWatch
from flexmarl.simulator.rollout.groups import idle_places
from flexmarl.simulator.runs import alone, long_enough
from flexmarl.simulator.scenarios.library import compose

STEPS = 6
LAG = {"bound": 1, "at_cut": "drop", "at_admission": "trained", "in_flight": "resume"}
WORKLOAD: dict[str, Any] = {
    "spec": {
        "agents": {"solver": {}},
        "environment": {"type": "arithmetic"},
        "batch": {"tasks_per_step": 8, "episodes_per_task": 4, "micro_batch_groups": 4, "rollout_groups": 1},
        "resources": {"rollout_devices": 2},
    },
    "workload": {
        "stages": [["solver"]],
        "rounds": {"median": 5, "sigma": 0.8, "least": 1, "most": 32},
        "each": {"prompt": 200, "reply": {"median": 200, "sigma": 0.8, "least": 8, "most": 2000}},
        "environment": {"mean": 5, "sigma": 3, "least": 0},
    },
    "machine": {"engine": {"token": 0.008, "batch": 48, "slots": 64}, "trainer": {"token": 0.0001, "step": 1.0}},
}


@cache
def played(at_turn: str, turns: str = "own", places: int | None = None) -> RunWatch:
    mechanisms = {
        "lag_policy": LAG | {"at_turn": at_turn},
        "redundancy": {"type": "extra_groups", "share": 1.5, "surplus": "continue"},
        "parallel": {"turns": turns, "episodes": places},
    }
    scenario = compose(WORKLOAD, "april", {"steps": STEPS, "warm_up": 0, "spec": {"mechanisms": mechanisms}})
    cluster = alone(long_enough(scenario))
    watch = RunWatch.over(cluster)
    while len(cluster.log.stepped) < STEPS and not cluster.driver.ended and cluster.clock.play():
        pass
    return watch


def given_up(watch: RunWatch) -> list[EpisodeOutcome]:
    return [outcome for _, _, outcome in watch.settled() if outcome.abandoned]


@pytest.mark.parametrize(("turns", "places"), [("own", 12), ("together", None)])
def test_less_is_made_in_vain_and_nothing_is_lost(turns: str, places: int | None) -> None:
    on, off = played("abandon", turns, places), played("play", turns, places)
    for watch in (on, off):
        assert not broken(watch)
        assert len(watch.cluster.log.stepped) == STEPS
        counters = watch.cluster.driver.core.state.totals.train_episodes
        under_way = counters.proposed - counters.finished - counters.failed - counters.cancelled
        assert under_way >= 0
        groups = [group for own in watch.cluster.playing.groups.values() for group in own]
        assert idle_places(groups, Parallel(episodes=places)) == 0, "whoever was given up left its place"
    assert given_up(on)
    assert not given_up(off)
    assert trained(on) > trained(off)
    assert watch_lag(on) <= LAG["bound"]


def trained(watch: RunWatch) -> float:
    """Return the share of all tokens that engines made which was trained."""
    return watch.cluster.log.trained[STEPS - 1] / watch.cluster.hosting.made()


def watch_lag(watch: RunWatch) -> float:
    return max(
        metric.value
        for metric in watch.cluster.log.metrics
        if metric.name == "staleness/start" and metric.stat == "max"
    )


def test_a_step_is_fuller_where_old_groups_give_their_credit_back_before_the_cut() -> None:
    groups = {at_turn: sum(map(len, cut(played(at_turn, "own")).values())) for at_turn in ("abandon", "play")}
    assert groups["abandon"] >= groups["play"] + STEPS, groups


def cut(watch: RunWatch) -> dict[int, set[int]]:
    """Return the groups that each step was taken on."""
    found: dict[int, set[int]] = {}
    for numbered in watch.commands.values():
        if isinstance(numbered.command, CutMicroBatch):
            found.setdefault(numbered.command.cohort, set()).update(one.draw for one in numbered.command.samples)
    return {no: groups for no, groups in found.items() if no < STEPS}


def test_episodes_that_are_played_as_a_whole_have_no_moment_between_turns() -> None:
    lag = LAG | {"at_turn": "abandon"}
    changes = {"granularity": "episode", "spec": {"mechanisms": {"lag_policy": lag}}}
    with pytest.raises(SpecProblems, match="set turn"):
        compose(WORKLOAD, "april", changes)
