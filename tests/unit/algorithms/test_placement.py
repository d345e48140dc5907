"""Planned placements: which mode wins and when, against arithmetic and against every other plan."""

from typing import Literal

import pytest

from flexmarl.algorithms.placement import DeviceSplit, Leaf, Stage, one_more, plan_placement

EDGES = frozenset({("rollout", "training")})


def test_what_scales_takes_turns_and_what_does_not_has_its_own_devices():
    """Work that devices divide loses nothing by turns; a longest reply leaves devices idle that could train."""
    scales = {"rollout": Stage(work_s=800, switch_s=1), "training": Stage(work_s=800, switch_s=1)}
    plan = plan_placement(scales, EDGES, devices=8, parts=4)
    assert plan is not None
    assert (plan.mode, plan.seconds) == ("temporal", pytest.approx(800 / 8 + 800 / 8 + 2))
    assert plan.beside("training", "rollout")
    tail = {"rollout": Stage(work_s=80, least_s=100), "training": Stage(work_s=400, switch_s=1)}
    plan = plan_placement(tail, EDGES, devices=8, parts=20)
    assert plan is not None
    assert (plan.mode, plan.devices()) == ("spatial", {"rollout": 4, "training": 4})
    one, other = (80 / 4 + 100) / 20, 400 / 4 / 20
    assert plan.seconds == pytest.approx(one + other + 19 * max(one, other))
    assert not plan.beside("rollout", "training")


def test_a_pair_apart_takes_turns_with_a_third():
    """Simulators and generation feed each other part by part, and both leave their devices to training."""
    stages = {
        "simulator": Stage(work_s=100, least_s=40),
        "generation": Stage(work_s=100, least_s=40),
        "training": Stage(work_s=8000),
    }
    edges = frozenset({("simulator", "generation"), ("generation", "training")})
    plan = plan_placement(stages, edges, devices=8, parts=50)
    assert plan is not None
    assert plan.mode == "hybrid"
    assert plan.devices() == {"simulator": 4, "generation": 4, "training": 8}
    assert (plan.beside("simulator", "generation"), plan.beside("simulator", "training")) == (False, True)
    alone = [plan_placement(stages, edges, 8, 50, mode) for mode in ("temporal", "spatial")]
    assert all(other is not None and plan.seconds < other.seconds for other in alone)


def test_an_optimizer_step_comes_once_behind_the_last_part():
    stages = {"rollout": Stage(work_s=10), "training": Stage(work_s=10, close_s=7)}
    plan = plan_placement(stages, EDGES, devices=2, parts=10, mode="spatial")
    assert plan is not None
    assert plan.seconds == pytest.approx(1 + 1 + 9 * 1 + 7)


def test_too_few_devices_have_no_plan_apart_and_cycles_are_refused():
    stages = {"rollout": Stage(work_s=1), "training": Stage(work_s=1)}
    assert plan_placement(stages, EDGES, devices=1, parts=1, mode="spatial") is None
    assert plan_placement(stages, EDGES, devices=0, parts=1) is None
    with pytest.raises(ValueError, match="rollout, training wait for one another"):
        plan_placement(stages, EDGES | {("training", "rollout")}, devices=2, parts=1)
    with pytest.raises(ValueError, match="edges among them"):
        plan_placement(stages, frozenset({("rollout", "reward")}), devices=2, parts=1)


def test_rollout_gets_a_device_when_it_lags_by_more_than_that_gains():
    rollout, training = Stage(work_s=120, least_s=10), Stage(work_s=40)
    assert rollout.seconds(4) - rollout.seconds(5) == pytest.approx(6)
    assert one_more(rollout, Stage(work_s=4 * 33), engines=4, trainers=4), "40 s against 33 s"
    assert not one_more(rollout, Stage(work_s=4 * 35), engines=4, trainers=4), "40 s against 35 s"
    assert not one_more(Stage(work_s=0, least_s=100), training, engines=4, trainers=4), "nothing would get any faster"


@pytest.mark.parametrize("mode", ["temporal", "spatial"])
def test_stages_come_in_the_order_of_their_edges(mode: Literal["temporal", "spatial"]):
    stages = {"after": Stage(work_s=8), "before": Stage(work_s=8)}
    plan = plan_placement(stages, frozenset({("before", "after")}), devices=4, parts=2, mode=mode)
    assert plan is not None
    assert isinstance(plan.placed, DeviceSplit)
    count = 4 if mode == "temporal" else 2
    assert (plan.placed.first, plan.placed.then) == (Leaf("before", count), Leaf("after", count))
