"""First view of a run's Events tab and its consistency over REST: a small run beside a large one, in turns.

Rows are made by the database itself. Requests go through Django's own client in this process, so a figure is the time
between request and whole answer in the web process. The check itself, which no request waits for, is timed apart, with
the longest time between two of its statements. `--list-reads` also times every other read of a run.
"""

import argparse
import os
import statistics
import tempfile
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from harness import Report, start

from flexmarl.launcher.home import Home
from flexmarl.launcher.postgres import EmbeddedPostgres

SMALL = 1_600
READS = (
    "", "/events", "/checkpoints", "/timeline", "/trajectories", "/metrics", "/agents", "/load",
    "/attempts", "/config", "/events?view=decisions", "/events?view=transitions", "/what-if",
)  # fmt: skip
CALLS = (
    "", "/events", "/notes", "/logs", "/consistency", "/store", "/cohorts", "/lag", "/decisions", "/transitions",
    "/pipeline", "/bubble", "/load", "/engines", "/swaps", "/timeline", "/trajectories", "/trajectories/facets",
    "/series", "/series/data?names=reward/team", "/advisories", "/attempts",
    "/checkpoints", "/versions", "/agents",
)  # fmt: skip


def main() -> None:
    """Fill a database with two runs, ask for both in turns, check both."""
    report = start("events_page", __doc__ or "", _options)
    with tempfile.TemporaryDirectory(prefix="flexmarl-events-") as folder:
        Path(folder).chmod(0o711)
        server = EmbeddedPostgres(Home(Path(folder)), settings={"fsync": "off", "shared_buffers": "128MB"})
        server.start()
        try:
            _measure(report, server.url)
        finally:
            server.stop()
    report.finish()


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--samples", type=int, default=500_000, help="rows of the large run")
    parser.add_argument("--repeats", type=int, default=20, help="timings per request")
    parser.add_argument("--list-reads", action="store_true", help="also every other page and call of a run, once")


def _measure(report: Report, url: str) -> None:
    os.environ |= {
        "DATABASE_URL": url, "REDIS_URL": "", "DJANGO_SETTINGS_MODULE": "flexmarl.controlplane.settings.test",
        "FLEXMARL_SECRET_KEY": "benchmark",
    }  # fmt: skip
    import django

    django.setup()
    from large_run import fill
    from lists_database import people

    from flexmarl.controlplane.common.store import database_url
    from flexmarl.controlplane.runs.models import Run
    from flexmarl.store.connection import connect

    page, api = people()
    large = 8_000 if report.quick else int(str(report.settings["samples"]))
    runs = {}
    with connect(database_url(), "benchmark", statement_s=0) as conn:
        for name, samples in (("small", SMALL), ("large", large)):
            made = api.post("/api/v1/runs", {"template": "reference_game"}, headers={"Idempotency-Key": name}).json()
            runs[name] = Run.objects.get(key=made["key"])
            _partitions(conn, runs[name].no)
            fill(conn, runs[name].no, samples)
        _views(report, runs, page, api, 3 if report.quick else int(str(report.settings["repeats"])))
        for name, run in runs.items():
            _check(report, conn, name, run)
    if report.settings["list_reads"]:
        _every_read(report, runs, page, api)


def _partitions(conn: Any, run_no: int) -> None:
    """Make the run's tables, where making the run did not."""
    from flexmarl.store import partitions

    for table in partitions.PARTITIONED:
        if conn.execute("SELECT to_regclass(%s)", [f"store.{table}_{run_no}"]).fetchone() == (None,):
            partitions.attach(conn, table, run_no)


def _views(report: Report, runs: dict[str, Any], page: Any, api: Any, repeats: int) -> None:
    found: dict[str, list[float]] = {}
    for turn in range(repeats + 1):
        for name, run in runs.items():
            asked = {
                f"events_{name}": lambda run=run: page.get(f"/runs/{run.key}/events"),
                f"consistency_{name}": lambda run=run: api.get(f"/api/v1/runs/{run.key}/consistency"),
            }
            for key, ask in asked.items():
                spent = _timed(ask)
                if turn:  # the first round warms caches of templates and plans
                    found.setdefault(key, []).append(spent)
    for key, values in found.items():
        report.figures[f"{key}_p50_ms"] = statistics.median(values)
        report.figures[f"{key}_worst_ms"] = max(values)
    pairs = zip(found["events_large"], found["events_small"], strict=True)
    report.ratio("events_large_to_small", [large / small for large, small in pairs])


def _timed(ask: Any) -> float:
    begun = time.perf_counter()
    answer = ask()
    spent = (time.perf_counter() - begun) * 1000
    assert answer.status_code == 200, answer.content[:500]
    return spent


def _check(report: Report, conn: Any, name: str, run: Any) -> None:
    """Time a whole check, and the longest stretch in which it could not be cancelled."""
    from flexmarl.store.reads.report import full_report

    heard = [time.perf_counter()]
    found = full_report(conn, run.no, lambda done, now: heard.append(time.perf_counter()))
    assert all(check.ok for check in found.checks), [check for check in found.checks if not check.ok]
    report.figures[f"check_{name}_s"] = heard[-1] - heard[0]
    report.figures[f"check_{name}_longest_s"] = max(b - a for a, b in pairwise(heard))
    report.settings[f"rows_{name}"] = found.counts.samples


def _every_read(report: Report, runs: dict[str, Any], page: Any, api: Any) -> None:
    """Time every page and call once: those that grow with the run stand out."""
    asked = [("page", page, "/runs", path) for path in READS] + [("api", api, "/api/v1/runs", path) for path in CALLS]
    for kind, client, root, path in asked:
        for name, run in runs.items():
            ask = partial(client.get, f"{root}/{run.key}{path}")
            try:
                report.figures[f"{kind}{path or '/'}_{name}_ms"] = _timed(ask)
            except AssertionError as error:
                report.settings[f"{kind}{path}_{name}"] = str(error)[:200]


if __name__ == "__main__":
    main()
