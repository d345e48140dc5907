"""Rollout workers' own time, read off cohorts that the model itself played."""

from statistics import fmean

import pytest

from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.timings import CohortRollout, RunRows
from flexmarl.simulator import SimulationError
from flexmarl.simulator.prediction import calibrating
from flexmarl.simulator.prediction.calibrating import STEPS, TURN, calibrated, fit
from flexmarl.simulator.prediction.fitting import RunPace, pace_of, profile_of
from flexmarl.simulator.prediction.predicting import simulated
from flexmarl.simulator.prediction.profile import Ends

TURNS = 240
"""Of a cohort: 8 episodes of some 30."""
BATCH = {"tasks_per_step": 4, "episodes_per_task": 2, "micro_batch_groups": 2, "rollout_groups": 2}

DELAYED = {"publication": {"type": "delayed"}, "lag_policy": {"bound": 1}}


@pytest.fixture(scope="module")
def spec() -> ExperimentSpec:
    return resolve({"batch": BATCH, "budget": {"train_steps": 3, "target": None}}, template="hot_cold").spec


def pace(cores: int = 0, **platform: float) -> RunPace:
    own = {f"platform.{name}": seconds for name, seconds in platform.items()}
    return RunPace.model_construct(
        source="runs", platform=own, models={}, gradients={}, roles={}, lasts=None, parameters={}, cores=cores
    )


def rows(seconds: float, turns: int) -> RunRows:
    played = [CohortRollout(began=1.0, ended=1.0 + seconds, turns=turns, asked=1.0, decided=1.0 + seconds)] * 3
    unread = [CohortRollout(began=1.0, ended=500.0, turns=turns)]
    return RunRows([], [], [], {}, {}, [], (0.0, 0.0, 0.0), played + unread, [], [], [], [], [], [], 0)


def test_workers_take_what_lets_cohorts_last_as_long_in_the_model(spec: ExperimentSpec) -> None:
    true = simulated(spec, profile_of(spec, pace(turn=0.02)), Ends(), STEPS, 0)
    found = calibrated(spec, pace(turn=0.001), rows(fmean(true.rollouts), TURNS))
    again = simulated(spec, profile_of(spec, found), Ends(), STEPS, 0)
    assert found.platform[TURN] == pytest.approx(0.02, rel=0.1)
    assert fmean(again.rollouts) == pytest.approx(fmean(true.rollouts), rel=0.1)


def test_workers_that_wait_for_cores_are_not_taken_for_slow_ones(spec: ExperimentSpec) -> None:
    overlapping = resolve(
        {"batch": BATCH, "mechanisms": DELAYED, "budget": spec.budget.model_dump()},
        template="hot_cold",
    ).spec
    shared = {"cores": 2, "playing": 8.0, "training": 2.0}
    true = simulated(overlapping, profile_of(overlapping, pace(turn=0.02, **shared)), Ends(), STEPS, 0)
    told = rows(fmean(true.rollouts), TURNS)
    found = calibrated(overlapping, pace(turn=0.01, **shared), told)
    assert found.platform[TURN] == pytest.approx(0.02, rel=0.05)
    assert calibrated(overlapping, pace(turn=0.01), told).platform[TURN] > 1.1 * found.platform[TURN]


def test_a_run_that_is_played_again_has_workers_as_slow_as_its_rollouts_say(spec: ExperimentSpec) -> None:
    """Of a short one a part is the way of facts and commands, which its rows do not tell from turns."""
    told = rows(0.2, TURNS)
    assert fit(spec, told).machine.delays.turn < 0.8 * pace_of(spec, told, {}).platform[TURN]


def test_workers_take_no_less_than_nothing(spec: ExperimentSpec) -> None:
    assert calibrated(spec, pace(turn=0.02), rows(0.001, TURNS)).platform[TURN] == 0.0


def test_a_run_that_tells_no_turns_is_not_played(spec: ExperimentSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrating, "simulated", lambda *_: pytest.fail("nothing is to be found"))
    own = pace(report=0.1)
    assert calibrated(spec, own, rows(1.0, TURNS)) is own


def test_a_model_that_comes_to_no_end_tells_nothing(spec: ExperimentSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(*_: object) -> None:
        raise SimulationError("nothing is left to happen")

    monkeypatch.setattr(calibrating, "simulated", endless)
    own = pace(turn=0.02)
    assert calibrated(spec, own, rows(1.0, TURNS)) is own
