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


@pytest.mark.parametrize("mechanisms", [{"trainer_protocol": "mini_batch"}, {"publication": "delayed"}])
def test_what_needs_a_bound_has_no_ordered_form(mechanisms: dict[str, Any]):
    bounded = mechanisms | {"lag_policy": {"bound": 8}}
    assert "/mechanisms/lag_policy/bound" in problems(bounded)
    assert problems(mechanisms), "and without a bound it is refused for lacking one"
