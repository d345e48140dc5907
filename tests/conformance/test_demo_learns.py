"""The demo learns on every seed tried, among them the one that it starts with, and nobody is warned of it meanwhile.

Everything that computes is real, in one process (`tests/support/local_training.py`), so a machine's load changes the
time and nothing else. Why names must differ from the start: a name that objects share is a strict local optimum. The
listener guesses among them, earns more than half of the reward for each, and any other word costs the speaker.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest

from flexmarl.contracts.wire import EVALUATION_DRAWS, Origin
from flexmarl.controlplane.telemetry.advisor.rules import Facts, Severity, advise
from flexmarl.store.reads.advisor_inputs import ENDS, SeriesEnds
from tests.support.forms import form
from tests.support.local_training import LocalTraining, learn

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

DEMO = "reference_game"
SEEDS = form(short=(0,), full=(0, 1, 2))
"""The demo's own; in the full form two more, on which names were shared longest while they were shorter."""
MOST_STEPS = 40
"""Twice what it takes on most seeds."""
OBJECTS = 16


@pytest.mark.parametrize("seed", SEEDS)
def test_the_demo_reaches_its_target_soon_and_without_a_warning(seed: int, tmp_path: Path) -> None:
    training = LocalTraining.of_template(DEMO, str(tmp_path), {"seed": seed})
    found = learn(training, MOST_STEPS)
    assert found.reached, f"seed {seed}: {found.best:.0%} after {found.step} steps"
    for steps in range(1, training.steps_done + 1):
        warnings = [one.title for one in advise(facts(training, steps)) if one.severity is not Severity.TIP]
        assert not warnings, f"seed {seed}, step {steps}: {warnings}"


def facts(training: LocalTraining, steps: int) -> Facts:
    """Return what the advisor saw of a run after so many steps, as far as learning is concerned."""
    every = training.spec.evaluation.every_steps
    evaluated = [one.solved for one in training.evaluations if one.step <= steps]
    assert len(evaluated) == steps // every
    series: dict[tuple[str, str, str], list[float]] = {
        ("reward/team", "", "mean"): training.rewards[:steps],
        ("eval/solved", "", "mean"): evaluated,
        **{("train/entropy", policy, "mean"): values[:steps] for policy, values in training.entropy.items()},
    }
    return Facts("running", now=0.0, status_since=0.0, last_event=0.0, series=ends(series), optimum=1.0)


def ends(series: Mapping[tuple[str, str, str], list[float]]) -> dict[tuple[str, str, str], SeriesEnds]:
    return {
        key: SeriesEnds(1, *key, tuple(values[:ENDS]), tuple(reversed(values[-ENDS:])), len(values))
        for key, values in series.items()
    }


def test_untrained_names_differ_so_that_no_object_has_to_be_renamed(tmp_path: Path) -> None:
    shared = [OBJECTS - len(set(names(seed, tmp_path / str(seed)).values())) for seed in range(6)]
    assert not any(shared), f"objects that share a name, by seed: {shared}"


def names(seed: int, home: Path) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Return what the untrained speaker calls each object."""
    home.mkdir()
    training = LocalTraining.of_template(DEMO, str(home), {"seed": seed})
    draws = range(EVALUATION_DRAWS, EVALUATION_DRAWS + training.spec.evaluation.tasks)
    said = [attempt.turns[0] for (attempt,) in training.play(draws, Origin.EVAL, 1)]
    found = {turn.prompt: tuple(turn.reply.choice.token_ids) for turn in said}
    assert len(found) == OBJECTS, "evaluation asks for every object"
    return found
