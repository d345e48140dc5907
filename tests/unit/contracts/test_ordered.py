"""Ordered runs: what depends on timing is refused at submit, with a legal value; the rest may be chosen freely."""

import itertools
from typing import Any

import pytest

from flexmarl.contracts.rules import broken_rules, warnings
from flexmarl.contracts.specification import ExperimentSpec


def problems(mechanisms: dict[str, Any], ordered: bool = True, **more: Any) -> dict[str, tuple[str, str]]:
    """Return pointer -> (code, hint) of every refusal."""
    spec = ExperimentSpec.model_validate(
        {
            "agents": {"speaker": {}, "listener": {}},
            "environment": {"type": "reference_game"},
            "mechanisms": mechanisms | {"ordered": ordered},
            **more,
        }
    )
    return {problem.pointer: (problem.code, problem.hint) for problem in broken_rules(spec)}


@pytest.mark.parametrize(
    ("mechanisms", "pointer"),
    [
        ({"lag_policy": {"bound": 1}}, "/mechanisms/lag_policy/bound"),
        ({"redundancy": {"type": "extra_members", "extra": 2}}, "/mechanisms/redundancy/type"),
        ({"redundancy": {"type": "extra_groups", "extra": 2}}, "/mechanisms/redundancy/type"),
        ({"policy_clock": True}, "/mechanisms/ordered"),
    ],
)
def test_what_timing_decides_is_refused_with_a_legal_value(mechanisms: dict[str, Any], pointer: str):
    assert pointer not in problems(mechanisms, ordered=False), "legal in a run that promises no bits"
    found = problems(mechanisms)
    assert pointer in found
    assert found[pointer][1].startswith("Set ")


def test_one_policys_own_bound_is_refused_where_it_stands():
    policies = {"speaker": {"lag_policy": {"bound": 2}}}
    assert list(problems({}, policies=policies)) == ["/policies/speaker/lag_policy/bound"]


@pytest.mark.parametrize(
    ("protocol", "publication"),
    list(itertools.product(("micro_batch", "per_group", "batch"), ("cohort", "wavefront"))),
)
def test_on_policy_protocols_and_publications_are_free(protocol: str, publication: str):
    assert problems({"trainer_protocol": protocol, "publication": publication}) == {}


@pytest.mark.parametrize("ordered", [True, False])
def test_a_plan_tells_what_the_promise_costs(ordered: bool):
    spec = ExperimentSpec.model_validate(
        {
            "agents": {"speaker": {}, "listener": {}},
            "environment": {"type": "reference_game"},
            "mechanisms": {"ordered": ordered},
        }
    )
    assert ("ordered_costs" in [problem.code for problem in warnings(spec)]) is ordered


def test_several_steps_on_a_cohort_have_no_ordered_form():
    mechanisms = {"trainer_protocol": "mini_batch"}
    assert "/mechanisms/lag_policy/bound" in problems(mechanisms | {"lag_policy": {"bound": 8}})
    assert problems(mechanisms), "and without a bound it is refused for lacking one"


def test_a_lag_that_is_the_same_for_every_cohort_is_free():
    delayed = {"publication": "delayed", "lag_policy": {"bound": 1}}
    assert problems(delayed) == {}
    assert problems(delayed | {"publication": "cohort"})["/mechanisms/lag_policy/bound"] == (
        "ordered_is_on_policy",
        "Set 0, or publication: delayed, or ordered: false.",
    )
    assert problems({"publication": "delayed"})["/mechanisms/lag_policy/bound"][0] == "needs_bound"


@pytest.mark.parametrize("filter", ["dynamic_sampling", "drop_zero_variance"])
@pytest.mark.parametrize("sampler", ["vade", "greso", "filter_solved", "near_success", "uniform"])
def test_tasks_drawn_again_are_not_chosen_by_who_settled_first(filter: str, sampler: str):
    """What a sampler believes in the middle of a step depends on which groups of it have settled."""
    tasks = {} if sampler == "uniform" else {"tasks": 100}
    sampling = {"group_filter": filter, "task_sampler": {"type": sampler, **tasks}}
    refused = filter == "dynamic_sampling" and sampler != "uniform"
    assert ("/sampling/task_sampler/type" in problems({}, sampling=sampling)) is refused
    assert problems({}, ordered=False, sampling=sampling) == {}
