"""Which tokens carry the policy gradient where only the least certain ones of a micro-batch do."""

import numpy as np
import pytest
import torch

from flexmarl.algorithms.losses import Rows
from flexmarl.contracts.specification.algorithm import AlgorithmSpec
from flexmarl.contracts.specification.losses import LOSS, LossOptions
from flexmarl.contracts.specification.team import AdamW
from tests.unit.orchestrator.fake_parts import refusals
from tests.unit.workers.test_train_gradients import SOURCE, WORDS, ragged_rows
from workers.models import architecture_of
from workers.models.weights import initial_weights
from workers.training import learner as learner_module
from workers.training.blocks import blocks_of
from workers.training.high_entropy import threshold
from workers.training.learner import Learner
from workers.training.losses import LOSSES
from workers.training.objective import Objective, token_scores
from workers.training.packing import pack
from workers.training.wire import TrainRow

ROW_LOSSES = [name for name in LOSSES.names() if not LOSS.variants()[name].paired]


def learner_of(loss: LossOptions, kl: float = 0.0) -> Learner:
    algorithm = AlgorithmSpec(loss=loss, kl={"coefficient": kl})
    weights = initial_weights(SOURCE, WORDS, seed=4)
    return Learner(weights, architecture_of(SOURCE), Objective.of(loss, algorithm), AdamW(), "fp64", epoch="0:a")


def gradient(loss: LossOptions, rows: list[TrainRow], entropy: float = 0.05, kl: float = 0.0) -> torch.Tensor:
    learner, near = learner_of(loss, kl), learner_of(loss)
    reference = near.decoder if kl else None
    learner.parameters.fresh.zero_()
    learner.backward(rows, entropy, Objective.of(loss, AlgorithmSpec(loss=loss, kl={"coefficient": kl})), 0, reference)
    return learner.parameters.fresh.clone()


def by_definition(loss: LossOptions, rows: list[TrainRow], entropy_coef: float) -> torch.Tensor:
    """Row by row: the terms of tokens below the quantile are left out, the bonus is of all tokens."""
    learner, objective = learner_of(loss), Objective.of(loss)
    batches = [pack(blocks_of([row], objective.aggregate, WORDS), WORDS, 4096)[0] for row in rows]
    with torch.no_grad():
        entropies = [token_scores(learner.decoder, batch)[1][0].numpy() for batch in batches]
    least = np.quantile(np.concatenate(entropies), loss.entropy_quantile)
    learner.parameters.fresh.zero_()
    for batch in batches:
        logprobs, entropy = token_scores(learner.decoder, batch)
        tables = (torch.from_numpy(each) for each in (batch.behaviour, batch.present, batch.advantages, batch.lags))
        sampled = Rows.masked(logprobs, *tables)
        coefficients = torch.from_numpy(batch.coefficients)
        kept = (entropy.detach() >= least - 1e-12).double()
        value = (coefficients * kept * objective.terms(sampled).per_token).sum()
        (value - entropy_coef * (coefficients * entropy).sum()).backward()
    return learner.parameters.fresh.clone()


def near(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool((one - other).norm() <= 1e-11 * other.norm())


@pytest.mark.parametrize("loss", ROW_LOSSES)
@pytest.mark.parametrize("quantile", [0.8, 0.35])
def test_only_tokens_above_the_quantile_carry_the_gradient(loss: str, quantile: float):
    rows = ragged_rows(3, count=24)
    settings, plain = LOSS.options(loss, entropy_quantile=quantile), LOSS.options(loss)
    found = gradient(settings, rows)
    assert near(found, by_definition(settings, rows, 0.05))
    assert not near(found, gradient(plain, rows))


def test_the_set_is_the_micro_batch_however_it_is_packed(monkeypatch: pytest.MonkeyPatch):
    settings, rows = LOSS.options("ppo_clip", entropy_quantile=0.8), ragged_rows(4, count=24)
    whole = gradient(settings, rows)
    monkeypatch.setitem(learner_module.TOKEN_BUDGET, "cpu", 40)
    assert near(gradient(settings, rows), whole)
    assert near(gradient(settings, rows[::-1]), whole)
    halves = gradient(settings, rows[::2]) + gradient(settings, rows[1::2])
    assert not near(halves, whole)


def test_the_quantile_0_is_the_plain_loss_to_the_bit():
    rows = ragged_rows(5, count=24)
    settings, plain = LOSS.options("ppo_clip", entropy_quantile=0.0), LOSS.options("ppo_clip")
    assert torch.equal(gradient(settings, rows), gradient(plain, rows))
    entropies = np.random.default_rng(1).random(50)
    assert threshold(entropies, 0.0) == entropies.min()


def test_bonus_penalty_and_normaliser_are_of_all_tokens():
    rows = ragged_rows(6, count=24)
    for row in rows:
        row.advantages = [0.0] * len(row.advantages)
    settings, plain = LOSS.options("ppo_clip", entropy_quantile=0.9), LOSS.options("ppo_clip")
    assert gradient(plain, rows).abs().sum() > 0
    assert torch.equal(gradient(settings, rows), gradient(plain, rows))
    own = [learner_of(loss).backward(rows, 0.0, Objective.of(loss), 0, None).z for loss in (settings, plain)]
    assert own[0] == own[1] > 0


def test_what_reaches_the_quantile_is_kept_and_ties_with_it():
    for count in range(1, 60):
        entropies = np.random.default_rng(count).permutation(count).astype(float)
        for quantile in (0.0, 0.1, 0.3, 0.5, 0.8, 0.99):
            kept = entropies >= threshold(entropies, quantile)
            assert kept.sum() == (entropies >= np.quantile(entropies, quantile) - 1e-9).sum()
            assert kept.any()
    assert threshold(np.array([0.0, 1.0, 1.0, 1.0]), 0.8) == 1.0


def test_ranks_that_see_a_part_of_a_micro_batch_are_refused():
    shared = {"policies__speaker__devices": 2, "resources__training_devices": 3}
    [problem] = refusals(algorithm__loss__entropy_quantile=0.8, **shared)
    assert (problem.pointer, problem.code) == ("/algorithm/loss/entropy_quantile", "not_with_ranks")
    assert problem.hint == "Set 0, or 1 in /policies/speaker/devices."
    assert not refusals(algorithm__loss__entropy_quantile=0.8) + refusals(**shared)
