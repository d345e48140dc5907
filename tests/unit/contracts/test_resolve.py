"""Resolving a specification: layers, sources, and refusals that name the field, the rule and a legal value."""

import re
import typing
from pathlib import Path

import pytest
import yaml

from flexmarl.contracts.arithmetic import arithmetic
from flexmarl.contracts.availability import SLOTS
from flexmarl.contracts.plugins import OneOf
from flexmarl.contracts.problems import SpecProblems
from flexmarl.contracts.resolve import load_presets, load_templates, parse_yaml, preset_aliases, resolve
from flexmarl.contracts.specification import ExperimentSpec

GAME = {"agents": {"speaker": {}, "listener": {}}, "environment": {"type": "reference_game"}}


def refusals(raw: dict, **kwargs: str) -> list[tuple[str, str]]:
    with pytest.raises(SpecProblems) as caught:
        resolve(raw, **kwargs)
    return [(p.pointer, p.code) for p in caught.value.problems]


def hints(raw: dict) -> str:
    with pytest.raises(SpecProblems) as caught:
        resolve(raw)
    return " ".join(p.hint for p in caught.value.problems)


def test_a_dual_clip_may_end_where_the_clip_range_does() -> None:
    for high in (0.1, 0.2, 0.28, 0.7, 1.1):
        loss = {"type": "ppo_clip", "clip_high": high, "dual_clip": round(1.0 + high, 2)}
        resolve({**GAME, "algorithm": {"loss": loss}})
        with pytest.raises(SpecProblems, match="dual_clip") as caught:
            resolve({**GAME, "algorithm": {"loss": {**loss, "dual_clip": 1.0 + high - 0.01}}})
        assert f"Set at least {1.0 + high:g}" in caught.value.problems[0].hint


def test_sources_tell_default_preset_and_user_apart() -> None:
    resolved = resolve({**GAME, "batch": {"tasks_per_step": 16}}, preset="sync")
    assert resolved.spec.mechanisms.trainer_protocol == "batch"
    assert resolved.sources["/mechanisms/trainer_protocol"] == "preset"
    assert resolved.sources["/batch/tasks_per_step"] == "user"
    assert resolved.sources["/batch/episodes_per_task"] == "default"


def test_resolving_a_resolved_document_changes_nothing() -> None:
    first = resolve(GAME)
    assert resolve(first.document).document == first.document


def test_every_template_and_preset_resolves() -> None:
    for name in load_templates():
        assert resolve({}, template=name).template == name
    for name in load_presets():
        assert resolve(GAME, preset=name).preset == name


def test_presets_that_are_equal_by_all_but_name_are_marked_and_no_others() -> None:
    """Over another team than the one they are compared with."""
    made = {name: resolve(GAME, preset=name).document for name in load_presets()}
    equal = {name: tuple(other for other in made if other != name and made[other] == made[name]) for name in made}
    assert preset_aliases() == equal
    assert preset_aliases()["marti"] == ("colocated", "rlinf_temporal")
    assert preset_aliases()["flexmarl"] == ()


