"""What bits cost: an ordered run's step over that of the same run without the promise, and where the difference lies.

Pairs of real runs (`ordered: true` and `false`, the same template and seed, otherwise untouched) through the real
services, one after the other in turn; a step is the time between the first episodes of two neighbouring cohorts. One
template of short turns, where the engine works most, and one with waiting environments, as in `overlap.py`. Beside
that, in process, the engine alone: seconds for the same requests with and without fixed shapes.

A ratio above 1 is the price; there is no target.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
from harness import Report, interleave, paired_ratios, start

from flexmarl.contracts.specification.team import FactoryModel
from tests.support.system import Api, System
from workers.models import architecture_of, build_model
from workers.rollout.engines.requests import Request
from workers.rollout.engines.torch_engine import TorchEngine

WARM_STEPS = 2
"""First steps are left out: children, caches and connections warm up in them."""
WORDS = tuple(f"w{i}" for i in range(40))
ROWS = 256

CASES: dict[str, dict[str, Any]] = {
    "reference_game": {"batch": {"tasks_per_step": 32, "episodes_per_task": 8, "micro_batch_groups": 8}},
    "kitchen": {
        "environment": {"latency": {"scale_s": 0.05, "sigma": 1.0, "cap_s": 1.0}},
        "batch": {"tasks_per_step": 16, "episodes_per_task": 8, "micro_batch_groups": 2, "rollout_groups": 16},
    },
}
"""Template -> what is changed in it for both sides."""

WORKLOADS = {"turns": (8, 4, 256), "replies": (11, 128, 256), "few": (11, 64, 8)}
"""prompt tokens, reply tokens, requests: a game's turns, long replies, and few of them."""


LAG = {"publication": "delayed", "lag_policy": {"bound": 1}}
"""Each cohort plays while the one before it is trained, on both sides."""


def step_seconds(
    api: Api, conn: psycopg.Connection, template: str, ordered: bool, updates: int, lag: dict[str, Any]
) -> float:
    """Train and return the median step."""
    changes = CASES[template] | {
        "seed": 5,
        "mechanisms": {"ordered": ordered, **lag},
        "budget": {"train_steps": updates + WARM_STEPS, "target": None},
        "evaluation": {"every_steps": 10_000, "tasks": 1},
        "checkpoints": {"every_steps": 10_000},
    }
    run = api.create_run(name=f"{template} {'ordered' if ordered else 'default'}", template=template, spec=changes)
    done = api.finish(run["id"], 600)
    if done["status"] != "completed":
        raise RuntimeError(f"{template} run {done['status']}: {done['reason_text']}")
    starts = conn.execute(
        "SELECT extract(epoch FROM min(started_at))::float8 FROM store.episode "
        "WHERE run_id = %s AND origin = 'train' GROUP BY cohort ORDER BY cohort",
        [done["no"]],
    ).fetchall()
    steps = [later[0] - sooner[0] for sooner, later in pairwise(starts)]
    return statistics.median(steps[WARM_STEPS:])


def engine_seconds(ordered: bool, work: tuple[int, int, int]) -> Callable[[], float]:
    """Return a call that generates a workload with a warm engine of size M."""
    source = FactoryModel(size="M")
    engine = TorchEngine("cpu", ROWS, ordered)
    engine.load("p", 0, "", engine.prepare(build_model(source, WORDS, 1).state_dict(), architecture_of(source)))
    prompt, tokens, count = work
    words = np.random.default_rng(0).integers(0, len(WORDS), (count, prompt))
    requests = [Request(str(i), "p", tuple(row.tolist()), tokens, seed=i) for i, row in enumerate(words)]

    def run() -> float:
        began = time.perf_counter()
        engine.submit(requests)
        while engine.busy:
            engine.step()
        return time.perf_counter() - began

    run()
    return run


def measure_engine(report: Report) -> None:
    for name, work in WORKLOADS.items():
        sides = {"ordered": engine_seconds(True, work), "default": engine_seconds(False, work)}
        times = interleave(sides, 2 if report.quick else 15)
        report.ratio(f"engine_{name}_ratio", paired_ratios(times["ordered"], times["default"]))


def measure_steps(report: Report, templates: Sequence[str], updates: int, repeats: int, lag: dict[str, Any]) -> None:
    report.settings |= {"updates": updates, "repeats": repeats, "cases": {name: CASES[name] for name in templates}}
    with tempfile.TemporaryDirectory(prefix="flexmarl-bench-") as folder, System(Path(folder) / "home") as system:
        Path(folder).chmod(0o711)
        api = system.api()
        with psycopg.connect(system.database_url, autocommit=True) as conn:
            for template in templates:
                times = interleave(
                    {
                        "ordered": lambda name=template: step_seconds(api, conn, name, True, updates, lag),
                        "default": lambda name=template: step_seconds(api, conn, name, False, updates, lag),
                    },
                    repeats,
                )
                report.ratio(f"{template}_step_ratio", paired_ratios(times["ordered"], times["default"]))
                report.figures[f"{template}_ordered_step_s"] = statistics.median(times["ordered"])
                report.figures[f"{template}_default_step_s"] = statistics.median(times["default"])


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--case", choices=["engine", *CASES], action="append", help="the engine alone, or a template; all when absent"
    )
    parser.add_argument("--updates", type=int, default=12, help="steps of a run that count")
    parser.add_argument("--repeats", type=int, default=5, help="pairs of runs")
    parser.add_argument("--lag", type=int, choices=[0, 1], default=0, help="versions that what is trained is old")


def main() -> None:
    report = start("ordered", "step time of ordered runs over that of runs that promise no bits", options)
    wanted = report.settings["case"] or ["engine", *CASES]
    updates, repeats = (4, 1) if report.quick else (report.settings["updates"], report.settings["repeats"])
    report.settings |= {"workloads": WORKLOADS}
    if "engine" in wanted:
        measure_engine(report)
    templates = [name for name in CASES if name in wanted]
    if templates:
        lag = LAG if report.settings["lag"] else {}
        measure_steps(report, templates, int(str(updates)), int(str(repeats)), lag)
    report.finish()


if __name__ == "__main__":
    main()
