"""Devices on demand against the best static partition, with five policies whose shares of the work are unlike.

The real core over real trainer processes (`allocation_cluster`, part `real`) or under a virtual clock
(`allocation_virtual`, part `virtual`): micro-batches settle while rollout goes on, gradients, steps and swaps are real,
and a row takes a declared time, shared among the ranks of a gang. Under `drifting` another policy has most of the work
every `PHASE` steps, as in a team whose tasks change; under `steady` it is always the same.

The lower bound of a step is its work shared evenly among all devices, with one optimizer step: nobody can do with less.
The tighter bound beside it, under the virtual clock, adds what no order of work avoids there: all devices wait for the
first group of a step to settle and for two messages; and whoever has more work than a device could do in time needs a
gang of k, which under `drifting` is formed anew every step and keeps its k devices meanwhile, for the best k.
The best static partition is the one of all - which policies share a device, or how many devices each has for itself -
that takes the fewest device-seconds for the work of the whole run, known beforehand. Both sides run interleaved.

`gain_over_best_static_<load>_<devices>`: its time per step over that of devices on demand. `share_of_lower_bound_...`,
`share_of_tighter_bound_...`: the bound over the time taken. `static_share_...`: the same of the best static partition.
`swaps_...`: suspensions. Part `virtual` also tells `<part>_s_...`, seconds per step of each part of the bounds, and
`lost_<cause>_...`, what part of the devices' time went where (causes in `allocation_losses`), first bound included as
`work`; these sum up to 1.

Part `hidden`: `swaps_within_rollout_lag<n>`, of the swaps of two policies on one device in real runs
(`allocation_hidden`).
Part `gangs`: `gang_processor_ratio_<size>`, `gang_wall_ratio_<size>`, two ranks over one (`allocation_gangs`).
"""

import argparse
import itertools
import os
import statistics
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import allocation_gangs
import allocation_hidden
import psycopg
from allocation_cluster import Cluster
from allocation_losses import lost
from allocation_virtual import Durations, VirtualCluster, played
from harness import Report, interleave, paired_ratios, start

from flexmarl.contracts.specification import ExperimentSpec
from tests.support.system import System

ROLES = [f"cook_{i + 1}" for i in range(5)]
GROUPS, MEMBERS = 32, 2
HOT, COLD = 12, 2
"""Rows that an episode gives of the policy that has most of the work, and of each other one: 60 and 10 %."""
PHASE = 1
DEVICE_S, STEP_S, ROLLOUT_S = 9.6, 0.05, 0.5
"""Seconds that the rows of a step take when all devices share them evenly; of an optimizer step; of a rollout."""

VIRTUAL_STEPS = 41
PARTS = ("virtual", "real", "hidden", "gangs")

Partition = dict[str, tuple[int, ...]]


