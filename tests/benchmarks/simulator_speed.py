"""How fast the simulator is, and how far fluid episodes are from turns.

First the built-in workloads turn by turn: what happens inside the simulator is timed apart from what the core decides,
so both rates are given, and the time of both together. `events` are the actions that the virtual clock carried out,
less the facts that the core handled. `changes` counts what happened to the virtual cluster instead (`Counted`), however
many actions that took: in a run of its own, so that counting costs nothing in those that are timed. Then 64 devices
both ways, the same team; an error of 0.01 is one per cent. Then 3 000 devices for a day, one policy, 8 192 episodes of
several turns a step, at episode granularity. Times are processor time.
"""

import argparse
import resource
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from harness import Report, start

from flexmarl.contracts.events import Event
from flexmarl.controlplane.common.collecting import collected_seldom
from flexmarl.orchestrator.types import Decision
from flexmarl.simulator import simulate
from flexmarl.simulator.cluster.cluster import Cluster
from flexmarl.simulator.devices.batch import DecodeBatch
from flexmarl.simulator.devices.engines import SimulatedEngine
from flexmarl.simulator.devices.turns import SimulatedTurn
from flexmarl.simulator.rollout.episodes import EpisodePlaying
from flexmarl.simulator.rollout.playing import RolloutModel
from flexmarl.simulator.runs import alone, long_enough
from flexmarl.simulator.scenarios.library import compose
from flexmarl.simulator.scenarios.scenario import Scenario

WORKLOADS = ("hub", "long_tail", "slow_environment")
DAY_S = 86_400.0
AGENT = {
    "stages": [["solver"]],
    "rounds": {"median": 5, "sigma": 0.5, "least": 1, "most": 20},
    "each": {"prompt": 2048, "reply": {"median": 1500, "sigma": 0.9, "least": 16, "most": 16384}},
    "environment": {"median": 8, "sigma": 1.0, "most": 300},
}


