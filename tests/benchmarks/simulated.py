"""What the simulator says of runs before they are made, against what they take.

The runs are those of `overlap.py`: one team under seven combinations of trainer protocol and publication, through the
real services, with declared waits of episodes and declared times of trainers. The simulator is told the specification,
which declares these, and `MACHINE`: engines and delays of our own processes, set before the first comparison and the
same for all. Nothing is fitted to the runs. It draws other waits from the same distribution, over several seeds.
"""

import argparse
import statistics
import tempfile
from pathlib import Path

import overlap
import psycopg
from harness import start

from flexmarl.contracts.resolve import resolve
from flexmarl.simulator import Machine, Scenario, simulate
from flexmarl.simulator.scenarios.scenario import Delays, EngineModel, TrainerModel
from flexmarl.simulator.scenarios.teams import paced, workload_of
from tests.support.system import System

MACHINE = Machine(
    engine=EngineModel(token=0.004, batch=64, prefill=20_000, load=0.05),
    trainer=TrainerModel(create=0.5),
    delays=Delays(report=0.02, decide=0.003, hop=0.01, pick_up=0.02, start=3.0),
)
SEEDS = 8
"""The longest of 64 episodes decides a step: one seed of few steps says little."""


def predicted(name: str, updates: int) -> list[float]:
    """Return the mean time per step that each seed gives."""
    spec = resolve(overlap.spec(name, updates), template="arithmetic").spec
    workload, machine = workload_of(spec), paced(spec, MACHINE)
    warm = overlap.WARM_STEPS
    told = {"spec": spec, "workload": workload, "machine": machine, "steps": updates, "warm_up": warm}
    return [simulate(Scenario(**told, seed=seed)).step_s for seed in range(SEEDS)]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", nargs="*", choices=tuple(overlap.RUNS), default=None)
    parser.add_argument("--updates", type=int, default=8, help="steps of a run that count")


def main() -> None:
    report = start("simulated", "predicted over actual time per step", options)
    chosen, updates = report.settings.pop("runs"), report.settings.pop("updates")
    names, updates = (overlap.ESSENTIAL, 2) if report.quick else (chosen or tuple(overlap.RUNS), updates)
    ratios = []
    with tempfile.TemporaryDirectory(prefix="flexmarl-bench-") as folder, System(Path(folder) / "home") as system:
        Path(folder).chmod(0o711)
        api = system.api()
        with psycopg.connect(system.database_url, autocommit=True) as conn:
            for name in names:
                steps = overlap.measure(api, conn, name, updates)
                actual, told = statistics.fmean(step.step for step in steps), predicted(name, updates)
                ratios.append(statistics.fmean(told) / actual)
                report.figures |= {
                    f"{name}_actual_s": actual,
                    f"{name}_predicted_s": statistics.fmean(told),
                    f"{name}_predicted_low_s": min(told),
                    f"{name}_predicted_high_s": max(told),
                    f"{name}_predicted_over_actual": ratios[-1],
                }
    report.figures["largest_error"] = max(abs(ratio - 1.0) for ratio in ratios)
    report.settings |= {"updates": updates, "seeds": SEEDS, "machine": MACHINE.model_dump()}
    report.finish()


if __name__ == "__main__":
    main()
