"""The specifications that random schedules are tried on: every axis of mechanisms is one line here."""

from typing import Any

from flexmarl.contracts.rules import broken_rules
from flexmarl.contracts.specification import ExperimentSpec

AXES: dict[str, tuple[dict[str, Any], ...]] = {
    "team": (
        {"agents": {"speaker": {}, "listener": {}}},
        {"agents": {"speaker": {"policy": "both"}, "listener": {"policy": "both"}}},
        {"agents": {"speaker": {"trainable": False}, "listener": {}}},
    ),
    "protocol": (
        {"mechanisms": {"trainer_protocol": "micro_batch"}},
        {"mechanisms": {"trainer_protocol": "batch"}},
        {"mechanisms": {"trainer_protocol": "per_group"}},
        {"mechanisms": {"trainer_protocol": "mini_batch"}, "batch": {"mini_batches": 2}},
        {"mechanisms": {"policy_clock": True}, "batch": {"min_rows": 12}},
    ),
    "publication": tuple({"mechanisms": {"publication": name}} for name in ("cohort", "wavefront", "delayed")),
    "bound": tuple({"mechanisms": {"lag_policy": {"bound": bound}}} for bound in (0, 0, 1, 3)),
    "admission": tuple({"mechanisms": {"lag_policy": {"at_admission": name}}} for name in ("admit", "wait", "trained")),
    "in_flight": tuple(
        {"mechanisms": {"lag_policy": {"in_flight": name}}}
        for name in ("finish", "finish", "continue", "resume", "restart_turn", "discard")
    ),
    "at_cut": tuple({"mechanisms": {"lag_policy": {"at_cut": name}}} for name in ("wait", "drop", "refresh", "train")),
    "redundancy": (
        {},
        {},
        *(
            {"mechanisms": {"redundancy": {"type": "extra_groups", "extra": 2, "surplus": name}}}
            for name in ("join", "keep", "continue", "cancel")
        ),
        {"mechanisms": {"redundancy": {"type": "extra_members", "extra": 1}}},
        {"mechanisms": {"redundancy": {"type": "extra_groups", "extra": 2, "extra_members": 1}}},
        {"mechanisms": {"redundancy": {"type": "extra_groups", "extra": 3, "extra_members": 1, "surplus": "defer"}}},
    ),
    "carry": ({}, {"batch": {"min_rows": 40, "max_carry": 1}}),
    "order": ({"mechanisms": {"ordered": False}}, {"mechanisms": {"ordered": True}}),
    "places": (
        {},
        {},
        {"resources": {"rollout_devices": 1, "engine_policies": 1}},
        {"resources": {"rollout_devices": 2, "engine_policies": 1}},
        {"resources": {"rollout_devices": 2, "engine_policies": 1}, "mechanisms": {"mover": "demand"}},
        {"resources": {"rollout_devices": {"min": 1, "max": 3}}},
        {"resources": {"rollout_devices": {"min": 2, "max": 3}, "engine_policies": 1}},
    ),
    "filter": (
        {},
        {"sampling": {"group_filter": "drop_zero_variance"}},
        {"sampling": {"group_filter": {"type": "dynamic_sampling", "draw_limit": 2}}},
    ),
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


def legal(spec: ExperimentSpec) -> bool:
    """Tell whether a run of it would be accepted."""
    return not broken_rules(spec)


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    found = dict(below)
    for name, value in above.items():
        inner = isinstance(value, dict) and isinstance(below.get(name), dict) and name != "agents"
        found[name] = _merged(below[name], value) if inner else value
    return found
