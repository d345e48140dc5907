"""Micro-batches in any order and any split give the full batch's gradient: for every loss and every trainer protocol.

Losses, aggregations and protocols are read from where they are declared, so a new one is tested the day it is added.
The splits are those that the core cuts. `mini_batch` takes several optimizer steps per cohort: its mathematics is
another on purpose, and what holds of it is the same sentence about each of its steps.
"""

import random
import zlib
from dataclasses import dataclass
from functools import cache
from typing import get_args

import numpy as np
import pytest
import torch

from flexmarl.algorithms.aggregation import AGGREGATIONS
from flexmarl.contracts.specification.losses import LOSS, LossOptions
from flexmarl.contracts.specification.mechanisms import Mechanisms
from flexmarl.contracts.specification.team import AdamW, FactoryModel
from tests.support.forms import form
from tests.unit.orchestrator.fake_cluster import make_spec, started
from workers.models import architecture_of
from workers.models.weights import initial_weights
from workers.training.errors import RefusalCode, TrainerRefusal
from workers.training.learner import Learner, Objective
from workers.training.wire import TrainRow

pytestmark = pytest.mark.slow

WORDS = 16
SOURCE = FactoryModel()
POLICY = "speaker"
EPOCH = "0:a"
ENTROPY = 0.05
PROTOCOLS = get_args(Mechanisms.model_fields["trainer_protocol"].annotation)
SEVERAL_STEPS = {"mini_batch"}
"""Protocols that move the weights within a cohort."""
RELATIVE_L2 = {"fp64": 1e-12, "fp32": 1e-5}
WHOLE_LOSSES = [name for name, loss in LOSS.variants().items() if not (loss.paired or loss.compares)]
"""All but those of pairs, whose rows may not part, and those that compare all rows of a micro-batch:
test_train_pairs.py, test_confidence_clip.py."""
OBJECTIVES = [
    pytest.param(LOSS.options(type=loss, aggregation=aggregation), id=f"{loss}-{aggregation}")
    for place, loss in enumerate(WHOLE_LOSSES)
    for aggregation in form(short=[list(AGGREGATIONS)[place % len(AGGREGATIONS)]], full=AGGREGATIONS)
]


@dataclass(frozen=True)
class Cut:
    """What the core did with one policy's rows of one cohort."""

    batches: dict[int, list[TrainRow]]
    """Micro-batch number -> its rows, in the order of the cut."""
    steps: list[tuple[int, ...]]
    """The micro-batches of each optimizer step."""

    def rows(self, numbers: tuple[int, ...]) -> list[TrainRow]:
        return [row for number in numbers for row in self.batches[number]]


@cache
def cut_by(protocol: str, ordered: bool = False) -> Cut:
    """Let the core train one cohort by a protocol and read its cuts and steps."""
    several = protocol in SEVERAL_STEPS
    changes = {"mechanisms__lag_policy__bound": 2, "batch__mini_batches": 3} if several else {}
    spec = make_spec(
        mechanisms__trainer_protocol=protocol,
        mechanisms__ordered=ordered,
        batch__tasks_per_step=7,
        batch__episodes_per_task=4,
        batch__micro_batch_groups=2,
        budget__train_steps=1,
        **changes,
    )
    cluster = started(spec, seed=5, turns=1).run()
    batches = {
        cut.ref.no: [row_of(sample.draw, sample.member, sample.turn) for sample in cut.samples]
        for cut in cluster.commands("cut_micro_batch")
        if cut.ref.policy == POLICY
    }
    steps = [step.micro_batches for step in cluster.commands("optimizer_step") if step.policy == POLICY]
    return Cut(batches, steps)


def row_of(draw: int, member: int, turn: int) -> TrainRow:
    """Make up a sample from its key: lengths, masks and temperatures differ; some rows say the same."""
    rng = np.random.default_rng(zlib.crc32(f"{draw} {member // 2} {turn}".encode()))
    prompt, response = (rng.integers(1, WORDS, rng.integers(1, top)).astype("<i4") for top in (9, 7))
    allowed = np.unique(np.concatenate((response, [3, 5]))).astype("<i4") if draw % 3 == 0 else np.array([], "<i4")
    return TrainRow(
        prompt=prompt.tobytes(),
        response=response.tobytes(),
        logprobs=(-2.5 + 0.5 * rng.standard_normal(len(response))).astype("<f4").tobytes(),
        allowed=allowed.tobytes(),
        temperature=(1.0, 0.7)[draw % 2],
        advantages=[float(rng.standard_normal()) + 0.3 * member],
        weight=(1.0, 0.5)[member % 2],
    )


