"""Predictions: what is known, simulated at its ends; ranges hold what they claim, and say why they are wide."""

import pytest

from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.simulator.devices.stepping import SteppedEngine
from flexmarl.simulator.prediction import memory
from flexmarl.simulator.prediction.fitting import machine
from flexmarl.simulator.prediction.memory_loads import LEAST
from flexmarl.simulator.prediction.predicting import Prediction, predict, workload
from flexmarl.simulator.prediction.profile import Ends, Profile, ProfileFigure, complete, declared
from flexmarl.simulator.runs import alone
from flexmarl.simulator.scenarios.scenario import Host, Scenario

SMALL = {"tasks_per_step": 4, "episodes_per_task": 2, "micro_batch_groups": 2, "rollout_groups": 2}


def spec(**changes: object) -> ExperimentSpec:
    return resolve({"batch": SMALL, "budget": {"train_steps": 3, "target": None}, **changes}, template="hot_cold").spec


def profile(own: ExperimentSpec, **figures: ProfileFigure) -> Profile:
    named = {name.replace("__", "."): figure for name, figure in figures.items()}
    everything = complete(own, named)
    exact = {
        n: ProfileFigure(low=f.likely, likely=f.likely, high=f.likely, source="runs", of="1 run")
        for n, f in everything.items()
    }
    return Profile(figures=exact | named)


def once(own: ExperimentSpec, known: Profile) -> Prediction:
    return predict(own, known, lambda: False, lambda made: False)


def test_a_range_spans_the_ends_of_what_is_known_and_says_which_figure_makes_it_wide() -> None:
    own = spec()
    wide = ProfileFigure(low=0.002, likely=0.02, high=0.2, source="runs", of="2 runs")
    narrow, told = once(own, profile(own)), once(own, profile(own, platform__carry=wide))
    assert narrow.step_s.high - narrow.step_s.low < 0.01 * narrow.step_s.likely
    assert told.step_s.low < told.step_s.likely < told.step_s.high
    assert told.step_s.high > 2 * told.step_s.likely
    assert told.why[0] == "Node time per trainer command: up to 900 % more (measured in 2 runs)."
    assert told.simulations == 3
    assert sum(part.likely for part in told.bubble["trainer"].values()) + told.trainer_busy.likely == pytest.approx(1.0)


def test_what_nobody_measured_is_a_default_with_a_wide_range() -> None:
    own = spec()
    unknown = ProfileFigure(low=0.001, likely=0.02, high=20.0, source="default")
    swaps = {f"trainer.swap {policy}": unknown for policy in own.policies}
    told = once(own, Profile(figures=complete(own, swaps)))
    assert told.step_s.high > 4 * told.step_s.low
    assert "not measured yet" in told.why[0]
    assert not any("Suspending" in line for line in told.why), "nobody is suspended, however long that would take"


def test_a_declared_pace_is_what_trainers_take() -> None:
    pace = {"micro_batch_s": 0.5, "row_s": 0.0, "step_s": 1.0}
    slow, fast = spec(resources={"pace": pace}), spec()
    assert [machine(own, profile(own), Ends()).trainer.declared for own in (slow, fast)] == [True, False]
    told = once(slow, profile(slow))
    assert told.step_s.likely - once(fast, profile(fast)).step_s.likely == pytest.approx(
        2 * 2 * 0.5 + 2 * 1.0, rel=0.15
    )


def test_hours_are_the_start_and_then_every_step_and_a_budget_of_seconds_ends_them() -> None:
    own = spec()
    told = once(own, profile(own))
    assert told.seconds.likely > 2 * told.step_s.likely + 3.0  # children start for three seconds
    short = spec(budget={"train_steps": 10_000, "target": None, "seconds": 5.0})
    assert once(short, profile(short)).seconds.likely < told.seconds.likely + 5.0
    assert told.device_seconds.likely == pytest.approx(2 * told.seconds.likely)


def test_episodes_that_end_early_are_shorter() -> None:
    own = spec()
    whole = profile(own)
    early = whole.model_copy(update={"lasts": (3.0, 0.5, 0.0)})
    assert once(own, early).step_s.likely < once(own, whole).step_s.likely
    assert workload(own, whole.model_copy(update={"lasts": (3.0, 0.5, 0.4)}), Ends()).lasts_alike == 0.4


