"""What one machine pays: time to the address, time to the first reward point, memory at rest and while training.

Memory is the proportional set size (PSS) summed over the supervisor, its servers and every process of the launch: pages
shared by several processes count once. `install_s` is taken over from the command line, since it needs a fresh machine.
"""

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import harness
import psutil

from flexmarl.launcher.state import marked
from tests.support.system import TERMINAL, Api, System

POINT_TIMEOUT_S = 180.0


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--starts", type=int, default=3, help="first starts, each in a new home")
    parser.add_argument(
        "--install-s", type=float, default=0.0, help="measured time of the set-up command's installation"
    )


def pss(process: psutil.Process) -> float:
    """Return the proportional set size in MiB; 0 for a process that just ended."""
    try:
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:"))


def memory(system: System) -> dict[str, float]:
    """Return MiB by kind of process."""
    state = json.loads((system.home / "up.json").read_text())
    names = {entry["pid"]: entry["name"] for entry in state["processes"]}
    supervisor = psutil.Process(state["pid"])
    found = {process.pid: process for process in [supervisor, *marked(state["launch"])]}
    for service in supervisor.children():
        if service.pid not in names:
            found |= {process.pid: process for process in [service, *service.children(recursive=True)]}
    total: dict[str, float] = {}
    for pid, process in found.items():
        name = "supervisor" if pid == supervisor.pid else names.get(pid) or kind_of(process)
        total[name] = total.get(name, 0.0) + pss(process)
    return total


def kind_of(process: psutil.Process) -> str:
    """Name a server or child by its name and its command line; forks of one process share the latter."""
    words = " ".join([process.name(), *process.cmdline()])
    kinds = {
        "rollout.engines": "engine", "training.serve": "trainer", "fork_server": "fork server",
        "postgres": "postgres", "valkey": "valkey",
    }  # fmt: skip
    return next((kind for word, kind in kinds.items() if word in words), "other")


def first_point(api: Api, run_id: str) -> None:
    """Wait until the run has a reward to show."""
    deadline = time.monotonic() + POINT_TIMEOUT_S
    while not any(x for x, _ in api.series(run_id, "reward/team").values()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"no reward point: {api.run(run_id)['reason_text']}")
        time.sleep(0.1)


def one_start(home: Path) -> dict[str, float]:
    """Start with the demo in a new home; return its figures."""
    began = time.monotonic()
    with System(home) as system:
        figures = {"to_url_s": time.monotonic() - began}
        time.sleep(2.0)
        rest = memory(system)
        api = system.api()
        run = api.create_run(name="footprint", template="reference_game")
        started = time.monotonic()
        first_point(api, run["id"])
        figures["start_to_first_reward_s"] = time.monotonic() - started
        training = memory(system)
    figures |= {f"rest_{name}_mib": value for name, value in rest.items()}
    figures |= {f"training_{name}_mib": value for name, value in training.items()}
    return figures | {"rest_total_mib": sum(rest.values()), "training_total_mib": sum(training.values())}


def going_on(api: Api) -> list[dict[str, Any]]:
    return [run for run in api.get("/runs")["results"] if run["status"] not in TERMINAL]


def demo_start(home: Path) -> dict[str, float]:
    """Time `up --demo` from the command to the first reward point, in a new home and once more in the same."""
    figures = {}
    for which in ("first", "second"):
        began = time.monotonic()
        with System(home, options=("--demo",)) as system:
            figures[f"{which}_start_to_url_s"] = time.monotonic() - began
            api = system.api()
            deadline = time.monotonic() + POINT_TIMEOUT_S
            while not (found := going_on(api)) and time.monotonic() < deadline:
                time.sleep(0.1)
            first_point(api, found[0]["id"])
            figures[f"{which}_start_to_reward_s"] = time.monotonic() - began
            api.act(found[0]["id"], "kill")
            api.finish(found[0]["id"], 30)
            stopping = time.monotonic()
        figures[f"{which}_stop_s"] = time.monotonic() - stopping
    return figures


def main() -> None:
    report = harness.start("footprint", __doc__ or "", options)
    starts = 1 if report.quick else int(str(report.settings["starts"]))
    results: list[dict[str, float]] = []
    for number in range(starts):
        home = Path(tempfile.mkdtemp(prefix="flexmarl-footprint-"))
        home.chmod(0o711)
        try:
            results.append({**one_start(home / "rest"), **demo_start(home / "demo")})
        finally:
            shutil.rmtree(home, ignore_errors=True)
        print(f"start {number + 1} of {starts} done")
    names = dict.fromkeys(name for result in results for name in result)
    report.figures = {name: statistics.median(r[name] for r in results if name in r) for name in names}
    installed = float(str(report.settings.pop("install_s")))
    report.figures |= {"install_s": installed} if installed else {}
    report.finish()


if __name__ == "__main__":
    main()