def test_a_changed_environment_type_replaces_the_variant() -> None:
    raw = {"environment": {"type": "hot_cold", "numbers": 4}, "agents": {"guesser": {}, "hinter": {}}}
    assert resolve(raw).spec.environment.model_dump()["numbers"] == 4


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"batch": {"tasks_per_steps": 8}}, ("/batch/tasks_per_steps", "unknown_field")),
        ({"batch": {"tasks_per_step": 0}}, ("/batch/tasks_per_step", "out_of_range")),
        ({"batch": {"micro_batch_groups": 64}}, ("/batch/micro_batch_groups", "out_of_range")),
        ({"sampling": {"task_sampler": "vade"}}, ("/sampling/task_sampler/tasks", "needs_tasks")),
        ({"policies": {"speaker": {"optimizer": "muon"}}}, ("/policies/speaker/optimizer", "not_available")),
        ({"algorithm": {"loss": {"type": "dapo"}}}, ("/algorithm/loss/type", "said_otherwise")),
        ({"algorithm": {"loss": {"type": "gspo"}}}, ("/algorithm/loss/clip_high", "out_of_range")),
        ({"algorithm": {"loss": {"dual_clip": 3.0}}}, ("/algorithm/loss/dual_clip", "not_read")),
        (
            {"algorithm": {"loss": {"type": "ppo_clip", "clip_high": 0.28, "dual_clip": 1.2}}},
            ("/algorithm/loss/dual_clip", "out_of_range"),
        ),
        ({"algorithm": {"loss": {"norm_tokens": 8}}}, ("/algorithm/loss/norm_tokens", "not_read")),
        ({"algorithm": {"loss": {"type": "topr", "clip_low": 0.1}}}, ("/algorithm/loss/clip_low", "not_read")),
        ({"algorithm": {"correction": "icepop"}}, ("/algorithm/correction/type", "said_otherwise")),
        ({"algorithm": {"advantage": {"type": "dr_mas"}}}, ("/algorithm/advantage/type", "said_otherwise")),
        (
            {"algorithm": {"advantage": {"type": "rloo", "divide_by_std": True}}},
            ("/algorithm/advantage/divide_by_std", "not_read"),
        ),
        (
            {"algorithm": {"advantage": {"turn_rewards": "joint"}}},
            ("/algorithm/advantage/turn_rewards", "needs_per_turn"),
        ),
        ({"algorithm": {"shaping": "marti"}}, ("/algorithm/shaping/type", "needs_per_turn")),
        (
            {"algorithm": {"shaping": "maporl", "advantage": {"per_turn": True, "gamma": 0.5}}},
            ("/algorithm/advantage/gamma", "not_read"),
        ),
        (
            {"algorithm": {"shaping": {"type": "overlong", "buffer_tokens": 4096}}},
            ("/algorithm/shaping/buffer_tokens", "out_of_range"),
        ),
        ({"sampling": {"keep_members": 8}}, ("/sampling/keep_members", "out_of_range")),
        ({"sampling": {"keep_rule": "pairs"}}, ("/sampling/keep_rule", "not_read")),
        ({"sampling": {"keep_members": 3, "keep_rule": "pairs"}}, ("/sampling/keep_members", "not_even")),
        (
            {"sampling": {"keep_members": 4, "keep_rule": "pairs"}, "batch": {"episodes_per_task": 7}},
            ("/batch/episodes_per_task", "not_even"),
        ),
        (
            {
                "sampling": {"keep_members": 4, "keep_rule": "pairs"},
                "algorithm": {"advantage": {"type": "reinforce"}},
            },
            ("/sampling/keep_rule", "needs_group_advantage"),
        ),
        ({"algorithm": {"correction": "mask_stale"}}, ("/algorithm/correction/type", "needs_bound")),
        ({"algorithm": {"loss": {"type": "decoupled_ppo"}}}, ("/algorithm/loss/type", "needs_mini_batch")),
        ({"algorithm": {"loss": {"weight_limit": 3.0}}}, ("/algorithm/loss/weight_limit", "not_read")),
        ({"algorithm": {"kl": {"reference": "renewed"}}}, ("/algorithm/kl/reference/type", "not_read")),
        (
            {"algorithm": {"kl": {"coefficient": 0.1, "reference": {"type": "version", "version": 400}}}},
            ("/algorithm/kl/reference/version", "out_of_range"),
        ),
        (
            {
                "algorithm": {"kl": {"coefficient": 0.1, "reference": {"type": "renewed", "every": 4}}},
                "mechanisms": {"durability": {"type": "every_k", "every": 5}},
            },
            ("/algorithm/kl/reference/every", "out_of_range"),
        ),
        (
            {"algorithm": {"correction": "masked_importance", "loss": {"type": "topr"}}},
            ("/algorithm/correction/type", "ratio_counted_twice"),
        ),
        ({"algorithm": {"loss": {"type": "nonsense"}}}, ("/algorithm/loss/type", "unknown_value")),
        ({"policies": {"speaker": {"tuning": "dora"}}}, ("/policies/speaker/tuning/type", "unknown_value")),
        (
            {"policies": {"speaker": {"tuning": {"type": "lora", "rank": 0}}}},
            ("/policies/speaker/tuning/rank", "out_of_range"),
        ),
        (
            {"policies": {"speaker": {"tuning": {"type": "lora", "rank": 65}}}},
            ("/policies/speaker/tuning/rank", "out_of_range"),
        ),
        (
            {"policies": {"speaker": {"tuning": {"type": "lora", "targets": ["q_proj", "qkv"]}}}},
            ("/policies/speaker/tuning/targets/1", "unknown_value"),
        ),
        (
            {"policies": {"speaker": {"tuning": {"type": "lora", "targets": ["q_proj", "q_proj"]}}}},
            ("/policies/speaker/tuning/targets", "duplicate"),
        ),
        ({"policies": {"speaker": {"tuning": {"rank": 4}}}}, ("/policies/speaker/tuning/type", "required")),
        ({"policies": {"speaker": {"model": {"sizes": "S"}}}}, ("/policies/speaker/model/sizes", "unknown_field")),
        ({"policies": {"talker": {}}}, ("/policies/talker", "unused_policy")),
        ({"mechanisms": {"lag_policy": {"bound": 99}}}, ("/mechanisms/lag_policy/bound", "out_of_range")),
        ({"environment": {"type": "chess"}}, ("/environment/type", "unknown_value")),
        ({"environment": {"numbers": 9}}, ("/environment/numbers", "not_read")),
        ({"seed": "seven"}, ("/seed", "wrong_type")),
        ({"budget": {"target": {"metric": "loss"}}}, ("/budget/target/metric", "unknown_value")),
        ({"algorithm": {"advantage": {"gamma": 0.9}}}, ("/algorithm/advantage/gamma", "needs_per_turn")),
        ({"agents": {"speaker": {}, "listener": {}, "judge": {}}}, ("/agents/judge", "unknown_role")),
        (
            {"agents": {"speaker": {"trainable": False}, "listener": {"trainable": False}}},
            ("/agents", "nothing_to_train"),
        ),
        ({"policies": {"speaker": {"warmup": {"steps": 3}}}}, ("/policies/speaker/warmup", "no_demonstrations")),
    ],
)
def test_refusals_point_at_the_field(change: dict, expected: tuple[str, str]) -> None:
    raw = {**GAME, **change}
    if "environment" in change:
        raw["environment"] = {**GAME["environment"], **change["environment"]}
    assert expected in refusals(raw)


