"""Which options are built. A known name that is not built yet is refused at submit with the list of what is.

Invariant (tested): the available names of each slot are exactly those the specification's types accept, so this table
and the types cannot drift apart.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flexmarl.contracts.games import DISTRIBUTIONS
from flexmarl.contracts.packaged_models import READERS, install_command
from flexmarl.contracts.plugins import Kind
from flexmarl.contracts.problems import Problem
from flexmarl.contracts.specification.advantages import ADVANTAGE
from flexmarl.contracts.specification.arrangers import ARRANGER
from flexmarl.contracts.specification.branch_controllers import BRANCH_CONTROLLER
from flexmarl.contracts.specification.corrections import CORRECTION
from flexmarl.contracts.specification.environment import ENVIRONMENT
from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.contracts.specification.losses import LOSS
from flexmarl.contracts.specification.member_counts import MEMBER_COUNT
from flexmarl.contracts.specification.movers import MOVER
from flexmarl.contracts.specification.redundancies import REDUNDANCY
from flexmarl.contracts.specification.reward import REWARD
from flexmarl.contracts.specification.routers import ROUTER
from flexmarl.contracts.specification.shaping import SHAPING
from flexmarl.contracts.specification.task_choice import GROUP_FILTER, TASK_SAMPLER
from flexmarl.contracts.specification.team import PackageModel


@dataclass(frozen=True, slots=True)
class Slot:
    available: tuple[str, ...]
    planned: tuple[str, ...]
    """Names the field knows and this version does not build."""
    written: Mapping[str, str] = field(default_factory=dict)
    """Published names that are no options of their own -> how they are said with those there are."""


def _names(kind: Kind[Any]) -> tuple[str, ...]:
    return tuple(kind.variants())


SLOTS: dict[str, Slot] = {
    "/algorithm/group_key": Slot(
        ("episode_group", "agent_turn", "team"), (), {"agent": "group_key: episode_group, which compares a role's rows"}
    ),
    "/algorithm/shaping/type": Slot(
        _names(SHAPING), (), {"echo": "shaping: majority_vote", "ttrl": "shaping: majority_vote"}
    ),
    "/algorithm/advantage/type": Slot(
        _names(ADVANTAGE),
        (),
        {
            "dr_grpo": "advantage: {type: grpo}, loss: {type: ppo_clip, aggregation: constant_norm}",
            "magrpo": "advantage: {type: grpo, per_turn: true, turn_rewards: joint, gamma: 0.9}, group_key: team",
            "dr_mas": "advantage: {type: grpo, divide_by_std: true}, group_key: episode_group",
            "at_grpo": "advantage: {type: grpo, divide_by_std: true}, group_key: agent_turn, and under sampling: "
            "branch_controller: at_grpo_tree",
        },
    ),
    "/algorithm/loss/type": Slot(
        _names(LOSS),
        (),
        {
            "grpo": "loss: {type: ppo_clip, aggregation: seq_mean_token_mean}, advantage: {divide_by_std: true}",
            "dr_grpo": "loss: {type: ppo_clip, aggregation: constant_norm}",
            "dapo": "loss: {type: ppo_clip, clip_high: 0.28}, advantage: {divide_by_std: true}",
            "m2po": "loss: {type: ppo_clip, clip_low: 1, clip_high: 10}, correction: second_moment, "
            "advantage: {divide_by_std: true}",
            "mnpo": "loss: {type: online_dpo, form: mnpo, beta: 0.0075}, advantage: best_worst",
            "luspo": "loss: {type: gspo, aggregation: seq_mean_token_sum, clip_low: 0.0003, clip_high: 0.0004}",
        },
    ),
    "/algorithm/kl/reference/type": Slot(("first", "version", "renewed"), ()),
    "/algorithm/correction/type": Slot(
        _names(CORRECTION),
        (),
        {
            "decoupled": "correction: {type: truncated_importance, limit: 5}",
            "icepop": "correction: {type: masked_importance, floor: 0.5, limit: 5}",
        },
    ),
    "/sampling/task_sampler/type": Slot(_names(TASK_SAMPLER), ()),
    "/sampling/members/type": Slot(_names(MEMBER_COUNT), ()),
    "/sampling/branch_controller/type": Slot(
        _names(BRANCH_CONTROLLER), (), {"at_grpo": "sampling: {branch_controller: at_grpo_tree}"}
    ),
    "/sampling/group_filter/type": Slot(
        _names(GROUP_FILTER),
        (),
        {
            "pods": "sampling: {keep_members: 4}, with more episodes_per_task than that",
            "shuffle_r1": "sampling: {keep_members: 8, keep_rule: pairs}, with twice as many episodes_per_task",
        },
    ),
    "/sampling/arranger/type": Slot(_names(ARRANGER), (), {"shuffle_r1": "arranger: advantage_shuffle"}),
    "/sampling/replay/type": Slot(("none", "archive", "rescue"), ()),
    "/sampling/turn_limit/type": Slot(("none", "past_successes"), ()),
    "/mechanisms/lag_policy/at_admission": Slot(("admit", "wait", "trained"), ()),
    "/mechanisms/lag_policy/in_flight": Slot(("finish", "continue", "resume", "restart_turn", "discard"), ()),
    "/mechanisms/lag_policy/at_cut": Slot(("wait", "drop", "refresh", "train"), ()),
    "/mechanisms/lag_policy/at_turn": Slot(("play", "abandon"), ()),
    "/mechanisms/dispatch": Slot(("drawn", "longest_first"), ()),
    "/mechanisms/redundancy/type": Slot(_names(REDUNDANCY), ()),
    "/mechanisms/durability/type": Slot(("every_step", "every_k", "async"), ()),
    "/batch/settle": Slot(("group", "episode"), ()),
    "/mechanisms/router/type": Slot(_names(ROUTER), ()),
    "/mechanisms/parallel/turns": Slot(("own", "together"), ()),
    "/mechanisms/mover/type": Slot(_names(MOVER), ()),
    "/mechanisms/publication/content": Slot(("auto", "full", "delta"), ()),
    "/mechanisms/publication/type": Slot(("cohort", "wavefront", "delayed"), ()),
    "/mechanisms/trainer_protocol": Slot(("micro_batch", "batch", "mini_batch", "per_group"), ()),
    "/mechanisms/allocation/type": Slot(("agent_centric", "static", "colocated"), ()),
    "/mechanisms/allocation/window/type": Slot(("played", "fixed", "measured"), ()),
    "/mechanisms/arbiter": Slot(("fair_share",), ()),
    "/resources/engine": Slot(("torch", "vllm"), ()),
    "/environment/type": Slot(
        _names(ENVIRONMENT),
        (),
        {
            "mcp": "type: dataset, with tools: {servers: [{type: mcp, package: mcp-server-time@2026.10.10}]}",
            "mcp_url": "type: dataset, with tools: {servers: [{type: mcp_url, url: https://tools.example.org/mcp}]}",
        },
    ),
    "/reward/type": Slot(_names(REWARD), ()),
    "/policies/*/model/type": Slot(("factory", "folder", "package", "registered", "checkpoint"), ("hub",)),
    "/policies/*/optimizer/type": Slot(("adamw",), ("muon", "sgd")),
    "/policies/*/tuning/type": Slot(("full", "lora"), ()),
    "/policies/*/precision": Slot(("fp32", "fp64", "bf16"), ()),
    "/policies/*/trainer": Slot(("auto", "native", "transformers"), ()),
    "/policies/*/activations": Slot(("keep", "recompute"), ()),
}


def unavailable(document: Mapping[str, Any]) -> list[Problem]:
    """Find values that are legal words of their field and not built in this version."""
    return [
        Problem(
            pointer=where,
            code="not_available",
            detail=f"{value} is known but not implemented in this version.",
            hint=f"Available: {', '.join(slot.available)}.",
        )
        for path, slot in SLOTS.items()
        for where, value in _values(document, path.strip("/").split("/"), "")
        if value in slot.planned
    ] + [
        Problem(
            pointer=where,
            code="said_otherwise",
            detail=f"{value} is not an option of its own; it is a combination of other options.",
            hint=f"Write {slot.written[value]}.",
        )
        for path, slot in SLOTS.items()
        for where, value in _values(document, path.strip("/").split("/"), "")
        if isinstance(value, str) and value in slot.written
    ]


def not_installed(environment: str, installed: Callable[[str], bool]) -> list[Problem]:
    """Find that an environment's packages are missing; `installed` tells whether a module can be imported."""
    missing = [name for name in DISTRIBUTIONS.get(environment, ()) if not installed(name)]
    if not missing:
        return []
    others = [name for name in SLOTS["/environment/type"].available if name not in DISTRIBUTIONS]
    return [
        Problem(
            pointer="/environment/type",
            code="not_installed",
            detail=f"{environment} needs packages that are not installed: {', '.join(missing)}.",
            hint=f"Install flexmarl[environments] on every machine. Always available: {', '.join(others)}.",
        )
    ]


def models_not_installed(spec: ExperimentSpec, version_of: Callable[[str], str]) -> list[Problem]:
    """Find packaged models that are missing; `version_of` returns the installed version of a distribution, or empty."""
    problems = []
    for name, policy in spec.policies.items():
        source = policy.source
        if isinstance(source, PackageModel) and not (
            version_of(source.name) == source.version and all(map(version_of, READERS))
        ):
            detail = f"{source.name} {source.version} is not installed."
            hint = f"On every machine: {install_command(source.name)}. Always available: type: factory."
            problems.append(
                Problem(pointer=f"/policies/{name}/model/name", code="not_installed", detail=detail, hint=hint)
            )
    return problems


def _values(node: object, path: list[str], where: str) -> list[tuple[str, object]]:
    if not path or (path == ["type"] and isinstance(node, str)):  # a word is a type
        return [(where, node)]
    if not isinstance(node, Mapping):
        return []
    names = list(node) if path[0] == "*" else [path[0]] if path[0] in node else []
    return [found for name in names for found in _values(node[name], path[1:], f"{where}/{name}")]
