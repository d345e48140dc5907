"""Prompts that begin alike are computed once by the engine that has the beginning, and routers can make use of it."""

import pytest

from flexmarl.simulator import SimulationError, simulate
from flexmarl.simulator.scenarios.library import compose


def rollout_s(
    engines: int = 1,
    router: str = "least_loaded",
    rounds: int = 3,
    wait: float = 40.0,
    sigma: float = 0.0,
    **load: float,
) -> float:
    """Play eight episodes in which prompts and environments take time, replies none."""
    spec = {
        "agents": {"solver": {}},
        "environment": {"type": "arithmetic"},
        "batch": {"tasks_per_step": 4, "episodes_per_task": 2, "micro_batch_groups": 1, "rollout_groups": 4},
        "resources": {"rollout_devices": engines, "training_devices": 1},
        "mechanisms": {"router": router},
    }
    workload = {
        "stages": [["solver"]], "rounds": rounds, "each": {"prompt": 1000, "reply": 1, **load},
        "environment": {"mean": wait, "sigma": sigma},
    }  # fmt: skip
    machine = {"engine": {"token": 1e-6, "prefill": 1000, "load": 0.0}, "trainer": {"token": 0.0}}
    document = {"spec": spec, "workload": workload, "machine": machine, "steps": 2}
    return simulate(compose(document, "sync")).figures()["rollout_s"]


def test_what_the_turn_before_had_is_computed_once():
    """Eight first prompts of 1 s one after the other; later turns come one by one, each 1 s or, mostly known, 0.1 s."""
    anew, again = rollout_s(), rollout_s(again=0.9)
    assert anew - again == pytest.approx(2 * 0.9, abs=0.1)


def test_members_of_a_group_begin_alike():
    """Of eight first prompts four are a group's second one."""
    alone, alike = rollout_s(rounds=1, wait=0.0), rollout_s(rounds=1, wait=0.0, alike=1.0)
    assert alone - alike == pytest.approx(4.0, abs=0.1)


def test_a_router_that_knows_prefixes_gains_where_another_goes_by_load():
    by_load, by_prefix = (
        rollout_s(4, router, rounds=8, sigma=8.0, again=1.0) for router in ("least_loaded", "prefix_affinity")
    )
    assert by_prefix < by_load


def test_whole_episodes_do_not_show_it():
    document = {
        "spec": {"agents": {"solver": {}}, "environment": {"type": "arithmetic"}},
        "workload": {"stages": [["solver"]], "each": {"alike": 0.5}},
        "granularity": "episode",
    }
    with pytest.raises(SimulationError, match="again and alike"):
        simulate(compose(document, "sync"))
