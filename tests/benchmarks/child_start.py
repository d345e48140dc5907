"""What the start of an engine costs: forked from a process that has imported torch, and as a process of its own.

`start_s` is from the request to the ready line, `cpu_s` what the processor spent on the child until then. Both sides
take turns in one go. `start_ratio` and `cpu_ratio`: of a process of its own over a fork.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import harness
import psutil

from tests.support.engines import RunningEngine
from workers.children import child_environment
from workers.forking import ForkServerThread
from workers.programs import IMPORTED, QUIET, confined


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--starts", type=int, default=15, help="of each side")


def one_start(home: Path, forks: ForkServerThread | None) -> tuple[float, float]:
    """Start an engine and end it. Returns seconds and processor seconds until it was ready."""
    home.mkdir()
    began = time.perf_counter()
    engine = RunningEngine("torch", home, forks=forks)
    try:
        engine.ready()
        took, used = time.perf_counter() - began, psutil.Process(engine.child.pid).cpu_times()
        return took, used.user + used.system
    finally:
        engine.child.stop()


def main() -> None:
    report = harness.start("child_start", __doc__ or "", options)
    paths = os.pathsep.join(filter(None, sys.path))
    os.environ["PYTHONPATH"] = paths
    forks = ForkServerThread(IMPORTED, child_environment({**confined(1), **QUIET}))
    forks.start()
    assert forks.settled(120.0)
    starts = 3 if report.quick else report.settings["starts"]
    assert isinstance(starts, int)
    with tempfile.TemporaryDirectory(prefix="flexmarl-bench-") as folder:
        pairs = [
            (one_start(Path(folder) / f"f{number}", forks), one_start(Path(folder) / f"p{number}", None))
            for number in range(starts)
        ]
    for index, name in enumerate(("start", "cpu")):
        forked, own = ([pair[side][index] for pair in pairs] for side in (0, 1))
        report.figures[f"{name}_s_forked"] = harness.median_and_lower_end(forked)[0]
        report.figures[f"{name}_s_process"] = harness.median_and_lower_end(own)[0]
        report.ratio(f"{name}_ratio", [slow / fast for fast, slow in zip(forked, own, strict=True)])
    report.finish()


if __name__ == "__main__":
    main()