def learner_of(loss: LossOptions, precision: str, ordered: bool = False) -> Learner:
    weights = initial_weights(SOURCE, WORDS, seed=4)
    objective = Objective.of(loss)
    return Learner(weights, architecture_of(SOURCE), objective, AdamW(), precision, epoch=EPOCH, ordered=ordered)


def gathered(loss: LossOptions, precision: str, parts: list[list[TrainRow]], ordered: bool = False) -> Learner:
    """Accumulate micro-batches one after the other."""
    learner = learner_of(loss, precision, ordered)
    for number, rows in enumerate(parts):
        learner.accumulate(EPOCH, number, b"", rows, ENTROPY)
    return learner


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("precision", RELATIVE_L2)
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("loss", OBJECTIVES)
def test_every_step_of_every_protocol_takes_the_full_batch_gradient_of_its_rows(
    loss: LossOptions, protocol: str, precision: str
):
    cut = cut_by(protocol)
    assert (len(cut.steps) > 1) == (protocol in SEVERAL_STEPS)
    assert sorted(number for step in cut.steps for number in step) == sorted(cut.batches), "every row, once"
    assert len(cut.batches) > 2
    for numbers in cut.steps:
        whole = gathered(loss, precision, [cut.rows(numbers)])
        for seed in range(2):
            order = random.Random(seed).sample(numbers, len(numbers))
            split = gathered(loss, precision, [cut.batches[number] for number in order])
            assert split.accumulator.z == pytest.approx(whole.accumulator.z, rel=1e-12)
            assert relative(split.accumulator.total, whole.accumulator.total) < RELATIVE_L2[precision]


