"""Agents of a real chat model learn: sums, as the demo of `./scripts/demo --chat` does, and a second task.

Everything that computes is real: SmolLM2-135M-Instruct in bf16, the engine, the trainer, in one process; with vLLM
through all services. The full form takes minutes per seed on two cores; the short one takes one step and looks at what
the trainer says of the engine's log-probabilities.
"""

import random
import statistics
from collections.abc import Mapping, Sequence
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
import torch

from flexmarl.contracts.resolve import resolve
from flexmarl.store.data.groups import SettledGroup
from tests.support.chat_model import chat_home, chat_model  # noqa: F401 - fixtures
from tests.support.engines import VLLM_PYTHON, needs_vllm
from tests.support.forms import form
from tests.support.local_training import LocalTraining
from tests.support.system import System
from workers.rollout.episode import EpisodeAttempt

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600), pytest.mark.usefixtures("chat_model")]

DEVICE = "cuda:0" if torch.cuda.is_available() else "cpu"
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


SLOWER = {"optimizer": {"type": "adamw", "learning_rate": 3e-4}}
"""Of adapters on vLLM, which computes in fp32 on a CPU: at the template's 5e-4 one of three seeds fell back."""
SMALL = {"tasks_per_step": 2, "episodes_per_task": 2, "micro_batch_groups": 1, "rollout_groups": 2}
SEEDS = (0, 1, 2)
STUDENT = 4.303
"""Of a two-sided 95 % interval from three seeds."""


def all_weights(*policies: str) -> dict[str, Any]:
    """Return the changes that train all weights; they move less in a step than those of an adapter."""
    tuning = {"tuning": {"type": "full"}, "optimizer": {"type": "adamw", "learning_rate": 3e-5}}
    return {"policies": dict.fromkeys(policies, tuning)}


TEAMS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "sums, adapters": ("chat_sums", {}),
    "sums, all weights": ("chat_sums", all_weights("solver", "reviser")),
    "second task, adapter": ("chat_gym", {}),
    "second task, all weights": ("chat_gym", all_weights("solver")),
}
"""Name -> template, and what is changed of it."""


def team(kind: type[LocalTraining], name: str, seed: int, home: Path, **changes: Any) -> LocalTraining:
    template, changed = TEAMS[name]
    if template == "chat_gym":
        pytest.importorskip("reasoning_gym")
    return kind(resolve({"seed": seed, **changed, **changes}, template=template).spec, str(home), DEVICE)


def held_out(training: LocalTraining) -> tuple[float, float]:
    """Return the mean score of the held-out tasks before, and the median of those of evaluations while it trains."""
    before = training.evaluate().team_score
    for step in range(1, STEPS + 1):
        training.step()
        if step % 5 == 0:
            training.evaluate()
    return before, statistics.median(one.team_score for one in training.evaluations[1:])


def interval(gains: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the mean gain of three seeds."""
    assert len(gains) == len(SEEDS)
    mean, half = statistics.mean(gains), STUDENT * statistics.stdev(gains) / sqrt(len(gains))
    return mean - half, mean + half


@pytest.mark.parametrize("name", form(short=["sums, adapters"], full=list(TEAMS)))
def test_the_trainer_and_the_engine_agree_on_what_was_said(name: str, tmp_path: Path) -> None:
    training = team(LocalTraining, name, 0, tmp_path, batch=SMALL)
    training.step()
    assert 0.0 < max(training.gaps.values()) <= GAP


@pytest.mark.full
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["sums, adapters", "sums, all weights"])
def test_a_team_of_chat_models_learns_sums(name: str, seed: int, tmp_path: Path) -> None:
    before, after = held_out(team(LocalTraining, name, seed, tmp_path))
    assert before <= START
    assert after >= END


@pytest.mark.full
@pytest.mark.parametrize("name", ["second task, adapter", "second task, all weights"])
def test_a_chat_model_learns_the_second_task(name: str, tmp_path: Path) -> None:
    """The interval of the gain over three seeds excludes zero."""
    gains = []
    for seed in SEEDS:
        before, after = held_out(team(LocalTraining, name, seed, tmp_path / str(seed)))
        print(f"{name}, seed {seed}: {before:.3f} -> {after:.3f}")
        gains.append(after - before)
    low, high = interval(gains)
    print(f"{name}: gain {statistics.mean(gains):.3f}, 95 % interval {low:.3f} to {high:.3f}")
    assert low > 0.0


def test_the_interval_of_three_gains_is_students() -> None:
    low, high = interval([0.1, 0.2, 0.3])
    assert (low, high) == (pytest.approx(0.2 - 0.2484, abs=1e-4), pytest.approx(0.2 + 0.2484, abs=1e-4))


@pytest.mark.full
@needs_vllm
@pytest.mark.services
@pytest.mark.parametrize("seed", SEEDS)
def test_a_team_of_chat_models_learns_sums_on_vllm(seed: int, tmp_path: Path) -> None:
    """Through all services, whose evaluations come before the first step and after each fifth one."""
    tmp_path.chmod(0o711)
    with System(tmp_path / "home", environment={"FLEXMARL_VLLM_PYTHON": VLLM_PYTHON}) as system:
        api = system.api()
        slower = dict.fromkeys(("solver", "reviser"), SLOWER)
        asked = {"seed": seed, "resources": {"engine": "vllm"}, "policies": slower}
        run = api.finish(api.create_run(name="sums", template="chat_sums", spec=asked)["id"], 3000)
        assert run["status"] == "completed", run["reason_text"]
        before, *later = api.series(run["id"], "eval/team_score")["eval/team_score", "", "mean"][1]
    print(f"sums on vLLM, seed {seed}: {before:.3f} -> {', '.join(f'{one:.3f}' for one in later)}")
    assert before <= START
    assert statistics.median(later) >= END


@pytest.mark.full
@pytest.mark.parametrize("seed", SEEDS)
def test_a_team_that_gets_each_others_scores_learns_nothing(seed: int, tmp_path: Path) -> None:
    """Greedy answers get better at times whatever is paid for: they become shorter. What is sampled does not."""
    training = team(Shuffled, "sums, adapters", seed, tmp_path)
    held_out(training)
    assert statistics.mean(training.rewards[STEPS // 2 :]) <= START