def test_all_problems_come_at_once() -> None:
    raw = {**GAME, "seed": -1, "batch": {"tasks_per_step": 0, "what": 1}}
    assert len(refusals(raw)) == 3


def test_hints_name_a_legal_neighbour() -> None:
    assert "tasks_per_step" in hints({**GAME, "batch": {"task_per_step": 8}})
    assert "Set 1." in hints({**GAME, "batch": {"tasks_per_step": 0}})
    assert "at_grpo_tree" in hints({**GAME, "sampling": {"branch_controller": "at_grpo"}})


def test_a_word_in_the_place_of_a_mapping_is_refused_in_plain_words() -> None:
    raw = {"environment": {"type": "dataset", "dataset": "sums"}, "agents": {"solver": {}}}
    with pytest.raises(SpecProblems) as caught:
        resolve(raw)
    (found,) = caught.value.problems
    assert found.detail == "dataset must be a mapping of fields; it is 'sums'."
    assert found.hint == "Write it like {'name': 'school_maths'}."


def test_unknown_template_names_a_neighbour() -> None:
    assert refusals({}, template="referenc_game") == [("/template", "unknown_value")]


def test_yaml_errors_name_the_line() -> None:
    with pytest.raises(SpecProblems) as caught:
        parse_yaml("a: [1,\nb: 2")
    assert "Line" in caught.value.problems[0].detail


def _literals(model: type, path: list[str]) -> tuple[str, ...]:
    if path[0] == "*":
        raise AssertionError
    for note in model.model_fields[path[0]].metadata:
        if isinstance(note, OneOf):
            return tuple(
                name for name, options in note.kind.variants().items() if _literals(options, path[1:]) == (name,)
            )
    annotation = model.model_fields[path[0]].annotation
    origin = typing.get_origin(annotation)
    if origin is dict:
        return _literals(typing.get_args(annotation)[1], path[2:])
    if len(path) == 1:
        return typing.get_args(annotation)
    variants = typing.get_args(annotation) if typing.get_args(annotation) else (annotation,)
    return tuple(word for variant in variants for word in _literals(variant, path[1:]))