def hot(load: str, cohort: int) -> str:
    return ROLES[0] if load == "steady" else ROLES[cohort // PHASE % len(ROLES)]


def rows(load: str, cohort: int, role: str) -> int:
    return HOT if role == hot(load, cohort) else COLD


def row_s(devices: int) -> float:
    """Return what a row takes on one device, so that a step takes about as long with any number of them."""
    return DEVICE_S * devices / ((HOT + COLD * (len(ROLES) - 1)) * GROUPS * MEMBERS)


def rows_s(load: str, cohort: int, devices: int) -> float:
    """Return the device-seconds of a step's rows."""
    return sum(rows(load, cohort, role) for role in ROLES) * GROUPS * MEMBERS * row_s(devices)


def bound_s(load: str, cohort: int, devices: int) -> float:
    """Return the least time of a step: its rows and optimizer steps on all devices, or its rollout and a step."""
    return max((rows_s(load, cohort, devices) + len(ROLES) * STEP_S) / devices, ROLLOUT_S + STEP_S)


def tighter_s(load: str, cohort: int, devices: int, took: Durations) -> tuple[float, float, float]:
    """Return a larger least time, and its parts: of the wait for the first rows, and of forming one gang."""
    waits = ROLLOUT_S / GROUPS + 2 * took.hop
    work = rows_s(load, cohort, devices) + len(ROLES) * STEP_S
    own = max(rows(load, cohort, role) for role in ROLES) * MEMBERS
    forming = took.swap + took.form if load == "drifting" else 0.0
    least, gang = min(
        (max(-(-own // k) * GROUPS * row_s(devices), (work + k * (k > 1) * forming) / devices) + waits, k)
        for k in range(1, devices + 1)
    )
    return max(least, bound_s(load, cohort, devices)), waits, gang * (gang > 1) * forming / devices


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


def measure(load: str, devices: int, steps: int, repeats: int, report: Report) -> None:
    """Both sides over real trainers."""
    fixed, swaps = best_static(load, devices, steps), list[int]()

    def side(partition: Partition | None) -> float:
        with tempfile.TemporaryDirectory(prefix="flexmarl-allocation-") as home:
            cluster = Cluster(spec(devices, partition), partial(rows, load), ROLLOUT_S, Path(home))
            took = sum(played(cluster, steps))
        if partition is None:
            swaps.append(taken(cluster))
        return took

    took = interleave({"demand": lambda: side(None), "static": lambda: side(fixed)}, repeats)
    tell(report, load, devices, steps, took["demand"], took["static"], "")
    report.figures[f"swaps_{load}_{devices}"] = statistics.median(swaps)


def measure_virtual(load: str, devices: int, steps: int, report: Report) -> None:
    """Both sides under a virtual clock, once: there is no noise. Where the time goes is told as well."""
    durations = Durations(row_s(devices), STEP_S)

    def side(partition: Partition | None) -> tuple[VirtualCluster, float]:
        cluster = VirtualCluster(spec(devices, partition), partial(rows, load), ROLLOUT_S, durations)
        return cluster, sum(played(cluster, steps))

    cluster, demand = side(None)
    _, static = side(best_static(load, devices, steps))
    key = f"virtual_{load}_{devices}"
    tell(report, load, devices, steps, [demand], [static], "virtual_")
    tighter = [tighter_s(load, cohort, devices, durations) for cohort in range(1, steps)]
    report.figures[f"share_of_tighter_bound_{key}"] = sum(bound for bound, _, _ in tighter) / demand
    report.figures[f"swaps_{key}"] = taken(cluster)
    parts = {
        "bound_rows": sum(rows_s(load, cohort, devices) for cohort in range(1, steps)) / devices,
        "bound_steps": (steps - 1) * len(ROLES) * STEP_S / devices,
        "tighter_waits": sum(waits for _, waits, _ in tighter),
        "tighter_gangs": sum(gangs for _, _, gangs in tighter),
        "taken": demand,
    }
    report.figures |= {f"{part}_s_{key}": seconds / (steps - 1) for part, seconds in parts.items()}
    causes = lost(cluster.trace, cluster.stepped[0], cluster.stepped[-1])
    report.figures |= {f"lost_{cause}_{key}": seconds / devices / demand for cause, seconds in causes.items()}


def measure_hidden(folder: Path, updates: int, repeats: int, lags: list[int], report: Report) -> None:
    """Two policies that take turns on one device, in real runs."""
    folder.chmod(0o711)
    with (
        System(folder / "home", environment={"FLEXMARL_CPU_SHARES": "3"}) as system,
        psycopg.connect(system.database_url, autocommit=True) as conn,
    ):
        for lag in lags:
            allocation_hidden.measure(report, system.api(), conn, updates, repeats, lag)


def taken(cluster: Cluster) -> int:
    return sum("devices_taken" in line for line in cluster.rulings)


def tell(
    report: Report, load: str, devices: int, steps: int, demand: list[float], static: list[float], kind: str
) -> None:
    """Report both sides of a load against each other and against the lower bound."""
    bound, key = sum(bound_s(load, cohort, devices) for cohort in range(1, steps)), f"{kind}{load}_{devices}"
    report.ratio(f"gain_over_best_static_{key}", paired_ratios(static, demand))
    report.ratio(f"share_of_lower_bound_{key}", [bound / one for one in demand])
    report.ratio(f"static_share_{key}", [bound / one for one in static])


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--devices", type=int, nargs="+", default=[2, 8])
    parser.add_argument("--loads", nargs="+", choices=("drifting", "steady"), default=["drifting", "steady"])
    parser.add_argument("--steps", type=int, default=11, help="the first of them is left out")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=["virtual", "real"])
    parser.add_argument("--updates", type=int, default=4, help="of part hidden: steps of a run that count")
    parser.add_argument("--lags", type=int, nargs="+", default=[0, 1], help="of part hidden")
    parser.add_argument("--sizes", nargs="+", default=["S", "M"], help="of part gangs: models")


def main() -> None:
    report = start("allocation", __doc__.splitlines()[0], options)
    given = report.settings
    steps, repeats = (3, 1) if report.quick else (given["steps"], given["repeats"])
    os.environ["OMP_NUM_THREADS"] = "1"
    for devices in [2] if report.quick else given["devices"]:
        for load in ["drifting"] if report.quick else given["loads"]:
            if "virtual" in given["parts"]:
                measure_virtual(load, devices, VIRTUAL_STEPS, report)
            if "real" in given["parts"]:
                measure(load, devices, steps, repeats, report)
    with tempfile.TemporaryDirectory(prefix="flexmarl-allocation-") as folder:
        if "hidden" in given["parts"]:
            updates = 2 if report.quick else given["updates"]
            measure_hidden(Path(folder), updates, repeats, given["lags"], report)
        if "gangs" in given["parts"]:
            allocation_gangs.measure(report, Path(folder), given["sizes"], 2 if report.quick else repeats)
    report.finish()


if __name__ == "__main__":
    main()
