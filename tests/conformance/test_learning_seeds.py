"""Learning over three seeds: what schedules and normalisations do to it, at equal samples.

The same is measured with real services and models in tests/benchmarks/learning_compared.py.
"""

from typing import Any

import pytest

from flexmarl.contracts.resolve import resolve
from tests.conformance.learning_cluster import LearningCluster
from tests.support.forms import form

SEEDS = form(short=(1,), full=(1, 2, 3))
STEPS = 50
CLIPPED = {"algorithm": {"loss": {"type": "ppo_clip"}}}
SCHEDULES: dict[str, tuple[str, dict[str, Any], int]] = {
    "flexmarl": ("flexmarl", {}, 0),
    "wavefront": ("wavefront", {}, 0),
    "one_step_off": ("one_step_off", {}, 1),
    "delayed": ("flexmarl", {**CLIPPED, "mechanisms": {"publication": "delayed", "lag_policy": {"bound": 1}}}, 1),
    "bounded_async": ("bounded_async", {}, 2),
    "truncated": (
        "bounded_async",
        {"algorithm": {"loss": {"type": "policy_gradient"}, "correction": "truncated_importance"}},
        2,
    ),
    "continue": ("flexmarl", {**CLIPPED, "mechanisms": {"lag_policy": {"bound": 2, "in_flight": "continue"}}}, 2),
    "active_partial": ("active_partial", {"mechanisms": {"redundancy": {"extra": 3}}}, 1),
}
"""Schedule -> preset, changes, and the own lag that it reaches."""


def played(
    seed: int, preset: str, paid: dict[str, float] | None = None, rate: float = 6.0, **changes: Any
) -> LearningCluster:
    document: dict[str, Any] = {
        "seed": seed,
        "agents": {"speaker": {}, "listener": {}},
        "environment": {"type": "reference_game"},
        "batch": {"tasks_per_step": 8, "episodes_per_task": 8, "micro_batch_groups": 2, "rollout_groups": 1},
        "budget": {"train_steps": STEPS},
        "evaluation": {"every_steps": STEPS, "tasks": 1},
        "checkpoints": {"every_steps": 1000},
        **changes,
    }
    cluster = LearningCluster(resolve(document, preset=preset).spec, seed, rate=rate, paid=paid)
    cluster.start()
    return cluster


@pytest.fixture(scope="module")
def synchronous() -> dict[int, float]:
    return {seed: played(seed, "sync").expected() for seed in SEEDS}


@pytest.mark.slow
@pytest.mark.parametrize("schedule", form(short=["flexmarl", "bounded_async", "continue"], full=list(SCHEDULES)))
def test_every_schedule_reaches_the_synchronous_ones_reward_at_equal_samples(
    schedule: str, synchronous: dict[int, float]
):
    preset, changes, lag = SCHEDULES[schedule]
    for seed in SEEDS:
        cluster = played(seed, preset, **changes)
        assert max(cluster.lags) == lag, "the schedule does train on rows so old"
        assert cluster.core.state.step == STEPS
        assert cluster.expected() >= 0.97 * synchronous[seed], (seed, cluster.expected(), synchronous)


UNLIKE, ALIKE = {"speaker": 20.0, "listener": 1.0}, {"speaker": 1.0, "listener": 1.0}


def normalised(seed: int, key: str, paid: dict[str, float]) -> float:
    """Learn with advantages over their deviation, each role paid in its own unit, and compared by a key."""
    advantage = {"divide_by_std": True, "team_share": 0.0}
    return played(seed, "flexmarl", paid, algorithm={"group_key": key, "advantage": advantage}).expected()


@pytest.mark.slow
def test_each_agent_by_itself_learns_whatever_unit_it_is_paid_in_and_one_mean_for_all_does_not():
    """Dr. MAS: with one mean and deviation for the team, who is paid twenty times as much drowns the other."""
    for seed in SEEDS:
        by_itself, with_all = (normalised(seed, key, UNLIKE) for key in ("episode_group", "team"))
        assert by_itself > 0.95
        assert with_all < 0.5
        assert normalised(seed, "team", ALIKE) > 0.95, "it is the units that do it"
        assert by_itself == pytest.approx(normalised(seed, "episode_group", ALIKE), abs=1e-3)