def test_engines_of_a_measured_machine_make_whole_steps() -> None:
    own = spec()
    made = machine(own, profile(own), Ends())
    assert made.engine.stepped
    cluster = alone(Scenario(spec=own, workload=workload(own, profile(own), Ends()), machine=made))
    while not list(cluster.playing.engines.values()):
        assert cluster.clock.step()
    assert {type(engine) for engine in cluster.playing.engines.values()} == {SteppedEngine}


def test_every_device_has_its_policies_and_what_lies_there() -> None:
    own = spec()
    told = once(own, profile(own))
    assert [(device.use, device.policies) for device in told.devices] == [
        ("engine", ("guesser", "hinter")), ("trainer", ("guesser", "hinter")),
    ]  # fmt: skip
    engine, trainer = told.memory
    assert {part.name for part in trainer.parts} == {"weights", "optimizer", "activations", "program"}
    assert all(part.name in memory.PARTS for part in (*engine.parts, *trainer.parts))
    assert engine.total("low") < engine.total("likely") < engine.total("high")


def test_memory_is_the_arithmetic_of_weights_gradient_and_moments() -> None:
    own = spec()
    held = memory.trainer(own, ["guesser"], {"guesser": 1000}, {"guesser": LEAST})
    assert {part.name: part.likely for part in held.parts if part.name in ("weights", "optimizer")} == {
        "weights": 4e3,
        "optimizer": 16e3,
    }
    assert memory.engine(own, ["guesser"], {}, {}).parts == ()
    assert memory.parameters_of(own, {})["guesser"] == pytest.approx(85_440, rel=0.05)


def test_a_faster_split_of_the_same_devices_is_found_simulated_and_told_with_what_to_change() -> None:
    pace = {"micro_batch_s": 0.01, "row_s": 0.0, "step_s": 0.01}
    long = ProfileFigure(low=400, likely=400, high=400, source="runs")
    lengths = {f"role__{what} {role}": long for what in ("prompt", "reply") for role in spec().agents}
    resources = {"pace": pace, "engine_policies": None, "trainer_policies": None}
    bad = spec(resources=resources | {"rollout_devices": 1, "training_devices": 3})
    made: list[int] = []

    def spare(count: int) -> bool:
        made.append(count)
        return True

    told = predict(bad, profile(bad, **lengths), lambda: False, spare)
    better = told.split.better
    assert better is not None
    assert (told.split.devices, better.shared, better.engines + better.trainers) == (4, False, 4)
    assert {one.pointer: (one.before, one.value) for one in better.changes} == {
        "/resources/rollout_devices": (1, better.engines),
        "/resources/training_devices": (3, better.trainers),
    }
    assert made == [3] * (told.split.looked_at + 2)  # its ends are simulated too
    taken = resources | {"rollout_devices": better.engines, "training_devices": better.trainers}
    good = predict(spec(resources=taken), profile(bad, **lengths), lambda: False)
    assert good.step_s.likely == pytest.approx(better.step_s[1], rel=1e-6)
    assert better.gain[1] == pytest.approx(1.0 - told.tokens_s.likely / good.tokens_s.likely, abs=1e-6)
    assert better.gain[1] > 0.02
    assert good.split.better is None
    assert good.split.looked_at >= 1
    assert once(bad, profile(bad, **lengths)).split.looked_at == 0  # there was no time


def test_a_machine_has_the_cores_and_the_others_of_its_profile() -> None:
    own = spec()
    known = profile(own)
    told = {
        f"platform.{name}": declared(count, "here")
        for name, count in (("playing", 1.0), ("training", 2.0), ("both", 3.0))
    }
    crowded = known.model_copy(update={"cores": 4, "figures": known.figures | told})
    assert machine(own, crowded, Ends()).host == Host(cores=4, playing=1.0, training=2.0, both=3.0)


def test_commands_take_longer_on_their_way_while_cores_are_wanting() -> None:
    """One engine at work and three others on two cores: each has half a core."""
    own = spec()
    known = profile(own)
    crowded = known.model_copy(
        update={"cores": 2, "figures": known.figures | {"platform.playing": declared(3.0, "here")}}
    )
    slow = machine(own, crowded, Ends())
    cluster = alone(Scenario(spec=own, workload=workload(own, profile(own), Ends()), machine=slow))
    cluster.playing.groups[1] = []
    reached: list[float] = []
    cluster.host.after(50.0, lambda: reached.append(cluster.clock.now))
    cluster.clock.at(10.0, cluster.host.begin)
    while not reached and cluster.clock.step():
        pass
    assert reached == [pytest.approx(10.0 + 80.0, rel=0.05)], "engines and a trainer start meanwhile"
