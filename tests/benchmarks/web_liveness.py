"""Whether a web process that is busy stays up: 100 requests a second and 200 sockets beside a training run.

`failed` counts answers of class 5xx and broken connections, `restarts` processes that the supervisor replaced; both
have to be 0. `refused` counts 429: the load comes from one caller, whose queue is bounded. `healthz_*` and `readyz_*`
are the two probes, asked once a second; `*_failed` counts answers but 200. Five minutes with `--seconds 300`. Reads are
those of many open pages and scripts, four addresses, so that those that wait share answers; with `--distinct` none can.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
from harness import Report, start

from tests.support.busy_web import UNLIMITED, Seen, hung, load_average, strain
from tests.support.system import System


def main() -> None:
    """Start an installation and a run, strain it, report."""
    report = start("web_liveness", __doc__ or "", _options)
    options = report.settings
    seconds = 20.0 if report.quick else float(str(options["seconds"]))
    with tempfile.TemporaryDirectory(prefix="flexmarl-busy-") as folder:
        Path(folder).chmod(0o711)
        with System(Path(folder) / "home", environment=UNLIMITED) as system:
            endless = {"budget": {"train_steps": 1_000_000, "target": None}}
            run = system.api().create_run(name="beside", template="reference_game", spec=endless)
            system.api().wait(run["id"], lambda found: found["step"] > 0, 180)
            sockets, per_s = int(str(options["sockets"])), int(str(options["per_s"]))
            distinct = bool(options["distinct"])
            seen = strain(system, run, sockets=sockets, per_s=per_s, seconds=seconds, distinct=distinct)
            _figures(report, seen)
            report.figures |= {"restarts": len(seen.replaced), "hung": len(hung(system)), "steps_trained": seen.steps}
            report.figures["recovered_s"] = seen.recovered_s
            for path, probes in seen.probes.items():
                name = path.strip("/")
                report.figures[f"{name}_p50_ms"] = float(np.median([took for took, _ in probes])) * 1e3
                report.figures[f"{name}_longest_ms"] = max(took for took, _ in probes) * 1e3
                report.figures[f"{name}_failed"] = sum(status != 200 for _, status in probes)
            report.figures["load_average"] = load_average()
    report.finish()


def _figures(report: Report, seen: Seen) -> None:
    report.figures |= {"answers": seen.statuses.total(), "failed": seen.failed, "refused": seen.refused}
    report.figures["answer_p50_ms"] = float(np.median(seen.seconds)) * 1e3
    report.figures["answer_p99_ms"] = float(np.quantile(seen.seconds, 0.99)) * 1e3


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sockets", type=int, default=200)
    parser.add_argument("--per-s", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--distinct", action="store_true", help="no two reads are alike")


if __name__ == "__main__":
    main()
