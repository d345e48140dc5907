"""Gradient facts of the losses, and AdamW against torch's own."""

import math
from dataclasses import replace

import pytest
import torch

from flexmarl.algorithms.losses import Rows
from flexmarl.contracts.specification.algorithm import AlgorithmSpec
from flexmarl.contracts.specification.losses import LOSS
from flexmarl.contracts.specification.team import AdamW, FactoryModel
from workers.models import architecture_of
from workers.models.weights import initial_weights
from workers.training.learner import Learner
from workers.training.losses import LOSSES
from workers.training.objective import Objective
from workers.training.optimizer import FlatAdamW


def _gradient(kind: str, ratio: float, advantage: float, **settings: float) -> tuple[float, float, bool | None]:
    """Return value, gradient by log-probability and clipping of one token."""
    rows = one_row([ratio], advantage)
    terms = LOSSES.make(LOSS.options(type=kind, **settings)).terms(rows)
    terms.per_token.sum().backward()
    clipped = None if terms.clipped is None else bool(terms.clipped)
    return terms.per_token.item(), rows.logprobs.grad.item(), clipped


def one_row(ratios: list[float], advantage: float, lags: list[int] | None = None) -> Rows:
    """A row of tokens whose ratios p / p_engine are given."""
    logprobs = torch.full((1, len(ratios)), -1.0, dtype=torch.float64, requires_grad=True)
    behaviour = logprobs.detach() - torch.tensor([ratios], dtype=torch.float64).log()
    ages = torch.tensor([lags or [0] * len(ratios)], dtype=torch.float64)
    advantages = torch.tensor([[advantage]], dtype=torch.float64)
    return Rows(logprobs, behaviour, torch.ones_like(behaviour), advantages, ages)


def gradients(kind: str, ratios: list[float], advantage: float, **settings: object) -> list[float]:
    """Gradient by each token's log-probability of a row's terms, added up over its tokens."""
    rows = one_row(ratios, advantage)
    terms = LOSSES.make(LOSS.options(type=kind, **settings)).terms(rows)
    (terms.per_token * rows.present).sum().backward()
    return rows.logprobs.grad[0].tolist()


@pytest.mark.parametrize("kind", LOSSES.names())
@pytest.mark.parametrize("advantage", [-2.0, 0.0, 1.5])
def test_every_loss_is_the_policy_gradient_on_policy(kind: str, advantage: float):
    _, gradient, clipped = _gradient(kind, 1.0, advantage)
    assert gradient == pytest.approx(-advantage)
    assert not clipped


@pytest.mark.parametrize(
    ("ratio", "advantage", "gradient", "clipped"),
    [
        (1.3, 1.0, 0.0, True),
        (1.3, -1.0, 1.3, False),
        (0.7, -1.0, 0.0, True),
        (0.7, 1.0, -0.7, False),
        (1.1, 2.0, -2.2, False),
    ],
)
def test_ppo_clips_only_what_would_move_further_away(ratio: float, advantage: float, gradient: float, clipped: bool):
    found = _gradient("ppo_clip", ratio, advantage)
    assert found[1] == pytest.approx(gradient)
    assert found[2] is clipped
    assert found[0] == pytest.approx(-min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage))


def test_clip_range_is_a_setting():
    assert _gradient("ppo_clip", 1.3, 1.0, clip_high=0.4)[2] is False
    assert _gradient("ppo_clip", 0.7, -1.0, clip_low=0.4)[2] is False


@pytest.mark.parametrize("kind", LOSSES.names())
@pytest.mark.parametrize("advantage", [-1.0, 1.0])
def test_ratios_beyond_all_bounds_stay_finite(kind: str, advantage: float):
    behaviour = torch.tensor([[-2000.0, -1.0]])
    logprobs = torch.tensor([[-1.0, -2000.0]], requires_grad=True)
    rows = Rows(logprobs, behaviour, torch.ones(1, 2), torch.tensor([[advantage]]), torch.zeros(1, 2))
    terms = LOSSES.make(LOSS.options(type=kind)).terms(rows)
    terms.per_token.sum().backward()
    assert torch.isfinite(terms.per_token).all()
    assert torch.isfinite(logprobs.grad).all()


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_flat_adamw_is_torch_adamw(decay: float):
    torch.manual_seed(0)
    start = torch.randn(1000, dtype=torch.float64)
    own = start.clone()
    flat = FlatAdamW(own, AdamW(beta1=0.8, beta2=0.97, weight_decay=decay))
    theirs = start.clone().requires_grad_()
    torchs = torch.optim.AdamW([theirs], lr=1.0, betas=(0.8, 0.97), weight_decay=decay)
    for number in range(5):
        gradient = torch.randn_like(start)
        rate = 1e-2 / (number + 1)
        flat.step(gradient, rate)
        theirs.grad = gradient
        torchs.param_groups[0]["lr"] = rate
        torchs.step()
    assert torch.allclose(own, theirs.detach(), rtol=1e-12, atol=1e-14)


