"""What cannot be where engines and trainers have the same devices in turns is refused at submit."""

from typing import Any

import pytest

from flexmarl.contracts.allocation_rules import allocation_warnings
from flexmarl.contracts.rules import broken_rules
from flexmarl.contracts.specification.experiment import ExperimentSpec


def broken(**changes: Any) -> dict[str, str]:
    own: dict[str, Any] = {
        "agents": {"speaker": {}, "listener": {}},
        "environment": {"type": "reference_game"},
        "policies": {"speaker": {}, "listener": {}},
        "resources": {},
        "mechanisms": {},
    }
    given = {key: {**own.get(key, {}), **value} for key, value in changes.items()}
    mechanisms = {"allocation": "colocated", **given.pop("mechanisms", {})}
    found = broken_rules(ExperimentSpec.model_validate({**own, **given, "mechanisms": mechanisms}))
    return {problem.pointer: problem.code for problem in found}


WINDOW = "/mechanisms/allocation/window/type"
APART: dict[str, Any] = {"resources": {"rollout_devices": 2}}
TWO: dict[str, Any] = {"resources": {"rollout_devices": 2, "training_devices": 2}}


def mixed(own: int, **homes: tuple[int, ...]) -> dict[str, Any]:
    return {"type": "colocated", "own_devices": own, "homes": homes}


def windowed(kind: str = "measured", **more: object) -> dict[str, Any]:
    return {"type": "colocated", "window": {"type": kind}, **more}


SHORT = {"type": "measured", "first_s": 2.0, "least_s": 3.0}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"resources": {"rollout_devices": 2, "training_devices": 2, "trainer_policies": 1}},
        {"resources": {"rollout_devices": 2}},
        {"resources": {"rollout_devices": 2, "engine_policies": 1}},
        {"mechanisms": {"lag_policy": {"bound": 2}}},
        {"policies": {"speaker": {"devices": 2}}, "resources": {"rollout_devices": 2, "training_devices": 2}},
        TWO | {"mechanisms": {"allocation": mixed(own=1, speaker=(0,), listener=(1,))}},
        {"resources": {"training_devices": 2, "trainer_policies": 1}, "mechanisms": {"allocation": mixed(own=1)}},
        {
            "resources": {"training_devices": 2, "training_pool": "other"},
            "mechanisms": {"allocation": mixed(own=1, speaker=(0,))},
        },
        {"mechanisms": {"ordered": True}},
        {"resources": {"rollout_devices": 2}, "mechanisms": {"allocation": windowed()}},
        {"mechanisms": {"allocation": windowed("played"), "lag_policy": {"bound": 2}}},
    ],
)
def test_what_shares_devices_is_legal(changes: dict[str, Any]) -> None:
    assert broken(**changes) == {}


@pytest.mark.parametrize(
    ("pointer", "code", "changes"),
    [
        ("/resources/training_devices", "too_many_devices", {"resources": {"training_devices": 2}}),
        ("/resources/training_pool", "not_read", {"resources": {"training_pool": "other"}}),
        (
            "/resources/rollout_devices",
            "not_with_colocated",
            {"resources": {"rollout_devices": {"min": 1, "max": 2}}},
        ),
        ("/resources/engine", "cannot_sleep", {"resources": {"engine": "vllm"}}),
        ("/resources/engine_policies", "not_with_colocated", {"resources": {"engine_policies": 1}}),
        (
            "/mechanisms/mover/type",
            "not_with_colocated",
            {"resources": {"engine_policies": 1, "rollout_devices": 2}, "mechanisms": {"mover": "demand"}},
        ),
        ("/mechanisms/publication/type", "not_with_colocated", {"mechanisms": {"publication": "wavefront"}}),
        ("/mechanisms/policy_clock", "not_with_colocated", {"mechanisms": {"policy_clock": True}}),
        (
            "/mechanisms/allocation/window/first_s",
            "out_of_range",
            {**APART, "mechanisms": {"allocation": {"type": "colocated", "window": SHORT}}},
        ),
        (WINDOW, "not_read", {"mechanisms": {"allocation": windowed() | {"type": "agent_centric"}}}),
        (WINDOW, "not_with_window", {**APART, "mechanisms": {"allocation": windowed(), "lag_policy": {"bound": 1}}}),
        (
            WINDOW,
            "not_with_window",
            {
                **APART,
                "mechanisms": {"allocation": windowed()},
                "policies": {"speaker": {"lag_policy": {"bound": 1}}, "listener": {}},
            },
        ),
        (
            WINDOW,
            "not_with_window",
            {
                "resources": {"rollout_devices": 3, "training_devices": 2, "trainer_policies": 1},
                "mechanisms": {"allocation": windowed("fixed", own_devices=1)},
            },
        ),
        (
            WINDOW,
            "not_with_window",
            {"resources": {"rollout_devices": 2, "engine_policies": 2}, "mechanisms": {"allocation": windowed()}},
        ),
        ("/mechanisms/allocation/own_devices", "too_many_devices", {"mechanisms": {"allocation": mixed(own=1)}}),
        ("/mechanisms/allocation/own_devices", "not_read", {"mechanisms": {"allocation": {"own_devices": 1}}}),
        (
            "/resources/training_devices",
            "too_many_devices",
            {"resources": {"training_devices": 3}, "mechanisms": {"allocation": mixed(own=1, speaker=(0,))}},
        ),
        (
            "/mechanisms/allocation/homes/speaker",
            "wrong_devices",
            TWO | {"mechanisms": {"allocation": mixed(own=1, speaker=(2,))}},
        ),
    ],
)
def test_what_cannot_share_is_refused(pointer: str, code: str, changes: dict[str, Any]) -> None:
    assert broken(**changes).get(pointer) == code


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, True),  # two policies have places on the one device that is nobody else's
        ({"resources": {"trainer_policies": 1}}, False),
        ({"resources": {"training_devices": 4, "trainer_policies": 1}, "own": 2}, True),
        ({"homes": {"speaker": (0,)}}, False),
        ({"homes": {"speaker": (1,)}}, True),
        ({"policies": {"speaker": {"devices": {"least": 1, "most": 2}}}}, False),
    ],
)
def test_trainers_that_are_never_given_anything_are_told_of(changes: dict[str, Any], told: bool):
    """The last of two trainers has a device of its own, the others share those of two engines."""
    resources = {"rollout_devices": 2, "training_devices": 2} | changes.get("resources", {})
    spec = ExperimentSpec.model_validate(
        {
            "agents": {"speaker": {}, "listener": {}},
            "environment": {"type": "reference_game"},
            "policies": {"speaker": {}, "listener": {}} | changes.get("policies", {}),
            "resources": resources,
            "mechanisms": {"allocation": mixed(changes.get("own", 1), **changes.get("homes", {}))},
        }
    )
    assert [problem.code for problem in allocation_warnings(spec)] == ["never_used"] * told


@pytest.mark.parametrize(("engines", "told"), [(1, True), (2, False)])
def test_a_window_that_never_ends_play_is_told(engines: int, told: bool) -> None:
    spec = ExperimentSpec.model_validate(
        {
            "agents": {"speaker": {}, "listener": {}},
            "environment": {"type": "reference_game"},
            "policies": {"speaker": {}, "listener": {}},
            "resources": {"rollout_devices": engines},
            "mechanisms": {"allocation": windowed()},
        }
    )
    assert [problem.pointer for problem in allocation_warnings(spec)] == [WINDOW] * told
