"""A clip range for each row by the confidence that it was said with (ECHO), and rows that count several times."""

import math
import random

import pytest
import torch
from msgspec import structs

from flexmarl.algorithms.losses import Rows
from flexmarl.contracts.specification.losses import LOSS
from flexmarl.contracts.wire import UNKNOWN_LOGPROB
from tests.unit.orchestrator.fake_parts import refusals
from tests.unit.workers.test_train_gradients import make_learner, ragged_rows
from workers.training import learner as learner_module
from workers.training.learner import Learner
from workers.training.losses.confidence_clip import ConfidenceClip
from workers.training.objective import Objective

STEEP = LOSS.options("confidence_clip", slope=200.0)
"""Made-up rows are nearly alike in confidence."""
SIGMOID_1 = 1 / (1 + math.exp(-1.0))


def rows_of(chances: list[list[float]], ratio: float = 1.0, advantage: float = 1.0) -> Rows:
    """Return rows of tokens that the engine sampled with such probabilities, padded on the right."""
    width = max(map(len, chances))
    present = torch.tensor([[1.0] * len(own) + [0.0] * (width - len(own)) for own in chances], dtype=torch.float64)
    reported = torch.tensor([own + [1.0] * (width - len(own)) for own in chances], dtype=torch.float64).log()
    given = torch.full((len(chances), 1), advantage, dtype=torch.float64)
    return Rows.masked(reported + math.log(ratio), reported, present, given, torch.zeros_like(present))


def widths(chances: list[list[float]], **options: object) -> list[float]:
    loss = ConfidenceClip(LOSS.options("confidence_clip", **options))
    rows = rows_of(chances)
    return [float(width) for width in loss.compared([rows]).widths(rows)[:, 0]]


def test_the_worked_example():
    """C = 0.25, 0.5, 0.75 with c0 = 0.5 and slope 4: e = 0.05 + 0.15 sigmoid(1), sigmoid(0) and sigmoid(-1)."""
    expected = [0.05 + 0.15 * share for share in (SIGMOID_1, 0.5, 1 - SIGMOID_1)]
    assert widths([[0.25], [0.5], [0.75]]) == pytest.approx(expected)
    assert widths([[0.9, 0.25], [0.1, 0.5], [0.75]], tail_tokens=1) == pytest.approx(expected), "the tail alone"
    assert widths([[0.25], [0.75]]) == pytest.approx([expected[0], expected[2]]), "c0 is between two in the middle"
    assert widths([[0.25], [0.5], [0.75]], slope=0.0) == [0.125] * 3
    assert widths([[0.2, 0.3], [0.5], [0.7, 0.8, 0.75]]) == pytest.approx(expected), "padding is no token"


def test_the_published_form_would_clip_all_rows_alike():
    """The mean of the five largest probabilities is 0.2 at most, and 1 in the place of c0: the range never moves."""
    published = [0.05 + 0.15 / (1 + math.exp(-4 * (1 - mean))) for mean in (0.0, 0.2)]
    assert published == pytest.approx([0.1973, 0.1941], abs=1e-4)
    ours = widths([[0.05], [0.2], [0.6], [0.99]])
    assert ours == sorted(ours, reverse=True)
    assert ours[0] - ours[-1] > 0.1


def test_what_nobody_knows_moves_no_median_and_rows_without_tokens_neither():
    loss = ConfidenceClip(LOSS.options("confidence_clip"))
    rows = rows_of([[0.25], [0.5], [0.75]])
    other = rows_of([[0.9], [0.9]])
    other.behaviour.fill_(UNKNOWN_LOGPROB)
    empty = rows_of([[0.9], [0.9]])
    empty.present.zero_()
    assert loss.compared([other, rows, empty]).middle == pytest.approx(0.5)
    assert loss.compared([]).middle == 0.0
    assert torch.isfinite(loss.compared([empty]).terms(empty).per_token).all()


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_row_said_with_doubt_may_move_further(advantage: float):
    """At a ratio of 1.1 (or 0.9 for a bad row) the confident row is clipped, the doubtful one is not."""
    ratio = 1.1 if advantage > 0 else 0.9
    rows = rows_of([[0.02], [0.5], [0.98]], ratio, advantage)
    terms = ConfidenceClip(LOSS.options("confidence_clip")).compared([rows]).terms(rows)
    assert terms.clipped is not None
    assert terms.clipped[:, 0].tolist() == [False, False, True]


