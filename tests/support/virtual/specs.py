"""The specifications that random schedules are tried on: every axis of mechanisms is one line here."""

from typing import Any

from flexmarl.contracts.spec import ExperimentSpec

AXES: dict[str, tuple[dict[str, Any], ...]] = {
    "team": (
        {"agents": {"speaker": {}, "listener": {}}},
        {"agents": {"speaker": {"policy": "both"}, "listener": {"policy": "both"}}},
        {"agents": {"speaker": {"trainable": False}, "listener": {}}},
    ),
    "protocol": (
        {"mechanisms": {"trainer_protocol": "micro_batch"}},
        {"mechanisms": {"trainer_protocol": "batch"}},
    ),
    "order": ({"mechanisms": {"ordered": False}}, {"mechanisms": {"ordered": True}}),
    "filter": ({}, {"sampling": {"group_filter": "drop_zero_variance"}}),
    "members": ({}, {"batch": {"min_members": 2}}),
}
"""Axis -> its options, each a part of a specification."""

SMALL: dict[str, Any] = {
    "seed": 3,
    "agents": {"speaker": {}, "listener": {}},
    "environment": {"type": "reference_game"},
    "batch": {"tasks_per_step": 5, "episodes_per_task": 3, "micro_batch_groups": 2, "rollout_groups": 2},
    "budget": {"train_steps": 3},
    "evaluation": {"every_steps": 2, "tasks": 3},
    "checkpoints": {"every_steps": 2},
}


def small_spec(*parts: dict[str, Any]) -> ExperimentSpec:
    """Make a small run's specification with these parts."""
    data = SMALL
    for part in parts:
        data = _merged(data, part)
    return ExperimentSpec.model_validate(data)


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    found = dict(below)
    for name, value in above.items():
        inner = isinstance(value, dict) and isinstance(below.get(name), dict) and name != "agents"
        found[name] = _merged(below[name], value) if inner else value
    return found
