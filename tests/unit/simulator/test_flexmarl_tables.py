"""FlexMARL's tables: every row is a legal scenario, and what carries them: serial agents and wide devices."""

from typing import Any

import pytest

from flexmarl.contracts.resolve import layered
from flexmarl.simulator import simulate
from flexmarl.simulator.published import load_tables
from flexmarl.simulator.published.reproducing import scenario_of
from flexmarl.simulator.scenarios.library import compose

TABLES = ("flexmarl_ma", "flexmarl_ca")
ONE = {
    "steps": 1,
    "spec": {
        "agents": {"first": {}, "second": {}},
        "environment": {"type": "arithmetic"},
        "batch": {"tasks_per_step": 2, "episodes_per_task": 2, "micro_batch_groups": 2, "rollout_groups": 1},
        "resources": {"rollout_devices": 2, "training_devices": 1, "engine_policies": 1},
    },
    "workload": {"stages": [["first", "second"]], "each": {"prompt": 0, "reply": 1000}},
    "machine": {"engine": {"token": 0.1, "batch": 1e9}, "trainer": {"token": 0.01, "micro_batch": 0.0, "step": 0.0}},
}


def of_table(name: str, row: str, **changes: Any) -> Any:
    table = load_tables()[name]
    return scenario_of(table, table.rows[row], changes=changes)


@pytest.mark.parametrize("name", TABLES)
def test_all_rows_have_the_same_cluster_and_batch(name: str):
    made = [of_table(name, row) for row in load_tables()[name].rows]
    assert len(made) == 6
    for one in made:
        resources = one.spec.resources
        shared = one.spec.mechanisms.allocation.type == "colocated"
        devices = resources.rollout_devices + (0 if shared else resources.training_devices)
        assert devices * one.machine.width == pytest.approx(24)
        assert (one.spec.batch.tasks_per_step, one.spec.batch.episodes_per_task) == (64, 16)
        assert one.spec.batch.micro_batch_groups * 4 == 64
        assert all(one.spec.lag_policy_of(policy).bound == 0 for policy in one.spec.trainable_policies())


def test_the_second_table_takes_the_constants_of_the_first():
    first, second = (load_tables()[name].parameters for name in TABLES)
    assert [name for name, own in second.items() if own.source == "fitted"] == ["reply"]
    assert all(second[name].value == own.value for name, own in first.items() if name != "reply")


def test_a_step_of_the_second_table_lies_where_it_was_published():
    rows = load_tables()["flexmarl_ca"].rows
    for row in ("flexmarl", "no_async"):
        assert simulate(of_table("flexmarl_ca", row, steps=1)).step_s == pytest.approx(rows[row].published, rel=0.15)


def test_agents_that_are_asked_one_after_the_other_take_as_long_as_their_sum():
    beside = simulate(compose(ONE, "sync")).step_s
    serial = simulate(compose(ONE, "sync", {"spec": {"mechanisms": {"parallel": {"agents": 1}}}})).step_s
    assert serial - beside == pytest.approx(100.0, rel=0.01)


def test_a_trainer_of_four_devices_takes_a_quarter():
    one, four = (simulate(compose(ONE, "sync", {"machine": {"width": width}})).step_s for width in (1.0, 4.0))
    assert one - four == pytest.approx(2 * 4 * 1000 * 0.01 * 0.75, rel=0.02)


def test_an_engine_of_four_devices_is_as_crowded_by_four_times_the_requests():
    crowded = {"machine": {"engine": {"batch": 1.0}}}
    whole = simulate(compose(ONE, "sync", crowded)).step_s
    wide = simulate(compose(ONE, "sync", layered(crowded, {"machine": {"width": 1e6}}))).step_s
    assert whole - wide == pytest.approx(3 * 100.0 + 2 * 4 * 1000 * 0.01, rel=0.02)


def test_everything_of_a_policy_of_twice_the_size_takes_twice_as_long():
    """Prompts of 200 s, replies of 100 s, gradients of 40 s, a step, and its swaps and loads."""
    machine = {"engine": {"prefill": 10, "load": 7}, "trainer": {"step": 3}}
    given = {"workload": {"stages": [["first"]], "each": {"prompt": 500}}, "machine": machine}
    once, twice = (
        simulate(compose(ONE, "sync", layered(given, {"machine": {"scale": {"first": times}}}))) for times in (1.0, 2.0)
    )
    assert once.step_s > 350.0
    assert twice.step_s == pytest.approx(2.0 * once.step_s, rel=0.005)
    assert twice.tokens_s * twice.step_s == pytest.approx(once.tokens_s * once.step_s, rel=0.01)


@pytest.mark.parametrize("granularity", ["turn", "episode"])
def test_a_large_policys_replies_take_more_steps_beside_those_of_others(granularity: str):
    """Steps take 0.1 s whoever is there, so the larger one's 1000 tokens take 250 s."""
    scenario = compose(
        ONE,
        "sync",
        {
            "granularity": granularity,
            "spec": {"resources": {"rollout_devices": 1, "engine_policies": 2}},
            "machine": {"scale": {"second": 2.5}, "trainer": {"token": 0.0}},
        },
    )
    report = simulate(scenario)
    assert report.figures()["rollout_s"] == pytest.approx(250.0, rel=0.02)
