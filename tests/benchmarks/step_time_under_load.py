"""Does watching slow training down? The same run with and without pages and scripts on the web process.

One whole system trains one run. In turns, a window of its steps passes with nobody watching and another with open pages
(sockets that listen to the run) and scripts that read over REST. The web process and those who watch have a core of
their own, engine, trainer, workers and driver another, always; the servers may use both. A figure is the mean step time
of a window, from the times that the run itself noted for its steps; the ratio is watched over unwatched, pair by pair,
with both ends of its 90 % bootstrap interval. It is 1 within noise when both ends enclose 1.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
from harness import interleave, paired_ratios, start
from web_site import MIX, LoadProcess, make_token, sign_in

from tests.support.system import Api, System

WATCHING, TRAINING = [0], [1]
"""Cores."""
SPEC = {"budget": {"train_steps": 100_000}, "name": "watched"}


def main() -> None:
    """Train, watch in turns, report the ratio."""
    report = start("step_time_under_load", __doc__ or "", _options)
    pairs = 1 if report.quick else int(str(report.settings["pairs"]))
    window = 4.0 if report.quick else float(str(report.settings["window_s"]))
    sockets = 20 if report.quick else int(str(report.settings["sockets"]))
    rate = 5 if report.quick else int(str(report.settings["rest_per_s"]))
    report.settings["load_before"] = round(os.getloadavg()[0], 2)
    with tempfile.TemporaryDirectory(prefix="flexmarl-watched-") as folder:
        Path(folder).chmod(0o711)
        limits = {"FLEXMARL_API_REQUESTS_PER_MINUTE": "1000000"}
        with System(Path(folder) / "home", environment=limits) as system:
            api = system.api()
            run = api.create_run(template="reference_game", overrides=SPEC, name="watched")
            api.wait(run["id"], lambda row: row["step"] >= 5, 240)
            pin(system)
            cookie = sign_in(system.url, "admin", system.password)
            token = make_token(system.url, cookie)
            paths = [path.format(key=run["key"]) for path in MIX]

            def watched() -> float:
                topics = [f"run:{run['id']}"]
                load = LoadProcess(system.url, cookie, token, topics, paths, sockets=sockets, rate=rate)
                try:
                    psutil.Process(load.pid).cpu_affinity(WATCHING)
                    time.sleep(1.0)
                    began = time.time()
                    time.sleep(window)
                    ended = time.time()
                    seen = load.end()
                finally:
                    load.kill()
                failed = sum(status != 200 for _, status in seen["answers"])
                report.figures["rest_failed"] = report.figures.get("rest_failed", 0.0) + failed
                report.figures["rest_answered"] = report.figures.get("rest_answered", 0.0) + len(seen["answers"])
                return step_seconds(api, run["id"], began, ended)

            def alone() -> float:
                time.sleep(1.0)
                began = time.time()
                time.sleep(window)
                return step_seconds(api, run["id"], began, time.time())

            times = interleave({"alone": alone, "watched": watched}, pairs)
            api.act(run["id"], "kill")
    ratios = paired_ratios(times["watched"], times["alone"])
    drawn = np.random.default_rng(0).choice(np.asarray(ratios), size=(2000, len(ratios)))
    report.ratio("step_time_ratio", ratios)
    report.figures |= {
        "step_time_ratio_upper": float(np.quantile(np.median(drawn, axis=1), 0.95)),
        "alone_ms": 1000 * float(np.median(times["alone"])),
        "watched_ms": 1000 * float(np.median(times["watched"])),
        "sockets": float(sockets),
    }
    report.finish()


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--window-s", type=float, default=20.0)
    parser.add_argument("--sockets", type=int, default=300)
    parser.add_argument("--rest-per-s", type=int, default=50)


def pin(system: System) -> None:
    """Give the web process one core and those who train the other; new children inherit theirs."""
    for name, pid in system.processes().items():
        cores = WATCHING if name == "web" else TRAINING
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            process.cpu_affinity(cores)


def step_seconds(api: Api, run_id: str, began: float, ended: float) -> float:
    """Mean time of the steps that ended in a window, by the run's own clock."""
    window = f"from={began}&to={ended}&max_points=5000"
    (series,) = api.get(f"/runs/{run_id}/series/data?names=reward/team&stat=mean&x=time&{window}")["series"]
    times = series["x"]
    if len(times) < 3:
        raise TimeoutError("the run makes no steps")
    return float((times[-1] - times[0]) / (len(times) - 1))


if __name__ == "__main__":
    main()