def test_available_names_are_exactly_what_the_types_accept() -> None:
    for path, slot in SLOTS.items():
        accepted = set(_literals(ExperimentSpec, path.strip("/").split("/")))
        assert accepted == set(slot.available), path


def test_arithmetic_counts_samples_and_micro_batches() -> None:
    spec = resolve(
        {
            "agents": {"guesser": {}, "hinter": {}},
            "environment": {"type": "hot_cold", "guesses": 4},
            "batch": {"tasks_per_step": 32, "episodes_per_task": 8, "micro_batch_groups": 8},
            "budget": {"train_steps": 10},
        }
    ).spec
    sums = arithmetic(spec)
    guesser, hinter = sums.agents
    assert guesser.samples == (256, 1024)
    assert hinter.samples == (0, 768)
    assert [p.micro_batches for p in sums.policies] == [4, 4]
    assert sums.total_episodes == 2560


def test_an_adapter_may_be_named_by_a_word_and_is_counted() -> None:
    narrow = {"type": "lora", "rank": 4, "targets": ["q_proj"]}
    policies = {"speaker": {"tuning": "lora"}, "listener": {"tuning": narrow}}
    found = resolve({**GAME, "policies": policies})
    assert found.document["policies"]["speaker"]["tuning"]["targets"][0] == "q_proj"
    assert found.spec.policies["speaker"].tuning.scale == 2.0
    sums = {policy.policy: policy.adapter_parameters for policy in arithmetic(found.spec).policies}
    layer = 8 * (4 * (64 + 64) + 3 * (64 + 128))
    assert sums == {"speaker": 2 * layer, "listener": 2 * 4 * (64 + 64)}
    assert [policy.adapter_parameters for policy in arithmetic(resolve(GAME).spec).policies] == [None, None]
    assert resolve({**GAME, "policies": {"speaker": {"tuning": "full"}}}).spec.policies["speaker"].tuning.type == "full"


def test_arithmetic_follows_the_protocol() -> None:
    def policy(**mechanisms: object) -> tuple[int, int, int]:
        batch = {"tasks_per_step": 10, "micro_batch_groups": 4, "mini_batches": 3, "rollout_groups": 5}
        raw = {**GAME, "batch": batch, "mechanisms": mechanisms, "budget": {"train_steps": 5}}
        found = arithmetic(resolve(raw).spec).policies[0]
        return found.micro_batches, found.groups_per_micro_batch, found.train_steps

    assert policy() == (3, 4, 5)
    assert policy(trainer_protocol="per_group") == (10, 1, 5)
    assert policy(trainer_protocol="mini_batch", lag_policy={"bound": 2}) == (3, 4, 15)


