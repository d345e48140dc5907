"""Fleets that follow measured rates against fleets that take every free device: time per step and device hours.

    PYTHONPATH=platform:. python tests/benchmarks/fleet_scaling.py [--most 24] [--steps 60]

The same workloads, replies and seeds with `mechanisms.scaling` `free` and `dead_band`, on as many free devices as the
maximum. Nothing runs but the simulator. `whole` are all steps, with the start of the fleet; `settled` those of the
second half. Device hours are those of engines and trainers.
"""

import argparse
from dataclasses import dataclass
from itertools import accumulate, pairwise

from flexmarl.simulator import SimulationReport, simulate
from flexmarl.simulator.scenarios.library import compose

CASES = (
    ("long_tail", "best_bounded"),
    ("long_tail", "bounded_async"),
    ("long_tail", "sync"),
    ("slow_environment", "best_bounded"),
    ("slow_environment", "bounded_async"),
    ("hub", "best_bounded"),
)
"""Workload and preset."""


@dataclass(frozen=True, slots=True)
class Part:
    """Steps of a simulation: seconds of one, and device hours of all."""

    step_s: float
    hours: float


def played(workload: str, preset: str, scaling: str, most: int, steps: int, seed: int) -> SimulationReport:
    """Play a workload with a fleet of 1 to `most` engines."""
    spec = {
        "resources": {"rollout_devices": {"min": 1, "max": most}},
        "mechanisms": {"scaling": {"type": scaling}},
        "seed": seed,
    }
    return simulate(compose(workload, preset, {"steps": steps, "warm_up": 0, "spec": spec}))


def part(report: SimulationReport, first: int) -> Part:
    """Return what the steps from a number on took."""
    ends = [report.began, *(report.began + sum_s for sum_s in accumulate(report.steps))]
    since = ends[first]
    held = (max(0.0, min(report.ended, one.until) - max(since, one.since)) for one in report.held.values())
    return Part((report.ended - since) / (len(report.steps) - first), sum(held) / 3600)


def sizes(report: SimulationReport) -> list[int]:
    """Return how many engines were held, at every change but those of the first growth."""
    engines = [held for held in report.held.values() if held.use == "engine"]
    moments = sorted({one.since for one in engines} | {one.until for one in engines if one.until < report.ended})
    counts = [sum(one.since <= at < one.until for one in engines) for at in moments]
    found = [counts[0]]
    for before, after in pairwise(counts):
        rises = len(found) > 1 and (found[-1] > found[-2]) == (after > before)
        found = [*(found[:-1] if rises else found), after] if after != before else found
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=24)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    for workload, preset in CASES:
        both = [played(workload, preset, way, asked.most, asked.steps, asked.seed) for way in ("free", "dead_band")]
        print(f"{workload}, {preset}: sizes {sizes(both[1])}")
        for name, first in (("whole", 0), ("settled", asked.steps // 2)):
            free, band = (part(report, first) for report in both)
            print(
                f"  {name:<8} step {free.step_s:7.1f} -> {band.step_s:7.1f} s (ratio {band.step_s / free.step_s:.3f}), "
                f"device hours {free.hours:6.2f} -> {band.hours:6.2f} (ratio {band.hours / free.hours:.3f})"
            )


if __name__ == "__main__":
    main()
