"""M2PO: which tokens of a micro-batch are left out so that the second moment of log-ratios stays within its limit."""

import math
import random

import pytest
import torch

from flexmarl.algorithms.losses import Rows
from flexmarl.contracts.specification.algorithm import AlgorithmSpec
from flexmarl.contracts.specification.corrections import CORRECTION
from flexmarl.contracts.specification.losses import LOSS
from flexmarl.contracts.specification.team import AdamW
from flexmarl.contracts.wire import TrainStats
from tests.unit.orchestrator.fake_parts import refusals
from tests.unit.workers.test_train_gradients import SOURCE, WORDS, ragged_rows
from workers.models import architecture_of
from workers.models.weights import initial_weights
from workers.training import learner as learner_module
from workers.training.blocks import blocks_of
from workers.training.learner import Learner
from workers.training.losses.second_moment import SecondMoment, bound_of
from workers.training.objective import Objective, token_scores
from workers.training.packing import pack
from workers.training.wire import TrainRow

WIDE = LOSS.options("ppo_clip", clip_low=1.0, clip_high=10.0)


def chosen(limit: float, ratios: list[float], advantages: list[float]) -> tuple[list[float], list[bool]]:
    """Return weights and what is left out of rows of one token each."""
    logprobs = torch.full((len(ratios), 1), -1.0, dtype=torch.float64)
    behaviour = logprobs - torch.tensor(ratios, dtype=torch.float64).log()[:, None]
    given = torch.tensor(advantages, dtype=torch.float64)[:, None]
    rows = Rows(logprobs, behaviour, torch.ones_like(logprobs), given, torch.zeros_like(logprobs))
    correction = SecondMoment(CORRECTION.options("second_moment", moment_limit=limit)).surveyed([rows]).correct(rows)
    return correction.weights[:, 0].tolist(), correction.touched[:, 0].tolist()


def test_the_worked_example():
    """d^2 = 0.01, 0.04, 0.16, 1 leave: means 0.01, 0.025, 0.07, 0.3025, so 0.04 keeps two and 0.08 keeps three."""
    ratios = [math.exp(d) for d in (0.1, -0.2, 0.4, -1.0, 3.0, -3.0, 0.0)]
    # The fifth and the sixth come back to the engine's policy, however far they are, and the last has not left it.
    advantages = [1.0, -1.0, 1.0, -1.0, -1.0, 1.0, 1.0]
    assert chosen(0.04, ratios, advantages)[0] == [1, 1, 0, 0, 1, 1, 1]
    assert chosen(0.08, ratios, advantages)[0] == [1, 1, 1, 0, 1, 1, 1]
    assert chosen(0.31, ratios, advantages)[0] == [1] * 7
    assert chosen(0.005, ratios, advantages) == ([0, 0, 0, 0, 1, 1, 1], [True] * 4 + [False] * 3)


def test_the_rest_is_within_the_limit_and_nothing_more_could_stay():
    rng = random.Random(3)
    for _ in range(200):
        values = [rng.choice([rng.expovariate(10.0), 0.04, 0.25]) for _ in range(rng.randint(1, 12))]
        limit = rng.choice([0.01, 0.04, 0.1])
        bound = bound_of(torch.tensor(values, dtype=torch.float64), limit)
        kept, out = [v for v in values if v <= bound], [v for v in values if v > bound]
        assert bound not in values
        assert not kept or sum(kept) / len(kept) <= limit * (1 + 1e-12)
        if out:
            more = kept + [v for v in out if v == min(out)]
            assert sum(more) / len(more) > limit
            assert bound < math.inf
    assert bound_of(torch.tensor([], dtype=torch.float64), 0.04) == math.inf
    assert bound_of(torch.tensor([9.0, 9.0], dtype=torch.float64), 0.04) == 4.5


def backward(rows: list[TrainRow], limit: float | None, loss=WIDE) -> tuple[torch.Tensor, TrainStats]:
    correction = "none" if limit is None else {"type": "second_moment", "moment_limit": limit}
    objective = Objective.of(loss, AlgorithmSpec(loss=loss, correction=correction))
    weights = initial_weights(SOURCE, WORDS, seed=4)
    learner = Learner(weights, architecture_of(SOURCE), objective, AdamW(), "fp64", epoch="0:a")
    learner.parameters.fresh.zero_()
    stats = learner.backward(rows, 0.05, objective, 0, None)
    return learner.parameters.fresh.clone(), stats


def squares_of(rows: list[TrainRow]) -> list[float]:
    """Return d^2 of every token that would be moved further away, row by row."""
    weights = initial_weights(SOURCE, WORDS, seed=4)
    learner = Learner(weights, architecture_of(SOURCE), Objective.of(WIDE), AdamW(), "fp64", epoch="0:a")
    found = []
    for row in rows:
        [batch] = pack(blocks_of([row], learner._objective.aggregate, WORDS), WORDS, 4096)
        with torch.no_grad():
            gaps = token_scores(learner.decoder, batch)[0].numpy() - batch.behaviour
        leaving = (gaps * batch.advantages > 0) & (batch.present > 0)
        found += (gaps[leaving] ** 2).tolist()
    return found


def near(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool((one - other).norm() <= 1e-11 * other.norm())


def test_the_set_is_the_micro_batch_however_it_is_packed(monkeypatch: pytest.MonkeyPatch):
    rows = ragged_rows(4, count=24)
    squares = sorted(squares_of(rows))
    limit = sum(squares) / len(squares) / 2
    kept = [v for v in squares if v < bound_of(torch.tensor(squares, dtype=torch.float64), limit)]
    whole, stats = backward(rows, limit)
    assert 0 < stats.corrected_sum == len(squares) - len(kept) < len(squares)
    assert stats.clipped_sum >= stats.corrected_sum
    plain, unmasked = backward(rows, None)
    assert stats.z == unmasked.z, "what is left out stays in Z"
    assert unmasked.corrected_sum == 0
    assert not near(whole, plain)
    monkeypatch.setitem(learner_module.TOKEN_BUDGET, "cpu", 40)
    for given in (rows, rows[::-1]):
        found, again = backward(given, limit)
        assert near(found, whole)
        assert again.corrected_sum == stats.corrected_sum


@pytest.mark.parametrize("loss", ["ppo_clip", "policy_gradient", "gspo"])
def test_a_limit_that_nothing_reaches_is_the_plain_loss_to_the_bit(loss: str):
    rows, settings = ragged_rows(5, count=24), LOSS.options(loss)
    assert torch.equal(backward(rows, 400.0, settings)[0], backward(rows, None, settings)[0])


def test_ranks_that_see_a_part_of_a_micro_batch_are_refused():
    chosen = {"algorithm__loss": {"type": "ppo_clip"}, "algorithm__correction": {"type": "second_moment"}}
    shared = {"policies__speaker__devices": 2, "resources__training_devices": 3}
    [problem] = refusals(**chosen, **shared)
    assert (problem.pointer, problem.code) == ("/algorithm/correction/type", "not_with_ranks")
    assert problem.hint == "Set none, or 1 in /policies/speaker/devices."
    assert not refusals(**chosen) + refusals(**shared)
