"""On recorded tokens, micro-batches streamed in order of arrival and one batch at the end train the same policies.

Recorded tokens: replies of a fixed behaviour policy with its log-probabilities, so that both presets see equal rows at
every update. `sync` gathers a cohort in slices of draw order once all of it is there, `flexmarl` takes a slice whenever
enough groups have arrived: another composition in another order.
"""

from functools import cache

import numpy as np
import pytest
import torch

from flexmarl.algorithms.aggregation import aggregation_of
from flexmarl.contracts.specification.losses import LOSS, LossOptions
from flexmarl.contracts.specification.team import AdamW, FactoryModel
from workers.models import architecture_of
from workers.models.weights import initial_weights
from workers.training.blocks import blocks_of
from workers.training.learner import Learner, Objective
from workers.training.objective import token_scores
from workers.training.packing import pack
from workers.training.taken import content_of
from workers.training.wire import TrainRow

pytestmark = pytest.mark.slow

WORDS = 32
UPDATES = 6
GROUPS, MEMBERS = 16, 8
SLICE = 4
SOURCE = FactoryModel()
RELATIVE_L2 = {"fp32": 1e-5, "fp64": 1e-12}

Group = list[TrainRow]


def make_learner(loss: LossOptions, precision: str) -> Learner:
    weights = initial_weights(SOURCE, WORDS, seed=4)
    optimizer = AdamW(learning_rate=2e-3)
    return Learner(weights, architecture_of(SOURCE), Objective.of(loss), optimizer, precision, epoch="0:a")


@cache
def record(seed: int) -> list[list[Group]]:
    """Play groups of one prompt each with the first weights; replies of 2 to 5 tokens under a mask, centred rewards."""
    rng = np.random.default_rng(seed)
    behaviour = make_learner(LOSS.options(), "fp64")
    return [[_group(rng, behaviour) for _ in range(GROUPS)] for _ in range(UPDATES)]


def _group(rng: np.random.Generator, behaviour: Learner) -> Group:
    allowed = np.arange(3, 27, dtype="<i4")
    prompt = rng.integers(1, WORDS, int(rng.integers(3, 9))).astype("<i4").tobytes()
    rewards = rng.random(MEMBERS)
    rows = []
    for reward in rewards - rewards.mean():
        response = rng.choice(allowed, int(rng.integers(2, 6))).astype("<i4")
        row = TrainRow(
            prompt, response.tobytes(), bytes(4 * len(response)), allowed.tobytes(), 1.0, [float(reward)], 1.0
        )
        row.logprobs = _logprobs(behaviour, row)
        rows.append(row)
    return rows


def _logprobs(behaviour: Learner, row: TrainRow) -> bytes:
    (batch,) = pack(blocks_of([row], aggregation_of(LOSS.options()), WORDS), WORDS, 1000)
    with torch.no_grad():
        return token_scores(behaviour.decoder, batch)[0][0].numpy().astype("<f4").tobytes()


def sync(learner: Learner, cohorts: list[list[Group]]) -> None:
    """Every slice in draw order, when the cohort is complete."""
    for version, groups in enumerate(cohorts):
        _update(learner, version, [groups[i : i + SLICE] for i in range(0, GROUPS, SLICE)])


def flexmarl(learner: Learner, cohorts: list[list[Group]], seed: int) -> None:
    """A slice from every SLICE settled groups, in order of arrival."""
    rng = np.random.default_rng(seed)
    for version, groups in enumerate(cohorts):
        arrived = [groups[i] for i in rng.permutation(GROUPS)]
        _update(learner, version, [arrived[i : i + SLICE] for i in range(0, GROUPS, SLICE)])


def _update(learner: Learner, version: int, slices: list[list[Group]]) -> None:
    coefficient = 0.05 * (1 - version / UPDATES)
    for number, groups in enumerate(slices):
        rows = [row for group in groups for row in group]
        learner.accumulate(f"{version}:a", number, content_of(rows), rows, coefficient)
    assert not learner.step(2e-3).null_step
    learner.accumulator.open(f"{version + 1}:a")


def distance(a: Learner, b: Learner) -> float:
    one, two = a.parameters.master.double(), b.parameters.master.double()
    return float((one - two).norm() / one.norm())


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
@pytest.mark.parametrize(
    "loss",
    [LOSS.options(), LOSS.options(type="ppo_clip", aggregation="seq_mean_token_mean")],
    ids=["policy_gradient-token_mean", "ppo_clip-seq_mean_token_mean"],
)
def test_presets_end_with_the_same_parameters(loss: LossOptions, precision: str):
    cohorts = record(seed=1)
    batch = make_learner(loss, precision)
    sync(batch, cohorts)
    for seed in range(2):
        streamed = make_learner(loss, precision)
        flexmarl(streamed, cohorts, seed)
        assert distance(batch, streamed) < RELATIVE_L2[precision]
    untouched = make_learner(loss, precision)
    assert distance(batch, untouched) > 1e-3


def test_a_lost_row_would_be_seen():
    """The bound is tight enough to notice one row of 768 less."""
    cohorts = record(seed=1)
    batch, lossy = make_learner(LOSS.options(), "fp32"), make_learner(LOSS.options(), "fp32")
    sync(batch, cohorts)
    sync(lossy, [[groups[0][1:], *groups[1:]] if i == 0 else groups for i, groups in enumerate(cohorts)])
    assert distance(batch, lossy) > 10 * RELATIVE_L2["fp32"]
