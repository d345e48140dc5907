"""One device for an engine and a trainer in turns, against one each: what the device holds, and what a step takes.

Pairs of real runs of one specification through the real services, in turns: `colocated` on one device and `static` on
two. The processes' own memory (USS) is sampled all the time, and each sample is of the phase that the run's recorded
intervals put it in: the engine awake, or asleep. Suspended states lie in host memory, mapped by the trainer alone, and
count as its own: on a GPU they would not be on the device. `*_mb` are medians over the samples of a phase;
`peak_share` is the largest sum of both processes of a colocated run over that of a static run, `step_over_static` its
median step over the other's. There is no target: what sharing saves in memory and devices it costs in steps that
nothing overlaps.
"""

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import psycopg
from harness import Report, interleave, paired_ratios, start
from publish_model import SIZES, make_model

from tests.support.system import Api, System

EVERY_S = 0.05
MB = 2**20
Sample = tuple[float, int, int]
"""When, and the own memory of engine and trainer in bytes."""


def spec(allocation: str, model: Path, steps: int) -> dict[str, Any]:
    return {
        "seed": 5,
        "agents": {"speaker": {}, "listener": {}},
        "environment": {"type": "reference_game"},
        "policies": {
            name: {"model": {"type": "folder", "path": str(model)}, "warmup": None} for name in ("speaker", "listener")
        },
        "batch": {"tasks_per_step": 8, "episodes_per_task": 4, "micro_batch_groups": 4, "rollout_groups": 8},
        "mechanisms": {"allocation": allocation},
        "budget": {"train_steps": steps, "target": None},
        "evaluation": {"every_steps": 10_000, "tasks": 1},
        "checkpoints": {"every_steps": 10_000},
    }


class Sampler(threading.Thread):
    """Samples the memory of a run's children until it is stopped."""

    def __init__(self, database_url: str, run_no: int) -> None:
        super().__init__(daemon=True)
        self.samples: list[Sample] = []
        self._url, self._run_no = database_url, run_no
        self._stopping = threading.Event()

    def run(self) -> None:
        """Sample while both children are there."""
        query = "SELECT use, pid FROM store.lease WHERE run_id = %s AND state = 'held' AND incarnation <> ''"
        with psycopg.connect(self._url, autocommit=True) as conn:
            while not self._stopping.wait(EVERY_S):
                found = dict(conn.execute(query, [self._run_no]).fetchall())
                if len(found) == 2:
                    own = [psutil.Process(found[use]).memory_full_info().uss for use in ("engine", "trainer")]
                    self.samples.append((time.time(), own[0], own[1]))

    def stop(self) -> list[Sample]:
        """End the thread; returns what it has."""
        self._stopping.set()
        self.join()
        return self.samples


def trained(api: Api, system: System, kind: str, model: Path, steps: int) -> tuple[int, list[Sample]]:
    """Run to the end; returns the run's number and its samples."""
    run = api.create_run(name=kind, spec=spec(kind, model, steps))
    sampler = Sampler(system.database_url, run["no"])
    sampler.start()
    done = api.finish(run["id"], 900)
    samples = sampler.stop()
    if done["status"] != "completed":
        raise RuntimeError(f"{kind} run {done['status']}: {done['reason_text']}")
    return run["no"], samples


def asleep(conn: psycopg.Connection, run_no: int) -> list[tuple[float, float]]:
    """Return from when to when the engine slept."""
    query = "SELECT phase, t0, t1 FROM store.interval WHERE run_id = %s AND phase IN ('sleep', 'wake') ORDER BY t0"
    rows = conn.execute(query, [run_no]).fetchall()
    return [(one[2], other[1]) for one, other in pairwise(rows) if (one[0], other[0]) == ("sleep", "wake")]


def step_seconds(conn: psycopg.Connection, run_no: int) -> float:
    """Return the median time between the first episodes of two neighbouring cohorts."""
    rows = conn.execute(
        "SELECT extract(epoch FROM min(started_at))::float8 FROM store.episode "
        "WHERE run_id = %s AND origin = 'train' GROUP BY cohort ORDER BY cohort",
        [run_no],
    ).fetchall()
    return statistics.median(later[0] - sooner[0] for sooner, later in pairwise(rows[1:]))


def phases(samples: Sequence[Sample], sleeps: Sequence[tuple[float, float]]) -> Iterator[tuple[str, Sample]]:
    """Tell of each sample between the first sleep and the last wake whether the engine slept."""
    for one in samples:
        if sleeps[0][0] <= one[0] <= sleeps[-1][1]:
            yield ("asleep" if any(since <= one[0] <= until for since, until in sleeps) else "awake"), one


def measure(report: Report, system: System, model: Path, steps: int, repeats: int) -> None:
    """Take the pairs and write the figures."""
    api, peaks = system.api(), {"colocated": [], "static": []}  # type: dict[str, list[float]]
    held: dict[str, list[Sample]] = {"awake": [], "asleep": []}

    def once(kind: str) -> float:
        run_no, samples = trained(api, system, kind, model, steps)
        peaks[kind].append(float(max(engine + trainer for _, engine, trainer in samples)))
        with psycopg.connect(system.database_url, autocommit=True) as conn:
            if kind == "colocated":
                for phase, one in phases(samples, asleep(conn, run_no)):
                    held[phase].append(one)
            return step_seconds(conn, run_no)

    steps_of = interleave({kind: lambda kind=kind: once(kind) for kind in peaks}, repeats)
    for phase, samples in held.items():
        report.figures[f"engine_{phase}_mb"] = statistics.median(one[1] for one in samples) / MB
        report.figures[f"trainer_while_{phase}_mb"] = statistics.median(one[2] for one in samples) / MB
    for kind, found in peaks.items():
        report.figures[f"{kind}_peak_mb"] = statistics.median(found) / MB
    report.ratio("peak_share", paired_ratios(peaks["colocated"], peaks["static"]))
    report.ratio("step_over_static", paired_ratios(steps_of["colocated"], steps_of["static"]))


def options(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's own."""
    parser.add_argument("--size", default="25m", choices=SIZES, help="size of both policies")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=5, help="pairs of runs")


def main() -> None:
    """Run it."""
    report = start("colocated", __doc__.splitlines()[0], options)
    given = report.settings
    size, steps, repeats = ("tiny", 4, 1) if report.quick else (given["size"], given["steps"], given["repeats"])
    with tempfile.TemporaryDirectory(prefix="flexmarl-colocated-") as folder:
        Path(folder).chmod(0o711)
        home, model = Path(folder) / "home", Path(folder) / "model"
        model.mkdir()
        make_model(model, str(size))
        environment = {"FLEXMARL_CPU_SHARES": "2", "FLEXMARL_CHILD_THREADS": "1", "FLEXMARL_MODEL_ROOTS": folder}
        with System(home, environment=environment) as system:
            measure(report, system, model, int(str(steps)), int(str(repeats)))
    report.finish()


if __name__ == "__main__":
    main()
