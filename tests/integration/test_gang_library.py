"""Several trainer processes hold one policy of the transformers back end: the training of one process.

Real children, gloo between them, small models of random weights. Gradients are read from what a first step leaves.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from flexmarl.contracts.specification.experiment import ExperimentSpec
from tests.support.families import FAMILIES, saved
from tests.support.forms import form
from tests.support.trainer_child import TrainerChild, bind, start_trainer
from tests.support.training_rows import rows_of
from workers.training.wire import (
    AccumulateReply,
    AccumulateRequest,
    BindReply,
    StepReply,
    StepRequest,
)
from workers.transfer import LocalTier

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LIMIT = {"llama3": 1e-11, "qwen3_moe": 1e-11, "gemma3": 1e-6, "smollm2": 0.03}
"""Of a relative distance. The library computes norms of gemma3 in fp32 whatever the precision, and the last is bf16."""
KINDS = {
    "llama3": {"precision": "fp64", "activations": "recompute"},
    "gemma3": {"precision": "fp64"},
    "qwen3_moe": {"precision": "fp64"},
    "smollm2": {"precision": "bf16"},
}
BATCHES = {1: rows_of(1, 23), 2: rows_of(2, 1), 3: rows_of(3, 10, longest=30)}
"""Micro-batches of a step: one has fewer rows than there are ranks, one has rows of very unlike lengths."""


def spec_of(folder: Path, policy: dict[str, Any]) -> dict[str, Any]:
    given = {
        "agents": {"speaker": {}, "listener": {"policy": "speaker"}},
        "environment": {"type": "reference_game"},
        "policies": {
            "speaker": {"model": {"type": "folder", "path": str(folder)}, "trainer": "transformers", **policy}
            | {"devices": 2, "warmup": None}
        },
        "algorithm": {"kl": {"coefficient": 0.3, "estimator": "k3", "reference": {"type": "renewed", "every": 3}}},
        "resources": {"engine": "vllm"},
    }
    return ExperimentSpec.model_validate(given).model_dump(mode="json")


@pytest.fixture(params=form(short=["llama3"], full=list(KINDS)))
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def children(family: str, tmp_path: Path) -> Iterator[list[TrainerChild]]:
    home, model = tmp_path / "home", saved(FAMILIES[family](), tmp_path / "models" / family)
    home.mkdir()
    spec, roots = spec_of(model, KINDS[family]), (str(model.parent),)
    found = [start_trainer(home, lease, spec, roots=roots) for lease in (1, 2)]
    yield found
    for child in found:
        child.stop()


def trained(leader: TrainerChild, home: Path, version: int) -> tuple[dict[str, torch.Tensor], list[dict[str, float]]]:
    """Take a step on all micro-batches; return weights and training state behind it, and the figures."""
    epoch = f"{version}:{leader.incarnation}"
    asked = [AccumulateRequest("speaker", epoch, number, 0.05, rows) for number, rows in BATCHES.items()]
    stats = [leader.ask("/accumulate", one, AccumulateReply).stats for one in asked]
    reply = leader.ask("/step", StepRequest("speaker", epoch, list(BATCHES), version + 1, 1e-2), StepReply)
    tier = LocalTier(home, "reader")
    return {**tier.get(reply.digest), **tier.get(reply.state)}, stats


def apart(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def test_two_ranks_take_the_gradient_of_one(family: str, children: list[TrainerChild], tmp_path: Path) -> None:
    limit, home = LIMIT[family], tmp_path / "home"
    first: BindReply = bind(children[:1], "speaker")
    assert LocalTier(home, "keeper").claim(first.state)
    bind(children[:1], "speaker", 1, first, first.digest)
    alone, expected = trained(children[0], home, 0)
    bind(children, "speaker", 2, first, first.digest)
    shared, found = trained(children[0], home, 0)
    assert apart(shared["first"], alone["first"]) < limit
    assert shared.keys() == alone.keys()
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours["rows"], ours["tokens"]) == (theirs["rows"], theirs["tokens"])
        for name in ("loss_sum", "entropy_sum", "kl_reference_sum", "logprob_gap_sum"):
            assert ours[name] == pytest.approx(theirs[name], rel=10 * limit, abs=limit), name
    if limit < 1e-9:  # Adam's first step divides each gradient by its own size, the rounding of the smallest included
        assert all(apart(shared[name], alone[name]) < limit for name in alone if alone[name].is_floating_point())
