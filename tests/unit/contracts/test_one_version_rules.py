"""Engines that serve one version at a time: what goes with them, and what is refused with a way out."""

from typing import Any

import pytest

from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.rules import broken_rules
from flexmarl.contracts.specification import ExperimentSpec

LAG = "/mechanisms/lag_policy"
TEAM = {"agents": {"speaker": {}, "listener": {}}, "environment": {"type": "reference_game"}}


def spec(mechanisms: dict[str, Any], **resources: Any) -> ExperimentSpec:
    lag = {"bound": 2} | mechanisms.pop("lag_policy", {})
    own = {"engine_versions": 1} | resources
    return ExperimentSpec.model_validate(TEAM | {"mechanisms": {"lag_policy": lag} | mechanisms, "resources": own})


@pytest.mark.parametrize("mover", ["static", {"type": "repack", "below": 8, "every_s": 2.0, "cache_tokens": 4096}])
def test_a_bound_is_all_they_need(mover: Any) -> None:
    assert not broken_rules(spec({"mover": mover}))


@pytest.mark.parametrize(
    ("mechanisms", "resources", "pointer", "code", "value"),
    [
        ({"lag_policy": {"bound": 0}}, {}, f"{LAG}/bound", "needs_bound", "1 or more"),
        (
            {"lag_policy": {"in_flight": "resume"}},
            {},
            "/mechanisms/lag_policy/in_flight",
            "not_with_one_version",
            "finish",
        ),
        ({"publication": "delayed"}, {}, "/mechanisms/publication/type", "not_with_one_version", "cohort"),
        (
            {"redundancy": {"type": "extra_groups", "extra": 2, "surplus": "continue"}},
            {},
            "/mechanisms/redundancy/surplus",
            "not_with_one_version",
            "cancel",
        ),
        (
            {"redundancy": {"type": "extra_groups", "extra": 2, "surplus": "pause"}},
            {},
            "/mechanisms/redundancy/surplus",
            "not_with_one_version",
            "cancel",
        ),
        ({"allocation": "colocated"}, {}, "/mechanisms/allocation/type", "not_with_one_version", "agent_centric"),
        ({}, {"engine_policies": 1}, "/resources/engine_policies", "not_with_one_version", "null"),
        ({"mover": "demand"}, {}, "/mechanisms/mover/type", "not_with_one_version", "repack"),
        ({"mover": "repack"}, {"engine_versions": 2}, "/mechanisms/mover/type", "needs_one_version", "static"),
    ],
)
def test_what_cannot_be_is_refused_with_a_way_out(
    mechanisms: dict[str, Any], resources: dict[str, Any], pointer: str, code: str, value: str
) -> None:
    problems = broken_rules(spec(dict(mechanisms), **resources))
    assert (pointer, code) in [(problem.pointer, problem.code) for problem in problems]
    hint = next(problem.hint for problem in problems if (problem.pointer, problem.code) == (pointer, code))
    assert value in hint


def test_the_preset_of_laminar_gathers_what_is_left() -> None:
    resolved = resolve(TEAM, preset="laminar")
    made = ExperimentSpec.model_validate(resolved.document)
    assert (made.resources.engine_versions, made.mechanisms.mover.type) == (1, "repack")
