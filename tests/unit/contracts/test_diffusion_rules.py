"""What a block-diffusion policy cannot be combined with: each refusal names the field and a legal value."""

from typing import Any

import pytest

from flexmarl.contracts.fork_rules import fork_rules
from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.rules import broken_rules
from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.contracts.specification.reading import KEY

MODEL: dict[str, Any] = {"decoding": "block_diffusion"}
POLICY = "/policies/guesser"


def spec(policy: dict[str, Any] | None = None, model: dict[str, Any] | None = None, **more: Any) -> ExperimentSpec:
    own = {"model": {**MODEL, **(model or {})}, **(policy or {})}
    return ExperimentSpec.model_validate(
        {
            "agents": {"guesser": {}, "hinter": {}},
            "policies": {"guesser": own, "hinter": {}},
            "environment": {"type": "hot_cold"},
            **more,
        }
    )


def refused(made: ExperimentSpec) -> list[tuple[str, str, str]]:
    return [(one.pointer, one.code, one.hint) for one in broken_rules(made)]


@pytest.mark.parametrize("log_probs", ["dipo", "diffu_grpo"])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"algorithm": {"loss": {"type": "ppo_clip"}, "kl": {"coefficient": 0.1}}},
        {"algorithm": {"loss": {"type": "gspo", "clip_low": 0.0003, "clip_high": 0.0004}}},
    ],
)
def test_losses_and_penalties_are_those_of_other_policies(log_probs: str, more: dict[str, Any]) -> None:
    assert refused(spec({"log_probs": log_probs, "tuning": "lora"}, **more)) == []


def test_older_rows_have_the_ratio_of_their_steps() -> None:
    lag = {"mechanisms": {"lag_policy": {"bound": 2, "in_flight": "restart_turn"}}}
    algorithm = {"loss": {"type": "policy_gradient"}, "correction": {"type": "truncated_importance"}}
    assert refused(spec(algorithm=algorithm, **lag)) == []


DIFFU = {"log_probs": "diffu_grpo"}
ON = "not_with_block_diffusion"


@pytest.mark.parametrize(
    ("given", "pointer", "code", "legal"),
    [
        ({"sampling": {"branch_controller": "echo"}}, "/sampling/branch_controller/type", ON, "none"),
        ({"resources": {"engine": "vllm"}, "model": {"size": "M"}}, f"{POLICY}/model/decoding", "not_with_engine",
         "torch"),
        ({"mechanisms": {"ordered": True}}, "/mechanisms/ordered", ON, "false"),
        ({"policy": {"trainer": "transformers"}}, f"{POLICY}/trainer", ON, "native"),
        ({"policy": {"devices": 2}, "mechanisms": {"allocation": {"type": "agent_centric"}},
          "resources": {"training_devices": 4}}, f"{POLICY}/devices", ON, "Set 1"),
        ({"mechanisms": {"lag_policy": {"bound": 1, "in_flight": "resume"}}}, "/mechanisms/lag_policy/in_flight", ON,
         "restart_turn"),
        ({"algorithm": {"advantage": {"type": "gae"}}}, "/algorithm/advantage/type", ON, "grpo"),
        ({"algorithm": {"advantage": {"type": "best_worst"}, "loss": {"type": "online_dpo"}, "entropy": {"start": 0}}},
         "/algorithm/loss/type", ON, "ppo_clip"),
        ({"policy": DIFFU, "mechanisms": {"lag_policy": {"bound": 1}}}, "/mechanisms/lag_policy/bound", ON, "Set 0"),
        ({"policy": DIFFU, "algorithm": {"correction": {"type": "truncated_importance"}}}, "/algorithm/correction/type",
         ON, "Set none"),
        ({"policy": DIFFU, "algorithm": {"loss": {"type": "confidence_clip"}}}, "/algorithm/loss/type", ON, "ppo_clip"),
        ({"policy": DIFFU, "algorithm": {"loss": {"type": "ppo_clip"}}, "sampling": {"replay": {"type": "archive"}}},
         "/sampling/replay", ON, "replay off"),
        ({"model": {"block": 4, "denoising_steps": 5}}, f"{POLICY}/model/denoising_steps", "out_of_range", "Set 4"),
        ({"model": {"decoding": "left_to_right", "block": 8}}, f"{POLICY}/model/block", "not_read", "Set 4"),
        ({"model": {"decoding": "left_to_right", "confidence": None}}, f"{POLICY}/model/confidence", "not_read", "0.9"),
        ({"model": {"decoding": "left_to_right"}, "policy": DIFFU}, f"{POLICY}/log_probs", "not_read", "Set dipo"),
    ],
)  # fmt: skip
def test_what_needs_replies_from_left_to_right_is_refused(
    given: dict[str, Any], pointer: str, code: str, legal: str
) -> None:
    found = [hint for own, why, hint in refused(spec(**given)) if (own, why) == (pointer, code)]
    assert len(found) == 1
    assert legal in found[0]


def test_demonstrations_have_no_steps() -> None:
    changes = {"policies": {"solver": {"model": MODEL}}}
    with pytest.raises(Exception, match="warmup") as found:
        resolve(changes, template="arithmetic")
    assert ON in {one.code for one in found.value.problems}  # type: ignore[attr-defined]


def test_a_run_that_starts_from_another_keeps_how_it_decodes() -> None:
    found = fork_rules(spec(), spec(model={"decoding": "left_to_right"}), {"guesser"}, training_state=False)
    assert [one.pointer for one in found] == [f"{POLICY}/model/decoding"]
    assert not list(fork_rules(spec(), spec(model={"confidence": 0.5}), {"guesser"}, training_state=False))


def test_forms_hide_what_left_to_right_does_not_read() -> None:
    schema = ExperimentSpec.model_json_schema()["$defs"]
    own = schema["FactoryModel"]["properties"]
    assert [name for name in own if KEY in own[name]] == ["decoding", "block", "denoising_steps", "confidence"]
    assert schema["PolicySpec"]["properties"]["log_probs"][KEY][0][0]["pointer"] == "/policies/*/model/decoding"
