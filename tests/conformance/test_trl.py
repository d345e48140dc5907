"""Loss and gradient are TRL's, on the same tensors in fp32, for every loss of its GRPOTrainer and for online DPO.

The figures are recorded with where they come from; where TRL is installed, it is asked again.
"""

import importlib.util

import pytest
import torch

from flexmarl.algorithms.losses import Rows
from flexmarl.contracts.specification.algorithm import AlgorithmSpec
from flexmarl.contracts.specification.losses import LOSS
from tests.conformance.trl_reference import (
    CASES,
    PAIR_BETAS,
    PAIR_FORMS,
    Case,
    Tables,
    computed,
    computed_pairs,
    recorded,
    tables,
)
from workers.training.high_entropy import threshold
from workers.training.objective import Objective, total
from workers.training.pairs import weigh
from workers.training.wire import TrainRow

RELATIVE = 1e-5
TRL_LOSSES = {"grpo", "bnpo", "dapo", "dr_grpo", "cispo", "luspo", "sapo", "vespo"}


def own(case: Case, given: Tables) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean loss and its gradient, the way a trainer closes a step: sums, divided once by Z."""
    loss = LOSS.options(**case.loss)
    objective = Objective.of(loss, AlgorithmSpec(loss=loss, **case.algorithm))
    lengths = [int(n) for n in given["present"].sum(1)]
    shares = [objective.aggregate(n) for n in lengths]
    logprobs = given["logprobs"].clone().requires_grad_()
    near = given["reference"] if objective.algorithm.kl.coefficient else None
    advantages, fresh = given["advantages"][:, None], torch.zeros_like(logprobs)
    if objective.entropy_quantile:
        sampled = given["entropy"][given["present"] > 0].double().numpy()
        advantages = advantages * (given["entropy"].double() >= threshold(sampled, objective.entropy_quantile))
    rows = Rows.masked(logprobs, given["behaviour"], given["present"], advantages, fresh, near)
    coefficients = torch.tensor([[c] for c, _ in shares])
    value, _ = total(rows, given["entropy"], coefficients, objective, case.entropy_coef)
    mean = value / sum(z for _, z in shares)
    mean.backward()
    return mean.detach(), logprobs.grad


def own_pairs(form: str, beta: float, given: Tables) -> tuple[torch.Tensor, torch.Tensor]:
    """The same of preferences: row i and row i + 4 are of one group, and the better of them is marked."""
    loss = LOSS.options(type="online_dpo", beta=beta, form=form)
    half = len(given["advantages"]) // 2
    first = [bool(a >= b) for a, b in zip(given["advantages"][:half], given["advantages"][half:], strict=True)]
    signs = [1.0 if won else -1.0 for won in (*first, *(not won for won in first))]
    rows = [TrainRow(b"", b"", b"", b"", 1.0, [sign], 1.0, pair=str(n % half)) for n, sign in enumerate(signs)]
    ratios = ((given["logprobs"] - given["reference"]) * given["present"]).sum(1).tolist()
    weighed = weigh(rows, ratios, loss)
    logprobs = given["logprobs"].clone().requires_grad_()
    none = torch.zeros_like(logprobs)
    advantages = torch.tensor(weighed.advantages)
    taken = Rows.masked(logprobs, given["behaviour"], given["present"], advantages, none)
    value, _ = total(taken, none, torch.ones(len(rows), 1), Objective.of(loss), 0.0)
    (value / weighed.pairs).backward()
    return torch.tensor(weighed.loss / weighed.pairs), logprobs.grad


def assert_equal(case: Case, given: Tables, loss: float, gradient: list[list[float]]) -> None:
    assert_same(*own(case, given), loss, gradient)


def assert_same(value: torch.Tensor, found: torch.Tensor, loss: float, gradient: list[list[float]]) -> None:
    theirs = torch.tensor(gradient)
    assert theirs.abs().sum() > 0
    assert abs(value.item() - loss) <= RELATIVE * abs(loss)
    assert (found - theirs).norm() <= RELATIVE * theirs.norm()
    assert (found - theirs).abs().max() <= RELATIVE * theirs.abs().max()


@pytest.fixture(scope="module")
def figures() -> dict:
    return recorded()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_loss_and_gradient_are_those_recorded_of_trl(case: Case, figures: dict):
    given = {name: torch.tensor(table) for name, table in figures["tables"].items()}
    assert_equal(case, given, **figures["cases"][case.name])


@pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="TRL is not installed: requirements/trl.txt")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_loss_and_gradient_are_those_of_the_installed_trl(case: Case):
    for seed in range(3):
        given = tables(seed)
        assert_equal(case, given, *computed(case, given))


@pytest.mark.parametrize("form", PAIR_FORMS)
@pytest.mark.parametrize("beta", PAIR_BETAS)
def test_preferences_are_those_recorded_of_trl(beta: float, form: str, figures: dict):
    given = {name: torch.tensor(table) for name, table in figures["tables"].items()}
    assert_same(*own_pairs(form, beta, given), **figures["pairs"][f"{form} {beta}"])


@pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="TRL is not installed: requirements/trl.txt")
@pytest.mark.parametrize("form", PAIR_FORMS)
@pytest.mark.parametrize("beta", PAIR_BETAS)
def test_preferences_are_those_of_the_installed_trl(beta: float, form: str):
    for seed in range(3):
        given = tables(seed)
        assert_same(*own_pairs(form, beta, given), *computed_pairs(form, beta, given))


def test_every_loss_of_trl_is_compared(figures: dict):
    assert {case.theirs["loss_type"] for case in CASES} == TRL_LOSSES
    assert set(figures["cases"]) == {case.name for case in CASES}
    assert figures["provenance"]["package"].startswith("trl ")


def test_every_clip_of_a_case_bites(figures: dict):
    """A comparison in which nothing is cut off would compare the policy gradient with itself."""
    given = {name: torch.tensor(table) for name, table in figures["tables"].items()}
    for case in CASES:
        loss = LOSS.options(**case.loss)
        objective = Objective.of(loss, AlgorithmSpec(loss=loss, **case.algorithm))
        none = torch.zeros_like(given["logprobs"])
        rows = Rows.masked(given["logprobs"], given["behaviour"], given["present"], given["advantages"][:, None], none)
        clipped = objective.terms(rows).clipped
        if clipped is not None:
            share = (torch.broadcast_to(clipped, none.shape) * given["present"]).sum() / given["present"].sum()
            assert 0 < share < 1, case.name
