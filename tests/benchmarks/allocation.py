"""Devices on demand against the best static partition, with five policies whose shares of the work are unlike.

The real core over real trainer processes (`allocation_cluster`): micro-batches settle while rollout goes on, gradients,
steps and swaps are real, and a row takes a declared time, shared among the ranks of a gang. Under `drifting` another
policy has most of the work every `PHASE` steps, as in a team whose tasks change; under `steady` it is always the same.

The lower bound of a step is its work shared evenly among all devices, with one optimizer step: nobody can do with less.
The best static partition is the one of all - which policies share a device, or how many devices each has for itself -
that takes the fewest device-seconds for the work of the whole run, known beforehand. Both sides run interleaved.

`gain_over_best_static_<load>_<devices>`: its time per step over that of devices on demand. `share_of_lower_bound_...`:
the bound over the time taken. `static_share_...`: the same of the best static partition. `swaps_...`: suspensions.
"""

import argparse
import itertools
import os
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from allocation_cluster import Cluster
from allocation_virtual import Durations, VirtualCluster, played
from harness import Report, interleave, paired_ratios, start

from flexmarl.contracts.spec import ExperimentSpec

ROLES = [f"cook_{i + 1}" for i in range(5)]
GROUPS, MEMBERS = 32, 2
HOT, COLD = 12, 2
"""Rows that an episode gives of the policy that has most of the work, and of each other one: 60 and 10 %."""
PHASE = 1
DEVICE_S, STEP_S, ROLLOUT_S = 9.6, 0.05, 0.5
"""Seconds that the rows of a step take when all devices share them evenly; of an optimizer step; of a rollout."""

Partition = dict[str, tuple[int, ...]]


def hot(load: str, cohort: int) -> str:
    return ROLES[0] if load == "steady" else ROLES[cohort // PHASE % len(ROLES)]


def rows(load: str, cohort: int, role: str) -> int:
    return HOT if role == hot(load, cohort) else COLD


def row_s(devices: int) -> float:
    """Return what a row takes on one device, so that a step takes about as long with any number of them."""
    return DEVICE_S * devices / ((HOT + COLD * (len(ROLES) - 1)) * GROUPS * MEMBERS)


def bound_s(load: str, cohort: int, devices: int) -> float:
    """Return the least time of a step: its rows and optimizer steps on all devices, or its rollout and a step."""
    work = sum(rows(load, cohort, role) for role in ROLES) * GROUPS * MEMBERS * row_s(devices) + len(ROLES) * STEP_S
    return max(work / devices, ROLLOUT_S + STEP_S)


def best_static(load: str, devices: int, steps: int) -> Partition:
    """Return the partition under which the steps of a run take least time."""

    def takes(partition: Partition) -> float:
        total = 0.0
        for cohort in range(steps):
            busy = [0.0] * devices
            for role, own in partition.items():
                for device in own:
                    busy[device] += rows(load, cohort, role) / len(own)
            total += max(busy)
        return total

    return min(partitions(devices), key=takes)


def partitions(devices: int) -> Iterator[Partition]:
    """List every way in which policies share devices, or have several for themselves."""
    if devices < len(ROLES):
        for own in itertools.product(range(devices), repeat=len(ROLES)):
            yield {role: (device,) for role, device in zip(ROLES, own, strict=True)}
        return
    for sizes in itertools.product(range(1, devices), repeat=len(ROLES)):
        if sum(sizes) == devices:
            ends = list(itertools.accumulate(sizes))
            yield {role: tuple(range(end - size, end)) for role, end, size in zip(ROLES, ends, sizes, strict=True)}


def spec(devices: int, partition: Partition | None) -> ExperimentSpec:
    policies: dict[str, Any] = {role: {"model": {"type": "factory", "size": "S"}} for role in ROLES}
    for role in ROLES:
        size = devices if partition is None else len(partition[role])
        policies[role]["devices"] = {"least": 1, "most": size} if partition is None else size
    allocation = {"type": "agent_centric"} if partition is None else {"type": "static", "homes": partition}
    return ExperimentSpec.model_validate(
        {
            "agents": {role: {} for role in ROLES},
            "environment": {"type": "kitchen", "cooks": 5, "turns": 24},
            "policies": policies,
            "batch": {"tasks_per_step": GROUPS, "episodes_per_task": MEMBERS, "micro_batch_groups": 1},
            "mechanisms": {"allocation": allocation},
            "resources": {"training_devices": devices, "pace": {"row_s": row_s(devices), "step_s": STEP_S}},
            "budget": {"train_steps": 100_000},
            "evaluation": {"every_steps": 100_000, "tasks": 1},
            "checkpoints": {"every_steps": 100_000},
        }
    )


def measure(load: str, devices: int, steps: int, repeats: int, report: Report, virtual: bool) -> None:
    fixed = best_static(load, devices, steps)
    swaps: list[int] = []

    def own_rows(cohort: int, role: str) -> int:
        return rows(load, cohort, role)

    def side(partition: Partition | None) -> float:
        own = spec(devices, partition)
        with tempfile.TemporaryDirectory(prefix="flexmarl-allocation-") as home:
            if virtual:
                cluster: Cluster = VirtualCluster(own, own_rows, ROLLOUT_S, Durations(row_s(devices), STEP_S))
            else:
                cluster = Cluster(own, own_rows, ROLLOUT_S, Path(home))
            took = sum(played(cluster, steps))
        if partition is None:
            swaps.append(sum("devices_taken" in line for line in cluster.rulings))
        return took

    took = interleave({"demand": lambda: side(None), "static": lambda: side(fixed)}, 1 if virtual else repeats)
    demand, static = took["demand"], took["static"]
    bound = sum(bound_s(load, cohort, devices) for cohort in range(1, steps))
    key = f"{'virtual_' if virtual else ''}{load}_{devices}"
    report.ratio(f"gain_over_best_static_{key}", paired_ratios(static, demand))
    report.ratio(f"share_of_lower_bound_{key}", [bound / one for one in demand])
    report.ratio(f"static_share_{key}", [bound / one for one in static])
    report.figures[f"swaps_{key}"] = statistics.median(swaps)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--devices", type=int, nargs="+", default=[2, 8])
    parser.add_argument("--loads", nargs="+", choices=("drifting", "steady"), default=["drifting", "steady"])
    parser.add_argument("--steps", type=int, default=11, help="the first of them is left out")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--virtual", action="store_true", help="only under a virtual clock")


def main() -> None:
    report = start("allocation", __doc__.splitlines()[0], options)
    given = report.settings
    steps, repeats = (3, 1) if report.quick else (given["steps"], given["repeats"])
    os.environ["OMP_NUM_THREADS"] = "1"
    for devices in [2] if report.quick else given["devices"]:
        for load in ["drifting"] if report.quick else given["loads"]:
            measure(load, devices, 41, 1, report, virtual=True)
            if not given["virtual"]:
                measure(load, devices, steps, repeats, report, virtual=False)
    report.finish()


if __name__ == "__main__":
    main()