def _learner(clip: float) -> Learner:
    source = FactoryModel()
    optimizer = AdamW(grad_clip_norm=clip)
    return Learner(initial_weights(source, 9, 0), architecture_of(source), Objective.of(LOSS.options()), optimizer)


def test_clipping_comes_after_the_division_by_z():
    learner = _learner(clip=1.0)
    direction = torch.randn(learner.parameters.size, generator=torch.Generator().manual_seed(1))
    learner.accumulator.total.copy_(direction / direction.norm() * 30.0)
    learner.accumulator.z = 100.0
    assert learner.step(1e-3).grad_norm == pytest.approx(0.3)
    assert learner.optimizer.first.norm().item() == pytest.approx(0.1 * 0.3, rel=1e-4)
    clipped = _learner(clip=0.1)
    clipped.accumulator.total.copy_(direction / direction.norm() * 30.0)
    clipped.accumulator.z = 100.0
    assert clipped.step(1e-3).grad_norm == pytest.approx(0.3)
    assert clipped.optimizer.first.norm().item() == pytest.approx(0.1 * 0.1, rel=1e-4)


@pytest.mark.parametrize(
    ("since", "lag", "ratio", "weight", "update"),
    [
        (0, 3, 1.5, 1.5, 1.0),  # the first step of a cohort is taken at the proximal policy itself
        (0, 0, 1.5, 1.5, 1.0),
        (1, 2, 1.21, 1.1, 1.1),  # half of the way lies before it
        (1, 1, 1.1, 1.0, 1.1),
        (2, 1, 1.1, 1.0, 1.1),
        (1, 4, 1.1**4, 1.1**3, 1.1),
        (1, 2, 36.0, 5.0, 6.0),  # the weight is capped, and the rest is clipped
    ],
)
@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_decoupled_ppo_weighs_up_to_the_proximal_policy_and_clips_beyond(
    since: int, lag: int, ratio: float, weight: float, update: float, advantage: float
):
    rows = replace(one_row([ratio], advantage, [lag]), since=float(since))
    terms = LOSSES.make(LOSS.options(type="decoupled_ppo")).terms(rows)
    terms.per_token.sum().backward()
    clipped = advantage > 0 and update > 1.2
    gain = advantage * (1.2 if clipped else update)
    assert terms.per_token.item() == pytest.approx(-weight * gain)
    assert rows.logprobs.grad.item() == pytest.approx(0.0 if clipped else -weight * update * advantage)
    assert bool(terms.clipped) == (clipped or ratio > 30.0)


def test_a_dual_clip_bounds_what_a_bad_token_adds():
    assert _gradient("ppo_clip", 4.0, -2.0)[:2] == pytest.approx((8.0, 8.0))
    assert _gradient("ppo_clip", 4.0, -2.0, dual_clip=3.0) == (pytest.approx(6.0), 0.0, True)
    assert _gradient("ppo_clip", 2.5, -2.0, dual_clip=3.0) == (pytest.approx(5.0), pytest.approx(5.0), False)
    assert _gradient("ppo_clip", 4.0, 2.0, dual_clip=3.0) == _gradient("ppo_clip", 4.0, 2.0)


def test_gspo_has_one_ratio_per_row_and_clips_its_tokens_together():
    ratios = [math.exp(x) for x in (0.1, -0.3, 0.2, 0.4)]
    rows = one_row(ratios, 1.0)
    terms = LOSSES.make(LOSS.options(type="gspo", clip_low=0.2, clip_high=0.2)).terms(rows)
    assert terms.per_token.tolist() == [[pytest.approx(-math.exp(0.1))]]
    assert gradients("gspo", ratios, 1.0) == pytest.approx([-math.exp(0.1)] * 4)
    assert gradients("gspo", ratios, 1.0, clip_high=0.05) == [0.0] * 4
    assert gradients("gspo", ratios, -1.0, clip_high=0.05) == pytest.approx([math.exp(0.1)] * 4)


