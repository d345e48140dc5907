"""How fast the simulator is, and how far fluid episodes are from turns.

First the built-in workloads turn by turn: what happens inside the simulator is timed apart from what the core decides,
so both rates are given. Then 64 devices both ways, the same team; an error of 0.01 is one per cent. Then 3 000 devices
for a day, one policy, 8 192 episodes of several turns a step, at episode granularity. Times are processor time.
"""

import argparse
import gc
import resource
import statistics
import time
from typing import Any

from harness import start

from flexmarl.contracts.events import Event
from flexmarl.orchestrator.types import Decision
from flexmarl.simulator import simulate
from flexmarl.simulator.cluster import Cluster
from flexmarl.simulator.episodes import EpisodePlaying
from flexmarl.simulator.library import compose
from flexmarl.simulator.runs import alone, long_enough
from flexmarl.simulator.scenario import Scenario

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


def rates(workload: str, repeats: int) -> tuple[float, float]:
    """Return events inside the simulator, and facts that the core handles, per second of each one's processor time."""
    scenario, found = compose(workload, "flexmarl"), []
    for _ in range(repeats):
        run = Timed(scenario)
        outside = run.play(scenario.warm_up + scenario.steps)
        handled = run.cluster.driver.handled
        found.append(((run.cluster.clock.events - handled) / outside, handled / run.core_s))
    return statistics.median(inside for inside, _ in found), statistics.median(core for _, core in found)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--tick", type=float, default=5.0, help="seconds of the day between two looks at the engines")


def main() -> None:
    report = start("simulator_speed", "events per second, a day of 3 000 devices, error of fluid episodes", options)
    repeats, tick = (1 if report.quick else report.settings["repeats"]), float(str(report.settings["tick"]))
    assert isinstance(repeats, int)
    gc.freeze()  # what is loaded by now stays: looking through it again and again would be most of the collector's work
    for workload in WORKLOADS:
        inside, core = rates(workload, repeats)
        report.figures |= {f"{workload}_events_per_s": inside, f"{workload}_handled_per_s": core}
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
    report.finish()


if __name__ == "__main__":
    main()
