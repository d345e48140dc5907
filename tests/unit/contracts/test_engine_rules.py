"""What a specification may ask of the vLLM engine: each refusal names the field and a legal value."""

import pytest

from flexmarl.contracts.rules import broken_rules
from flexmarl.contracts.specification.experiment import ExperimentSpec
from workers.models.architecture import UnsupportedModel, architecture_of
from workers.rollout.engines.vllm_models import CACHE_BYTES, vllm_model

POLICY = {"model": {"size": "M"}}


def spec(size: str = "M", engine: str = "vllm", **more: object) -> ExperimentSpec:
    policy = {"model": {"size": size}}
    return ExperimentSpec.model_validate(
        {
            "agents": {"guesser": {}, "hinter": {}},
            "policies": {"guesser": policy, "hinter": policy},
            "environment": {"type": "hot_cold"},
            "resources": {"engine": engine},
            **more,
        }
    )


def test_the_torch_engine_is_the_one_unless_said_and_serves_everything():
    plain = spec(engine="torch", size="S", mechanisms={"ordered": True})
    assert broken_rules(plain) == []
    assert ExperimentSpec.model_validate(plain.model_dump(exclude={"resources"})).resources.engine == "torch"


@pytest.mark.parametrize("publication", ["cohort", "wavefront"])
def test_vllm_serves_every_publication_of_a_model_with_wide_heads(publication):
    assert broken_rules(spec(mechanisms={"publication": publication})) == []


@pytest.mark.parametrize("in_flight", ["finish", "resume", "restart_turn", "discard"])
def test_vllm_serves_lag(in_flight):
    assert broken_rules(spec(mechanisms={"lag_policy": {"bound": 1, "in_flight": in_flight}})) == []


def test_vllm_serves_adapters():
    adapted = {"model": {"size": "M"}, "tuning": {"type": "lora"}}
    assert broken_rules(spec(policies={"guesser": adapted, "hinter": adapted})) == []


def test_narrow_heads_are_refused_with_the_size_that_fits():
    found = broken_rules(spec("S"))
    assert [(p.pointer, p.code) for p in found] == [
        ("/policies/guesser/model/size", "not_with_engine"),
        ("/policies/hinter/model/size", "not_with_engine"),
    ]
    assert "those of size S are 16 wide" in found[0].detail
    assert found[0].hint == "Set M, or resources: {engine: torch}."


def test_bits_and_old_attention_keys_are_refused():
    ordered = broken_rules(spec(mechanisms={"ordered": True}))
    assert [(p.pointer, p.code) for p in ordered] == [("/mechanisms/ordered", "not_with_engine")]
    going_on = broken_rules(spec(mechanisms={"lag_policy": {"bound": 1, "in_flight": "continue"}}))
    assert [p.pointer for p in going_on] == ["/mechanisms/lag_policy/in_flight"]
    assert going_on[0].hint.startswith("Set resume")


def test_a_model_that_vllm_does_not_compute_is_refused_before_anything_starts():
    chosen = spec().policies["guesser"].model
    model = vllm_model(chosen)
    assert model.architecture == architecture_of(chosen)
    assert model.cache_bytes == CACHE_BYTES
    assert model.sized(40)["vocab_size"] == 40
    with pytest.raises(UnsupportedModel, match="heads of 16 are not served by vLLM; it serves 32, 64"):
        vllm_model(spec("S").policies["guesser"].model)
