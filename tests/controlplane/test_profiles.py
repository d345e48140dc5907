"""Whose runs tell what of an experiment: those of its own environment before others, of models as of the platform."""

from typing import Any

import pytest

from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.controlplane.experiments import profiles
from flexmarl.simulator.prediction.estimates import Gradients
from flexmarl.simulator.prediction.fitting import RunPace, environment_key, model_key
from flexmarl.simulator.prediction.profile import Ends, Profile

ON = "torch on cpu"


def spec(template: str) -> ExperimentSpec:
    return resolve({}, template=template).spec


def pace(own: ExperimentSpec, told: ExperimentSpec, token: float, **more: Any) -> RunPace:
    """What a run of a team told, of the models that another team has."""
    figures: dict[str, Any] = {
        "source": "runs", "engine": ON, "trainer": ON, "environment": environment_key(told), "episodes": 64,
        "models": {model_key(own, policy): {"engine.token": token} for policy in own.policies},
        "gradients": {
            model_key(own, policy): [Gradients(count=9, tokens=size, seconds=token * size) for size in (10.0, 100.0)]
            for policy in own.policies
        },
    }  # fmt: skip
    return RunPace.model_validate(figures | more)


def merged(own: ExperimentSpec, *runs: RunPace) -> Profile:
    return profiles._merged(own, ON, ON, runs)


@pytest.mark.parametrize("source", ["profile", "runs"])
def test_a_team_is_as_fast_as_it_was_itself_however_many_others_had_its_models(source: str) -> None:
    own, other = spec("arithmetic"), spec("hot_cold")
    others = [pace(own, other, 0.009) for _ in range(5)]
    found = merged(own, *others, pace(own, own, 0.002, source=source))
    for policy in own.policies:
        assert found.at("engine.token", Ends(), policy) == pytest.approx(0.002)
        assert found.at("trainer.token", Ends(), policy) == pytest.approx(0.002)
        assert found.figures[f"engine.token {policy}"].source == source


def test_what_it_has_not_told_others_tell() -> None:
    own, other = spec("arithmetic"), spec("hot_cold")
    found = merged(own, pace(own, own, 0.002, models={}, gradients={}), pace(own, other, 0.009))
    policy = next(iter(own.policies))
    assert found.at("engine.token", Ends(), policy) == pytest.approx(0.009)
    assert found.at("trainer.token", Ends(), policy) == pytest.approx(0.009)


def test_another_kind_of_device_tells_nothing() -> None:
    own = spec("arithmetic")
    found = merged(own, pace(own, own, 0.002, engine="torch on gpu", trainer="torch on gpu"))
    assert {
        found.figures[f"{name} {next(iter(own.policies))}"].source for name in ("engine.token", "trainer.token")
    } == {"default"}


def test_cores_are_those_of_the_newest_run_on_such_devices() -> None:
    own = spec("arithmetic")
    elsewhere = pace(own, own, 0.002, engine="torch on gpu", cores=64)
    assert merged(own, elsewhere, pace(own, own, 0.002, cores=2), pace(own, own, 0.002, cores=8)).cores == 2
    assert merged(own, elsewhere).cores == 0
