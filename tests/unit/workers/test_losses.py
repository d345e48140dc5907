"""Gradient facts of the losses, and AdamW against torch's own."""

import math

import pytest
import torch

from flexmarl.contracts.spec.algorithm import Loss
from flexmarl.contracts.spec.team import AdamW, FactoryModel
from workers.models import architecture_of
from workers.models.weights import initial_weights
from workers.training.learner import Learner, Objective
from workers.training.losses import REGISTRY
from workers.training.optimizer import FlatAdamW


def _gradient(kind: str, ratio: float, advantage: float, **settings: float) -> tuple[float, float, bool | None]:
    """Return value, gradient by log-probability and clipping of one token."""
    loss = Loss(type=kind, **settings)
    logprobs = torch.tensor([[-1.0]], dtype=torch.float64, requires_grad=True)
    behaviour = logprobs.detach() - math.log(ratio)
    advantages = torch.tensor([[advantage]], dtype=torch.float64)
    terms = REGISTRY.get(kind)(logprobs, behaviour, advantages, loss)
    terms.per_token.sum().backward()
    clipped = None if terms.clipped is None else bool(terms.clipped)
    return terms.per_token.item(), logprobs.grad.item(), clipped


@pytest.mark.parametrize("kind", REGISTRY.names())
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


def test_ratios_beyond_all_bounds_stay_finite():
    loss = Loss(type="ppo_clip")
    logprobs = torch.tensor([[-1.0, -2000.0]], requires_grad=True)
    terms = REGISTRY.get("ppo_clip")(logprobs, torch.tensor([[-2000.0, -1.0]]), torch.tensor([[-1.0]]), loss)
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
    return Learner(initial_weights(source, 9, 0), architecture_of(source), Objective.of(Loss()), optimizer)


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


@pytest.mark.parametrize(("ratio", "weight", "truncated"), [(1.0, 1.0, False), (0.5, 0.5, False), (3.0, 2.0, True)])
def test_truncated_importance_weighs_the_policy_gradient(ratio: float, weight: float, truncated: bool):
    objective = Objective.of(Loss(), 2.0)
    logprobs = torch.tensor([[-1.0]], dtype=torch.float64, requires_grad=True)
    terms = objective.loss(
        logprobs, logprobs.detach() - math.log(ratio), torch.tensor([[1.5]], dtype=torch.float64), Loss()
    )
    terms.per_token.sum().backward()
    assert logprobs.grad.item() == pytest.approx(-1.5 * weight)
    assert terms.clipped is not None
    assert bool(terms.clipped) is truncated
