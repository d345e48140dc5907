"""Less memory, the same learning: bf16 weights over fp32 masters, activations that are computed again, and steps that
take no memory of their own.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from flexmarl.contracts.specification.losses import LOSS
from flexmarl.contracts.specification.team import AdamW, Lora
from tests.unit.workers.test_adapters import source
from tests.unit.workers.test_train_gradients import (
    SOURCE,
    WORDS,
    by_name,
    make_learner,
    make_row,
    ragged_rows,
    relative,
)
from tests.unit.workers.test_train_trainer import accumulate, create, make_rows, make_trainer
from workers.models import architecture_of
from workers.models.adapter import initial_adapter
from workers.models.weights import initial_weights
from workers.rollout.engines.requests import Request
from workers.training.errors import TrainerRefusal
from workers.training.learner import Adapter, Learner, Objective
from workers.transfer import LocalTier

SETTINGS = LOSS.options()
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def gradient(learner: Learner, seed: int = 9) -> torch.Tensor:
    return learner.gradient(ragged_rows(seed), 0.1, Objective.of(SETTINGS))[0].clone()


def test_bf16_weights_gather_their_gradient_in_fp32():
    half, full = make_learner(SETTINGS, "bf16"), make_learner(SETTINGS)
    for learner in (half, full):
        learner.accumulate("0:a", 0, b"", ragged_rows(9), 0.0)
    assert half.accumulator.total.dtype == torch.float32
    assert relative(half.accumulator.total, full.accumulator.total) < 0.02
    half.step(1e-3)
    assert not torch.equal(half.parameters.master, half.parameters.compute.float())
    assert torch.equal(half.parameters.master.bfloat16(), half.parameters.compute)


def test_a_word_that_is_read_a_thousand_times_gets_all_of_its_gradient():
    """In bf16 a sum of a few hundred equal terms stands still."""
    rng = np.random.default_rng(2)
    rows = [make_row(rng, 40, 2, advantages=[1.0]) for _ in range(60)]
    for row in rows:
        row.prompt = np.full(40, 7, "<i4").tobytes()
    found, expected = (
        by_name(learner, learner.gradient(rows, 0.0, Objective.of(SETTINGS))[0])["model.embed_tokens.weight"][7].clone()
        for learner in (make_learner(SETTINGS, "bf16"), make_learner(SETTINGS))
    )
    assert relative(found, expected) < 0.02


@pytest.mark.slow
def test_steps_below_the_last_digit_of_bf16_are_not_lost():
    learner, full = make_learner(SETTINGS, "bf16"), make_learner(SETTINGS)
    began = learner.parameters.compute.clone()
    moved = []
    for step in range(60):
        for own in (learner, full):
            own.accumulate("0:a", 0, b"", ragged_rows(9), 0.0)
            own.step(1e-5)
            own.accumulator.open("0:a")
        if step in (0, 59):
            moved.append(float((learner.parameters.compute != began).float().mean()))
    first, last = moved
    assert first < 0.1, "one step is less than a digit of most weights"
    assert last > 5 * first, "many are more"
    way, true = (own.parameters.master - began.float() for own in (learner, full))
    assert torch.nn.functional.cosine_similarity(way, true, 0) > 0.95


@pytest.mark.parametrize("tuning", ["full", Lora(rank=4).model_dump()], ids=["full", "lora"])
def test_an_engine_serves_what_a_bf16_trainer_publishes_and_the_mismatch_is_told(tmp_path: Path, tuning: object):
    """The engine computes with the rounded weights in a precision of its own: a gap, and a small one."""
    gaps = {}
    for precision in ("fp32", "bf16"):
        home = tmp_path / precision
        trainer = make_trainer(home, policies={"speaker": {"precision": precision, "tuning": tuning}})
        digest = create(trainer).digest
        engine, fetch = source(home, tuning)
        fetch._policies["speaker"] = fetch._policies["speaker"].model_copy(update={"precision": precision})
        engine.load("speaker", 0, digest, fetch("speaker", digest))
        published = LocalTier(home).meta(digest).get("base", digest)
        assert {tensor.dtype for tensor in LocalTier(home).get(published).values()} == {DTYPES[precision]}
        rows = make_rows(0)
        engine.submit(
            [Request(str(n), "speaker", tuple(np.frombuffer(row.prompt, "<i4").tolist()), 6, seed=n)
             for n, row in enumerate(rows)]
        )  # fmt: skip
        answers = {}
        while engine.busy:
            answers |= {answer.request.request_id: answer for answer in engine.step()}
        for number, row in enumerate(rows):
            row.response = np.array(answers[str(number)].token_ids, "<i4").tobytes()
            row.logprobs = np.array(answers[str(number)].logprobs, "<f4").tobytes()
            row.allowed, row.temperature = b"", 1.0
        stats = accumulate(trainer, 0, rows)
        gaps[precision] = stats.logprob_gap_sum / stats.tokens
    assert gaps["fp32"] < 1e-5
    assert 1e-5 < gaps["bf16"] < 0.03


@pytest.mark.parametrize("precision", ["fp32", "fp64", "bf16"])
def test_activations_computed_again_give_the_same_gradient_to_the_bit(precision: str):
    assert torch.equal(
        gradient(make_learner(SETTINGS, precision)), gradient(make_learner(SETTINGS, precision, recompute=True))
    )


def test_activations_computed_again_are_not_kept():
    def kept(recompute: bool) -> int:
        learner, sizes = make_learner(SETTINGS, recompute=recompute), {}

        def note(x: torch.Tensor) -> torch.Tensor:
            storage = x.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
            return x

        with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
            learner.gradient(ragged_rows(9), 0.0, Objective.of(SETTINGS))
        sizes.pop(learner.parameters.compute.untyped_storage().data_ptr(), None)
        return sum(sizes.values())

    assert kept(recompute=True) < 0.4 * kept(recompute=False)


def test_a_step_that_is_refused_leaves_the_sum_and_one_that_is_taken_makes_no_copy_of_it():
    learner = make_learner(SETTINGS)
    learner.accumulate("0:a", 0, b"", ragged_rows(9), 0.0)
    total = learner.accumulator.total
    good, at = total.clone(), total.data_ptr()
    total[3] = torch.inf
    before = learner.parameters.master.clone()
    with pytest.raises(TrainerRefusal, match="nonfinite"):
        learner.step(1e-3)
    assert torch.equal(learner.parameters.master, before)
    assert torch.equal(total[4:], good[4:])
    total.copy_(good)
    with torch.profiler.profile(profile_memory=True) as profile:
        learner.step(1e-3)
    largest = max(event.cpu_memory_usage for event in profile.events())
    assert largest < total.nbytes / 2
    assert learner.accumulator.total.data_ptr() == at


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("tuning", [None, Lora(rank=4)], ids=["full", "lora"])
@pytest.mark.parametrize(("precision", "limit"), [("fp32", 1e-3), ("bf16", 0.03)])
def test_a_gpu_computes_the_same_step(precision: str, limit: float, tuning: Lora | None):
    found = []
    for device, own, recompute in (("cpu", "fp32", False), ("cuda:0", precision, False), ("cuda:0", precision, True)):
        weights = initial_weights(SOURCE, WORDS, seed=4)
        adapter = None if tuning is None else Adapter(tuning, initial_adapter(weights, tuning, 5))
        learner = Learner(
            weights, architecture_of(SOURCE), Objective.of(SETTINGS), AdamW(), own, device, "0:a", adapter=adapter,
            recompute=recompute,
        )  # fmt: skip
        learner.accumulate("0:a", 0, b"", ragged_rows(9), 0.1)
        found.append(learner.accumulator.total.cpu().clone())
        assert not learner.step(1e-3).null_step
    assert relative(found[1], found[0]) < limit
    assert relative(found[2], found[0]) < limit
