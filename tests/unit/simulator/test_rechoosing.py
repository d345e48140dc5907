"""Devices chosen anew for a run that goes on: of those that it holds, by the rates that it measured itself."""

from typing import Any

import pytest

from flexmarl.algorithms.replanning import ReplanOptions
from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.timings import Commanded, Decoded, RunRows, TurnLengths
from flexmarl.simulator.choosing.objectives import PoolStock
from flexmarl.simulator.choosing.rechoosing import NotRechosen, Rechosen, rechoose, setting_of, setting_with
from flexmarl.simulator.prediction.drifting import StepWindow, compared
from flexmarl.simulator.prediction.profile import Profile, ProfileFigure, complete

OPTIONS = ReplanOptions()
OWN = {"rollout_devices": 2, "training_devices": 2}


def spec(**more: Any) -> ExperimentSpec:
    return resolve(
        {
            "resources": OWN | more.pop("resources", {}),
            "batch": {"tasks_per_step": 4, "episodes_per_task": 4, "micro_batch_groups": 1, "rollout_groups": 4},
            **more,
        },
        template="reference_game",
    ).spec


def profile(own: ExperimentSpec, token: float, gradient: float) -> Profile:
    told = {
        f"{name} {policy}": ProfileFigure(low=value, likely=value, high=value, source="runs")
        for policy in own.policies
        for name, value in (
            ("engine.token", token), ("engine.row", token / 2), ("engine.prompt", 1e-5), ("engine.load", 0.01),
            ("trainer.token", gradient), ("trainer.micro_batch", gradient), ("trainer.step", 0.01),
        )
    }  # fmt: skip
    return Profile(figures=complete(own, told))


def stock(**hosts: tuple[int, ...]) -> tuple[PoolStock, ...]:
    return tuple(PoolStock(name=name, kind="cpu", hosts=own, devices=sum(own)) for name, own in hosts.items())


def test_a_run_whose_engines_are_slower_than_planned_is_given_more_of_its_devices_for_rollout() -> None:
    own = spec()
    found = rechoose(own, profile(own, token=0.2, gradient=1e-4), stock(default=(4,)), 14.0)
    assert isinstance(found, Rechosen)
    assert (found.own_rollout_devices, found.own_training_devices) == (2, 2)
    assert (found.rollout_devices, found.training_devices, found.direction) == (3, 1, 1)
    assert found.gain == pytest.approx(1.0 - found.step_s / found.own_step_s, abs=0.02)
    assert 0.1 < found.gain_least <= found.gain
    assert {change.pointer: change.value for change in found.changes} == {
        "/resources/rollout_devices": 3, "/resources/training_devices": 1,
    }  # fmt: skip
    assert found.why
    assert setting_with(own, {"resources": {"rollout_devices": 3, "training_devices": 1}}) != setting_of(own)


def test_a_run_whose_trainers_are_slower_is_given_more_of_them() -> None:
    own = spec(resources={"rollout_devices": 3, "training_devices": 1})
    found = rechoose(own, profile(own, token=1e-3, gradient=0.05), stock(default=(4,)), 1.0)
    assert isinstance(found, Rechosen)
    assert (found.training_devices, found.direction) == (2, -1)
    assert found.rollout_devices <= 2


def test_what_the_simulation_does_not_explain_of_the_measured_time_is_not_counted_as_saved() -> None:
    own = spec()
    known, there = profile(own, token=0.2, gradient=1e-4), stock(default=(4,))
    near, far = (rechoose(own, known, there, actual) for actual in (14.0, 1000.0))
    assert isinstance(near, Rechosen)
    assert isinstance(far, Rechosen)
    assert far.gain == near.gain
    assert far.gain_least == pytest.approx(near.gain * near.own_step_s / 1000.0)


def test_devices_of_two_pools_stay_in_their_pools_and_never_become_more() -> None:
    own = spec(resources={"rollout_pool": "fast", "training_pool": "large"})
    kinds = (
        PoolStock(name="fast", kind="cuda fast", hosts=(2,), devices=2),
        PoolStock(name="large", kind="cuda large", hosts=(2,), devices=2),
    )
    found = rechoose(own, profile(own, token=0.2, gradient=1e-4), kinds, 1.0)
    assert isinstance(found, Rechosen)
    assert found.gain < OPTIONS.worth
    assert found.rollout_devices <= 2
    assert found.training_devices <= 2


def test_a_run_that_does_not_hold_its_devices_is_told_so() -> None:
    own = spec()
    found = rechoose(own, profile(own, 0.2, 1e-4), (), 1.0)
    assert isinstance(found, NotRechosen)
    assert "hold" in found.why


def rows(decoded: float, gradient: float, reply: float = 4.0, **more: Any) -> RunRows:
    """Eight steps of a policy: what a decode step with 4 tokens takes, and a gradient of 100 tokens."""
    empty: dict[str, Any] = dict.fromkeys(
        ("settled", "played", "open", "generated", "picked_up", "hops", "starts", "worked"), ()
    )
    told = {name: list(value) for name, value in empty.items()}
    policy = "speaker"
    return RunRows(
        decoded=[Decoded(policy, 10, 40, 0, 10 * decoded) for _ in range(8)],
        commanded=[Commanded(1, "accumulate", policy, 0.0, gradient, gradient, 4, 100) for _ in range(8)],
        lasted={("load", policy): [0.01] * 8},
        parameters={},
        roles=[TurnLengths(policy, 4.0, reply, 0.0)],
        turns=(2.0, 0.0, 0.0),
        cores=0,
        **(told | more),
    )


def rates(decoded: float = 0.04, gradient: float = 0.2, reply: float = 4.0, seconds: float = 8.0) -> dict[str, Any]:
    assumed = {
        "engine.token speaker": 0.01, "engine.row speaker": 0.01, "engine.prompt speaker": 0.0,
        "engine.load speaker": 0.01, "trainer.micro_batch speaker": 0.1, "trainer.token speaker": 0.001,
        "role.reply speaker": 4.0,
    }  # fmt: skip
    own = spec(resources={"rollout_devices": 1, "training_devices": 1})
    found = compared(own, assumed, 1.0, rows(decoded, gradient, reply), StepWindow(8, seconds))
    return {one.name: one for one in found if one.of in ("", "speaker")}


def test_rates_are_those_of_the_same_work_as_assumed_and_as_measured() -> None:
    found = rates()
    assert found["generation"].assumed == pytest.approx(100.0)
    assert found["generation"].measured == pytest.approx(100.0)
    assert found["training"].assumed == pytest.approx(500.0)
    assert found["training"].measured == pytest.approx(500.0)
    assert (found["load"].assumed, found["load"].measured) == (0.01, pytest.approx(0.01))
    assert (found["step"].assumed, found["step"].measured) == (1.0, 1.0)
    assert not [one.name for one in found.values() if one.outside(OPTIONS)]


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({"decoded": 0.08}, {"generation"}),
        ({"gradient": 0.4}, {"training"}),
        ({"reply": 8.0}, {"reply"}),
        ({"seconds": 16.0}, {"step"}),
    ],
)
def test_what_differs_is_named(changed: dict[str, float], wrong: set[str]) -> None:
    found = rates(**changed)
    assert {one.name for one in found.values() if one.outside(OPTIONS)} == wrong


def test_what_was_not_assumed_is_not_compared() -> None:
    assert compared(spec(), {}, None, rows(0.04, 0.2), StepWindow(8, 8.0)) == []