LAG = {"bound": 1, "at_admission": "admit", "in_flight": "finish", "at_cut": "wait"}
PAUSED = {"type": "extra_groups", "extra": 2, "surplus": "pause"}
TRAINED = {"bound": 1, "at_admission": "trained"}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"mechanisms": {"lag_policy": {"in_flight": "resume"}}}, ("/mechanisms/lag_policy/in_flight", "needs_bound")),
        ({"mechanisms": {"lag_policy": {"at_cut": "drop"}}}, ("/mechanisms/lag_policy/at_cut", "needs_bound")),
        ({"mechanisms": {"lag_policy": {"at_cut": "train"}}}, ("/mechanisms/lag_policy/at_cut", "needs_bound")),
        (
            {"mechanisms": {"lag_policy": {"at_admission": "trained"}}},
            ("/mechanisms/lag_policy/at_admission", "needs_bound"),
        ),
        (
            {"mechanisms": {"lag_policy": LAG | {"at_admission": "trained"}, "publication": "delayed"}},
            ("/mechanisms/lag_policy/at_admission", "not_with_publication"),
        ),
        (
            {"mechanisms": {"redundancy": {"type": "extra_members", "extra": 1, "share": 0.5}}},
            ("/mechanisms/redundancy/share", "not_read"),
        ),
        ({"batch": {"episodes_per_task": 1}}, ("/batch/episodes_per_task", "needs_peers")),
        (
            {"policies": {"speaker": {"lag_policy": {**LAG, "bound": 0, "in_flight": "discard"}}}},
            ("/policies/speaker/lag_policy/in_flight", "needs_bound"),
        ),
        (
            {"mechanisms": {"publication": "wavefront", "lag_policy": {**LAG, "in_flight": "continue"}}},
            ("/mechanisms/lag_policy/in_flight", "not_with_publication"),
        ),
        (
            {"mechanisms": {"ordered": True, "lag_policy": LAG}},
            ("/mechanisms/lag_policy/bound", "ordered_is_on_policy"),
        ),
        (
            {"mechanisms": {"redundancy": {"type": "extra_groups", "extra": 2, "surplus": "continue"}}},
            ("/mechanisms/redundancy/surplus", "needs_bound"),
        ),
        (
            {"mechanisms": {"redundancy": PAUSED, "lag_policy": {"bound": 1, "in_flight": "resume"}}},
            ("/mechanisms/redundancy/surplus", "needs_trained"),
        ),
        *(
            (
                {"mechanisms": {"redundancy": PAUSED, "lag_policy": TRAINED | {"in_flight": word}}},
                ("/mechanisms/lag_policy/in_flight", "not_with_pause"),
            )
            for word in ("finish", "continue", "discard")
        ),
        ({"mechanisms": {"redundancy": PAUSED}}, ("/mechanisms/redundancy/surplus", "needs_bound")),
        (
            {"mechanisms": {"redundancy": {"type": "extra_members", "extra": 2, "surplus": "join"}}},
            ("/mechanisms/redundancy/surplus", "not_read"),
        ),
        (
            {"algorithm": {"correction": "truncated_importance", "loss": {"type": "ppo_clip"}}},
            ("/algorithm/correction/type", "ratio_counted_twice"),
        ),
        ({"mechanisms": {"redundancy": {"type": "extra_groups"}}}, ("/mechanisms/redundancy/extra", "out_of_range")),
        (
            {"mechanisms": {"redundancy": {"type": "extra_environments", "extra": 0}}},
            ("/mechanisms/redundancy/extra", "out_of_range"),
        ),
    ],
)
def test_lag_policies_that_cannot_work_are_refused_with_a_legal_value(change: dict, expected: tuple[str, str]) -> None:
    with pytest.raises(SpecProblems) as caught:
        resolve({**GAME, **change})
    found = {(p.pointer, p.code): p.hint for p in caught.value.problems}
    assert expected in found
    assert found[expected].startswith(("Set", "Available", "Remove it, or set type: extra_groups"))


@pytest.mark.parametrize("word", ["resume", "restart_turn"])
def test_paused_surplus_needs_a_next_step_that_waits_and_replies_that_follow(word: str) -> None:
    resolve({**GAME, "mechanisms": {"redundancy": PAUSED, "lag_policy": TRAINED | {"in_flight": word}}})


def test_a_stored_specification_may_name_redundancy_by_a_word() -> None:
    assert resolve({**GAME, "mechanisms": {"redundancy": "none"}}).spec.mechanisms.redundancy.type == "none"


def test_a_policy_without_a_lag_policy_has_the_teams() -> None:
    spec = resolve({**GAME, "mechanisms": {"lag_policy": LAG}, "policies": {"speaker": {"lag_policy": {"bound": 3}}}})
    assert [spec.spec.lag_policy_of(name).bound for name in ("speaker", "listener")] == [3, 1]


def test_published_methods_are_written_as_the_documents_say() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs/learning.md").read_text(encoding="utf-8")
    table = text.split("## Published methods")[1]
    methods = re.findall(r"^\| ([^|]+) \| `(\{.*?\})`(?=[ :|])", table, re.MULTILINE)
    assert len(methods) >= 10
    for name, written in methods:
        changed = resolve({**GAME, "algorithm": yaml.safe_load(written)}).spec.algorithm
        assert changed != resolve(GAME).spec.algorithm, name