def gradient(learner: Learner, rows) -> tuple[torch.Tensor, object]:
    found, stats = learner.gradient(rows, 0.05, Objective.of(learner._objective.loss.options))
    return found.clone(), stats.model_copy(update={"seconds": 0.0})


@pytest.mark.parametrize("options", [{"clip_least": 0.125, "clip_most": 0.125}, {"slope": 0.0}], ids=str)
@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_one_range_for_all_rows_is_the_fixed_clip_to_the_bit(options: dict, precision: str):
    rows = ragged_rows(3)
    found, stats = gradient(make_learner(LOSS.options("confidence_clip", **options), precision), rows)
    fixed = LOSS.options("ppo_clip", clip_low=0.125, clip_high=0.125)
    expected, plain = gradient(make_learner(fixed, precision), rows)
    assert torch.equal(found, expected)
    assert stats == plain
    assert stats.clipped_sum > 0


def test_equal_confidence_is_the_fixed_clip_of_the_middle():
    rows = [structs.replace(row, logprobs=b"\x00\x00\x00\xc0" * (len(row.response) // 4)) for row in ragged_rows(3)]
    found, _ = gradient(make_learner(STEEP, "fp64"), rows)
    expected, _ = gradient(make_learner(LOSS.options("ppo_clip", clip_low=0.125, clip_high=0.125), "fp64"), rows)
    assert torch.allclose(found, expected, rtol=1e-12, atol=0.0)
    other, _ = gradient(make_learner(STEEP, "fp64"), ragged_rows(3))
    fixed, _ = gradient(make_learner(LOSS.options("ppo_clip", clip_low=0.125, clip_high=0.125), "fp64"), ragged_rows(3))
    assert not torch.allclose(other, fixed, rtol=1e-6), "and not where confidence differs"


def test_neither_packs_nor_order_move_the_median(monkeypatch: pytest.MonkeyPatch):
    rows = ragged_rows(5)
    whole, stats = gradient(make_learner(STEEP, "fp64"), rows)
    monkeypatch.setitem(learner_module.TOKEN_BUDGET, "cpu", 40)
    random.Random(2).shuffle(rows)
    parts, again = gradient(make_learner(STEEP, "fp64"), rows)
    assert float((parts - whole).norm() / whole.norm()) < 1e-12
    assert again.clipped_sum == stats.clipped_sum > 0


def test_a_row_that_counts_three_times_has_the_gradient_of_three_rows():
    """What the arranger makes of a pair that is drawn three times, one that is drawn once and one that is not."""
    rows = [structs.replace(row, weight=1.0) for row in ragged_rows(4)[:12]]
    times = [3, 1, 0] * 4
    weighed = [structs.replace(row, weight=float(count)) for row, count in zip(rows, times, strict=True)]
    repeated = [row for row, count in zip(rows, times, strict=True) for _ in range(count)]
    found, stats = gradient(make_learner(LOSS.options("ppo_clip"), "fp64"), weighed)
    expected, _ = gradient(make_learner(LOSS.options("ppo_clip"), "fp64"), repeated)
    assert float((found - expected).norm() / expected.norm()) < 1e-12
    assert stats.z == sum(len(row.response) // 4 for row in rows), "Z is that of the rows that are there, each once"


def test_refusals_name_a_legal_value():
    wrong = {"type": "confidence_clip", "clip_least": 0.3}
    (found,) = refusals(algorithm__loss=wrong)
    assert (found.pointer, found.code, found.hint) == (
        "/algorithm/loss/clip_least", "out_of_range", "Set 0.2 or less.",
    )  # fmt: skip
    ranks = {"policies__speaker": {"devices": 2}, "resources__training_devices": 3}
    parted = [one for one in refusals(algorithm__loss="confidence_clip", **ranks) if one.code == "not_with_ranks"]
    assert [one.pointer for one in parted] == ["/algorithm/loss/type"]
    same = {"type": "confidence_clip", "clip_least": 0.2}
    assert not [one for one in refusals(algorithm__loss=same, **ranks) if one.code == "not_with_ranks"]
