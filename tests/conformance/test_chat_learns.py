"""Two agents of a real chat model learn sums: the demo of `./scripts/demo --chat`, and a control that must not learn.

Everything that computes is real, in one process: SmolLM2-135M-Instruct in bf16, an adapter per agent, the engine, the
trainer. The full form takes minutes per seed on two cores; the short one takes one step and looks at what the trainer
says of the engine's log-probabilities.
"""

import random
import statistics
from pathlib import Path
from typing import Any

import pytest

from flexmarl.contracts.resolve import resolve
from flexmarl.store.data.groups import SettledGroup
from tests.support.chat_model import chat_home, chat_model  # noqa: F401 - fixtures
from tests.support.local_training import LocalTraining
from workers.rollout.episode import EpisodeAttempt

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600), pytest.mark.usefixtures("chat_model")]

STEPS = 10
START, END = 0.35, 0.80
"""Share of the held-out sums that the reviser answers right: at most before, at least after."""
GAP = 0.05
"""Most mean difference of log-probabilities between trainer and engine in bf16."""


class Shuffled(LocalTraining):
    """Gives the episodes of a group each other's scores: nothing can be learned from them."""

    def _judged(self, group: list[EpisodeAttempt]) -> tuple[SettledGroup, list[list[float]]]:
        outcomes = [attempt.outcome for attempt in group]
        random.Random(group[0].order.draw).shuffle(outcomes)
        for attempt, outcome in zip(group, outcomes, strict=True):
            attempt.outcome = outcome
        return super()._judged(group)


SMALL = {"tasks_per_step": 2, "episodes_per_task": 4, "micro_batch_groups": 1, "rollout_groups": 2}


def team(kind: type[LocalTraining], seed: int, home: Path, **changes: Any) -> LocalTraining:
    return kind(resolve({"seed": seed, **changes}, template="chat_sums").spec, str(home))


def held_out(training: LocalTraining) -> tuple[float, float]:
    """Return the share of held-out sums that are right before, and the median of the evaluations while it trains."""
    before = training.evaluate().solved
    for step in range(1, STEPS + 1):
        training.step()
        if step % 5 == 0:
            training.evaluate()
    return before, statistics.median(one.solved for one in training.evaluations[1:])


def test_the_trainer_and_the_engine_agree_on_what_was_said(tmp_path: Path) -> None:
    training = team(LocalTraining, 0, tmp_path, batch=SMALL)
    training.step()
    assert 0.0 < max(training.gaps.values()) <= GAP


@pytest.mark.full
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_team_of_chat_models_learns_sums(seed: int, tmp_path: Path) -> None:
    before, after = held_out(team(LocalTraining, seed, tmp_path))
    assert before <= START
    assert after >= END


@pytest.mark.full
def test_a_team_that_gets_each_others_scores_learns_nothing(tmp_path: Path) -> None:
    _, after = held_out(team(Shuffled, 0, tmp_path))
    assert after <= START
