"""What lies in a trainer's memory, worked out by hand."""

import pytest

from flexmarl.contracts.resolve import resolve
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