def team(devices: int, trainers: int, groups: int, **machine: Any) -> dict[str, Any]:
    """Return a run of one policy whose episodes go through several turns and waits."""
    batch = {"tasks_per_step": groups, "episodes_per_task": 16, "micro_batch_groups": max(1, groups // 8)}
    resources = {"rollout_devices": devices, "training_devices": trainers}
    own = {"agents": {"solver": {}}, "environment": {"type": "arithmetic"}, "batch": batch, "resources": resources}
    return {"spec": own, "workload": AGENT, "machine": machine}


CLUSTER = team(
    50, 8, 512,
    engine={"token": 0.02, "load": 20.0, "replicas": 50}, trainer={"token": 4e-6, "micro_batch": 0.5, "step": 10},
)  # fmt: skip
"""2 500 engines, 50 behind each device of the specification; 8 trainer devices stand for 500."""
SMALL = team(56, 8, 32, engine={"token": 0.02, "load": 10.0}, trainer={"token": 4e-5, "micro_batch": 0.5, "step": 5})


class Timed:
    """A cluster whose core's processor time is counted apart."""

    def __init__(self, scenario: Scenario) -> None:
        self.cluster: Cluster = alone(long_enough(scenario))
        self.core_s = 0.0
        self._handle, core = self.cluster.driver.core.handle, self.cluster.driver.core
        core.handle = self._timed  # type: ignore[method-assign]

    def _timed(self, fact: Event, now: float) -> Decision:
        began = time.process_time()
        decision = self._handle(fact, now)
        self.core_s += time.process_time() - began
        return decision

    def play(self, steps: int, until: float = float("inf")) -> float:
        """Play so many steps or so long; return the processor time outside the core."""
        clock, done = self.cluster.clock, self.cluster.log.stepped
        began = time.process_time()
        while len(done) < steps and clock.now < until:
            assert clock.play(), "nothing is left to happen"
        return time.process_time() - began - self.core_s


class Counted:
    """What happens to the virtual cluster in a run, decisions of the core aside; counting takes time of its own.

    Of turns: that an engine takes one, that it gets a slot for which it waited, that its prompt is computed, that its
    last token is made. Of episodes: that an attempt begins. And every other action of the clock: a stage whose
    environment is done, an episode with its reward, a command that arrives, a load, a gradient, a fact that is read.
    An action that finds nothing to do is none; one that ends three replies is three.
    """

    _BY_EFFECT = ("Engine._called", "Engine._prompt_done", "Driver._decided", "Driver._due")

    def __init__(self, scenario: Scenario) -> None:
        self.changes = 0
        run = Timed(scenario)
        clock, done = run.cluster.clock, run.cluster.log.stepped
        with ExitStack() as stack:
            for owner, name, more in (
                (SimulatedEngine, "ask", lambda turn, _: 1),
                (SimulatedEngine, "_begin", lambda turn, phase: phase == "queued"),
                (DecodeBatch, "enter", lambda turn, _: 1),
                (RolloutModel, "_begin", lambda group, _: 1),
            ):
                stack.enter_context(patch.object(owner, name, self._told(getattr(owner, name), more)))
            stack.enter_context(patch.object(DecodeBatch, "ended", self._ended(DecodeBatch.ended)))
            while len(done) < scenario.warm_up + scenario.steps:
                self.changes += clock._due[0][2].__qualname__ not in self._BY_EFFECT
                assert clock.step(), "nothing is left to happen"

    def _told(self, method: Callable[..., Any], more: Callable[[Any, str], int]) -> Callable[..., Any]:
        def call(own: Any, first: Any, *others: Any, **named: Any) -> Any:
            self.changes += more(first, getattr(first, "phase", ""))
            return method(own, first, *others, **named)

        return call

    def _ended(
        self, method: Callable[[DecodeBatch], list[SimulatedTurn]]
    ) -> Callable[[DecodeBatch], list[SimulatedTurn]]:
        def call(batch: DecodeBatch) -> list[SimulatedTurn]:
            found = method(batch)
            self.changes += len(found)
            return found

        return call


def rates(workload: str, repeats: int) -> dict[str, float]:
    """Return what happens inside the simulator, and in the core, per second of each one's processor time."""
    scenario, found = compose(workload, "flexmarl"), []
    changes = Counted(scenario).changes
    for _ in range(repeats):
        run = Timed(scenario)
        outside = run.play(scenario.warm_up + scenario.steps)
        handled = run.cluster.driver.handled
        events = run.cluster.clock.events - handled
        found.append((events / outside, handled / run.core_s, changes / outside, outside + run.core_s))
    columns = zip(("events_per_s", "handled_per_s", "changes_per_s", "whole_s"), zip(*found, strict=True), strict=True)
    return {f"{workload}_{name}": statistics.median(column) for name, column in columns}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--tick", type=float, default=5.0, help="seconds of the day between two looks at the engines")


def main() -> None:
    report = start("simulator_speed", "events per second, a day of 3 000 devices, error of fluid episodes", options)
    repeats, tick = (1 if report.quick else report.settings["repeats"]), float(str(report.settings["tick"]))
    assert isinstance(repeats, int)
    with collected_seldom():  # as the commands that simulate do
        measure(report, repeats, tick)
    report.finish()


def measure(report: Report, repeats: int, tick: float) -> None:
    """Fill the report in."""
    for workload in WORKLOADS:
        report.figures |= rates(workload, repeats)
    for preset in ("flexmarl",) if report.quick else ("flexmarl", "sync", "one_step_off"):
        steps = {"steps": 1 if report.quick else 6}
        turns = simulate(compose(SMALL, preset, steps))
        fluid = simulate(compose(SMALL, preset, steps | {"granularity": "episode"}))
        report.figures[f"{preset}_step_error"] = fluid.step_s / turns.step_s - 1
        report.figures[f"{preset}_tokens_error"] = fluid.tokens_s / turns.tokens_s - 1
    steps = 100_000
    day = Timed(compose(CLUSTER, "one_step_off", {"granularity": "episode", "tick": tick, "steps": steps}))
    outside = day.play(steps, DAY_S / 24 if report.quick else DAY_S)
    played = day.cluster.playing
    assert isinstance(played, EpisodePlaying)
    report.figures |= {
        "day_s": outside + day.core_s,
        "day_core_s": day.core_s,
        "day_hours": day.cluster.clock.now / 3600,
        "day_steps": len(day.cluster.log.stepped),
        "day_tokens": day.cluster.hosting.made(),
        "day_changes_per_s": played.changes / outside,
        "day_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


if __name__ == "__main__":
    main()