@pytest.mark.parametrize("precision", RELATIVE_L2)
@pytest.mark.parametrize("loss", OBJECTIVES)
def test_any_split_in_any_order_is_the_full_batch(loss: LossOptions, precision: str):
    """Finer and coarser than the core cuts, down to one row each; rows of one group may part."""
    cut = cut_by("batch")
    rows = cut.rows(cut.steps[0])
    whole = gathered(loss, precision, [rows])
    for seed in range(3):
        rng = random.Random(seed)
        shuffled = rng.sample(rows, len(rows))
        cuts = sorted(rng.sample(range(1, len(rows)), (len(rows) - 1, 1, 8)[seed]))
        parts = [shuffled[a:b] for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
        split = gathered(loss, precision, parts)
        assert relative(split.accumulator.total, whole.accumulator.total) < RELATIVE_L2[precision]
        expected, found = (own.accumulator.total / own.accumulator.z for own in (whole, split))
        assert relative(found, expected) < RELATIVE_L2[precision], "Z is the whole batch's, whatever the split"


@pytest.mark.parametrize("protocol", [name for name in PROTOCOLS if name not in SEVERAL_STEPS])
@pytest.mark.parametrize("loss", OBJECTIVES)
def test_protocols_of_one_step_are_one_mathematics(loss: LossOptions, protocol: str):
    """They differ in when gradients are taken, not in which: fp64 leaves no room for another reading."""
    ours, theirs = cut_by(protocol), cut_by("batch")
    found, expected = (gathered(loss, "fp64", [cut.rows(cut.steps[0])]) for cut in (ours, theirs))
    assert relative(found.accumulator.total, expected.accumulator.total) < 1e-12


@pytest.mark.parametrize("loss", OBJECTIVES)
def test_mini_batches_are_another_mathematics(loss: LossOptions):
    """Shows that the equality above can fail, and why `mini_batch` is no way to reach the full batch's step."""
    cut = cut_by("mini_batch")
    whole = gathered(loss, "fp64", [cut.rows(tuple(cut.batches))])
    whole.step(1e-2)
    stepwise = learner_of(loss, "fp64")
    for number, numbers in enumerate(cut.steps):
        epoch = f"{number}:a"
        stepwise.accumulator.open(epoch)
        for micro_batch in numbers:
            stepwise.accumulate(epoch, micro_batch, b"", cut.batches[micro_batch], ENTROPY)
        stepwise.step(1e-2 / len(cut.steps))
    assert relative(stepwise.parameters.master, whole.parameters.master) > 1e-6


@pytest.mark.parametrize("precision", RELATIVE_L2)
@pytest.mark.parametrize("loss", OBJECTIVES)
def test_ordered_sums_are_bits(loss: LossOptions, precision: str):
    """A second life that accumulates the same micro-batches again ends in the same bits, and so do its weights."""
    cut = cut_by("micro_batch", ordered=True)
    [numbers] = cut.steps
    assert list(numbers) == sorted(numbers)
    parts = [cut.batches[number] for number in numbers]
    lives = [gathered(loss, precision, parts, ordered=True) for _ in range(2)]
    assert torch.equal(lives[0].accumulator.total, lives[1].accumulator.total)
    assert lives[0].accumulator.z == lives[1].accumulator.z
    for life in lives:
        life.step(1e-3)
    assert torch.equal(lives[0].parameters.master, lives[1].parameters.master)


def test_another_order_is_other_bits():
    """Why an ordered run must keep the order: the sum of the same micro-batches the other way round is not the same."""
    cut = cut_by("micro_batch")
    parts = [cut.batches[number] for number in cut.steps[0]]
    forth, back = (gathered(LOSS.options(), "fp32", order) for order in (parts, parts[::-1]))
    assert not torch.equal(forth.accumulator.total, back.accumulator.total)


def test_an_ordered_accumulator_refuses_a_turn_that_is_over():
    cut = cut_by("micro_batch")
    first, second, third = (cut.batches[number] for number in cut.steps[0][:3])
    learner = learner_of(LOSS.options(), "fp32", ordered=True)
    learner.accumulate(EPOCH, 4, b"four", first, ENTROPY)
    learner.accumulate(EPOCH, 7, b"seven", second, ENTROPY)
    held = learner.accumulator.total.clone()
    with pytest.raises(TrainerRefusal) as refused:
        learner.accumulate(EPOCH, 5, b"five", third, ENTROPY)
    assert refused.value.code is RefusalCode.OUT_OF_ORDER
    assert torch.equal(learner.accumulator.total, held), "a refusal changes nothing"
    assert learner.accumulate(EPOCH, 4, b"four", first, ENTROPY), "asked again, it is answered again"
    assert torch.equal(learner.accumulator.total, held)


@pytest.mark.parametrize("loss", OBJECTIVES)
def test_rows_without_tokens_leave_gradient_and_z_alone(loss: LossOptions):
    """Nothing was said, so there is nothing to weigh; of such rows alone, a step is a null step."""
    cut = cut_by("batch")
    rows = cut.rows(cut.steps[0])[:9]
    silent = [row_without_tokens(row) for row in rows[:3]]
    with_them, without = (gathered(loss, "fp64", [part]) for part in ([*rows, *silent], rows))
    assert with_them.accumulator.z == without.accumulator.z
    assert relative(with_them.accumulator.total, without.accumulator.total) < 1e-12
    alone = gathered(loss, "fp64", [silent])
    before = alone.parameters.master.clone()
    assert alone.accumulator.z == 0.0
    assert alone.step(1e-2).null_step
    assert torch.equal(alone.parameters.master, before)


def row_without_tokens(row: TrainRow) -> TrainRow:
    return TrainRow(row.prompt, b"", b"", row.allowed, row.temperature, row.advantages, row.weight)


@pytest.mark.parametrize("loss", OBJECTIVES)
def test_words_that_were_not_allowed_take_no_part(loss: LossOptions):
    """The mask decides the distribution: the logits of other words are free, and nothing flows back into them."""
    rows = [row for batch in cut_by("batch").batches.values() for row in batch if row.allowed]
    learner = learner_of(loss, "fp64")
    gradient, _ = learner.gradient(rows, ENTROPY, Objective.of(loss))
    allowed = {int(word) for row in rows for word in np.frombuffer(row.allowed, "<i4")}
    forbidden = [word for word in range(WORDS) if word not in allowed]
    start = 0
    for name, tensor in learner.parameters.named().items():
        if name == "lm_head.weight":
            head = gradient[start : start + tensor.numel()].view(tensor.shape)
            assert torch.count_nonzero(head[forbidden]) == 0
            assert torch.count_nonzero(head[sorted(allowed)]) > 0
        start += tensor.numel()
