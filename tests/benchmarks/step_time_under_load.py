"""Does watching slow training down? The same run with and without pages and scripts on the web process.

One whole system trains one run. In turns, a window of its steps passes with nobody watching and another with open pages
(sockets that listen to the run) and scripts that read over REST. A figure is the
mean step time of a window, from the run's own steps; the ratio is watched over unwatched, pair by pair, with both ends
of its 90 % bootstrap interval. It is 1 within noise when both ends enclose 1.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np
from harness import interleave, paired_ratios, start
from web_site import MIX, LoadProcess, make_token, sign_in

from tests.support.system import Api, System

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
            cookie = sign_in(system.url, "admin", system.password)
            token = make_token(system.url, cookie)
            paths = [path.format(key=run["key"]) for path in MIX]

            def watched() -> float:
                topics = [f"run:{run['id']}"]
                load = LoadProcess(system.url, cookie, token, topics, paths, sockets=sockets, rate=rate)
                try:
                    time.sleep(1.0)
                    seconds = step_seconds(api, run["id"], window)
                    seen = load.end()
                finally:
                    load.kill()
                failed = sum(status != 200 for _, status in seen["answers"])
                report.figures["rest_failed"] = report.figures.get("rest_failed", 0.0) + failed
                report.figures["rest_answered"] = report.figures.get("rest_answered", 0.0) + len(seen["answers"])
                return seconds

            def alone() -> float:
                time.sleep(1.0)
                return step_seconds(api, run["id"], window)

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


def step_seconds(api: Api, run_id: str, window_s: float) -> float:
    """Mean time of the steps that the run makes in a window, between two of its steps."""
    first, began = _next_step(api, run_id)
    last, ended = first, began
    while ended - began < window_s:
        last, ended = _next_step(api, run_id)
    return (ended - began) / max(1, last - first)


def _next_step(api: Api, run_id: str) -> tuple[int, float]:
    """Wait for a step to be committed; the poll costs both sides of the comparison the same."""
    before = api.run(run_id)["step"]
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        time.sleep(0.05)
        step = api.run(run_id)["step"]
        if step != before:
            return step, time.monotonic()
    raise TimeoutError("the run makes no step")


if __name__ == "__main__":
    main()