def test_cispo_keeps_a_gradient_where_the_ratio_is_clipped():
    assert gradients("cispo", [2.0, 0.1, 1.1], 1.5, clip_low=1.0, clip_high=0.28) == pytest.approx(
        [-1.28 * 1.5, -0.1 * 1.5, -1.1 * 1.5]
    )
    assert gradients("cispo", [0.1], 1.0, clip_low=0.2) == pytest.approx([-0.8])


def test_topr_imitates_what_was_good_and_tapers_what_was_bad():
    assert gradients("topr", [3.0, 0.2], 1.5) == pytest.approx([-1.5, -1.5])
    assert gradients("topr", [0.5, 0.4], -1.0) == pytest.approx([0.2, 0.2])
    assert gradients("topr", [4.0, 0.5], -1.0) == pytest.approx([1.0, 1.0])
    assert gradients("topr", [1e-8, 1e-8], -1.0) == pytest.approx([0.0, 0.0], abs=1e-8)


def test_soft_gates_close_on_both_sides_of_ratio_one():
    for kind in ("sapo", "vespo"):
        here, up, down = (abs(_gradient(kind, ratio, 1.0)[1]) / ratio for ratio in (1.0, 4.0, 0.05))
        assert here == pytest.approx(1.0)
        assert up < here
        if kind == "vespo":
            assert down < here


@pytest.mark.parametrize(
    ("correction", "ratios", "weights"),
    [
        ({"type": "truncated_importance"}, [0.5, 1.0, 3.0], [0.5, 1.0, 2.0]),
        (
            {"type": "masked_importance", "limit": 5.0},
            [0.4, 0.51, 1.0, 4.9, 5.1],
            [0.0, 0.51, 1.0, 4.9, 0.0],
        ),
        ({"type": "truncated_importance", "level": "sequence"}, [3.0, 0.5], [1.5, 1.5]),
        ({"type": "truncated_importance", "level": "sequence"}, [3.0, 2.0], [2.0, 2.0]),
        ({"type": "masked_importance", "level": "sequence"}, [3.0, 2.0], [0.0, 0.0]),
        ({"type": "sequence_filter"}, [4.0, 0.5, 1.5], [1.0, 1.0, 1.0]),
        ({"type": "sequence_filter"}, [4.0, 3.0], [0.0, 0.0]),
        ({"type": "sequence_filter"}, [0.3, 0.6], [0.0, 0.0]),
        ({"type": "off_policy_filter"}, [0.1, 0.2], [1.0, 1.0]),
    ],
)
def test_corrections_weigh_the_policy_gradient(correction, ratios, weights):
    objective = Objective.of(LOSS.options(), AlgorithmSpec(correction=correction))
    rows = one_row(ratios, 1.5)
    terms = objective.terms(rows)
    terms.per_token.sum().backward()
    assert rows.logprobs.grad[0].tolist() == pytest.approx([-1.5 * weight for weight in weights])
    assert terms.clipped is not None
    whole = math.prod(ratios) if correction.get("level") == "sequence" else None
    cut = [w not in (pytest.approx(r if whole is None else whole), 1.0) for r, w in zip(ratios, weights, strict=True)]
    assert torch.broadcast_to(terms.clipped, rows.present.shape)[0].tolist() == cut


def test_rows_that_did_badly_and_were_left_are_filtered():
    objective = Objective.of(LOSS.options(), AlgorithmSpec(correction={"type": "off_policy_filter", "floor": 0.5}))
    for ratios, weight in (([0.1, 0.2], 0.0), ([0.1, 2.6], 1.0), ([9.0, 9.0], 1.0)):
        rows = one_row(ratios, -1.0)
        objective.terms(rows).per_token.sum().backward()
        assert rows.logprobs.grad[0].tolist() == [weight] * 2


def test_stale_tokens_are_masked_and_their_row_stays():
    objective = Objective.of(
        LOSS.options(type="ppo_clip"), AlgorithmSpec(correction={"type": "mask_stale", "stale_after": 1})
    )
    rows = one_row([1.0, 1.0, 1.0], 1.0, lags=[2, 1, 0])
    terms = objective.terms(rows)
    terms.per_token.sum().backward()
    assert rows.logprobs.grad[0].tolist() == [0.0, -1.0, -1.0]
    assert terms.clipped.tolist() == [[True, False, False]]
