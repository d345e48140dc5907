"""Server time of charts and catalogues over long series.

One run has a series of a million points, another a million points in a thousand series. What is timed is the whole
answer in the web process: the request through Django's handler with its permission checks, the reads, and the JSON.
`_max` is the slowest of the timed requests. The third figure is what the summaries cost the writer: a step of thirty
points with them over one without.
"""

import gc
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import ROOT, interleave, paired_ratios, start

from flexmarl.contracts.decisions import Metric
from flexmarl.launcher.home import Home
from flexmarl.launcher.postgres import EmbeddedPostgres

LONG, WIDE_SERIES = 1_000_000, 1000


def main() -> None:
    report = start("series", __doc__ or "")
    points = 50_000 if report.quick else LONG
    with tempfile.TemporaryDirectory(prefix="flexmarl-series-") as folder:
        home = Home(Path(folder) / "home")
        postgres = EmbeddedPostgres(home)
        os.environ["DATABASE_URL"] = postgres.start()
        try:
            measure(report, points, rounds=3 if report.quick else 15)
        finally:
            postgres.stop()
    report.settings["points"] = points
    report.finish()


def measure(report: Any, points: int, rounds: int) -> None:
    """Fill two runs, then time the requests that a person waits for."""
    client, long, wide = _site(points)
    base, other = f"/api/v1/runs/{long.key}/series", f"/api/v1/runs/{wide.key}/series"
    asked = {
        "chart_ms": f"{base}/data?names=user/long",
        "chart_by_time_ms": f"{base}/data?names=user/long&x=time",
        "chart_window_ms": f"{base}/data?names=user/long&from={points // 3}&to={points // 2}",
        "chart_buckets_ms": f"{base}/data?names=user/long&buckets=true&max_points=300",
        "catalogue_long_ms": base,
        "catalogue_wide_ms": other,
    }
    for name, path in asked.items():
        times = [_answered(client, path) for _ in range(rounds + 1)][1:]
        report.figures[name] = statistics.median(times)
        report.figures[f"{name.removesuffix('_ms')}_max_ms"] = max(times)
    report.ratio("write_with_summaries", _writing(rounds))


def _site(points: int) -> tuple[Any, Any, Any]:
    """Make a person's client and two runs of about `points` points each."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "flexmarl.controlplane.settings.test")
    os.environ.setdefault("PYTHONPATH", str(ROOT))
    import django

    django.setup()
    from django.core.management import call_command
    from rest_framework.test import APIClient

    from flexmarl.controlplane.accounts.actions import create_token
    from flexmarl.controlplane.accounts.queries import actor_of_user
    from flexmarl.controlplane.experiments.plans import Draft
    from flexmarl.controlplane.runs import actions
    from tests.support.controlplane import SPEC, make_person

    call_command("migrate", verbosity=0)
    actor = actor_of_user(make_person("ada"))
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {create_token(actor, 'bench')[1]}")
    long, wide = (actions.create_run(actor, Draft(spec=SPEC)) for _ in range(2))
    _fill(long.no, "'user/long'", 1, points)
    _fill(wide.no, "'user/s' || n", WIDE_SERIES, points // WIDE_SERIES)
    return client, long, wide


def _fill(run: int, name: str, series: int, steps: int) -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(
            f"""
            INSERT INTO store.metric (run_id, name, agent, stat, step, value, at, samples)
            SELECT %s, {name}, '', 'mean', s, sin(s / 5000.0) + random() * 0.2, now() + s * interval '1 second', s * 8
            FROM generate_series(1, %s) n, generate_series(1, %s) s
            """,
            [run, series, steps],
        )
        cursor.execute("ANALYZE store.metric, store.metric_span")


def _answered(client: Any, path: str) -> float:
    """Time one request in milliseconds."""
    gc.collect()
    begun = time.perf_counter()
    answer = client.get(path)
    spent = 1000 * (time.perf_counter() - begun)
    assert answer.status_code == 200, answer.content[:300]
    return spent


def _writing(rounds: int) -> list[float]:
    """Write steps of thirty points with and without the triggers; return the ratios."""
    from django.db import connection

    from flexmarl.controlplane.common.store import store_connection
    from flexmarl.store.telemetry.metric_ingest import put_points

    at = {"with": 0, "without": 0}
    run = {"with": 9001, "without": 9002}

    def steps(side: str) -> float:
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER TABLE store.metric {'ENABLE' if side == 'with' else 'DISABLE'} TRIGGER USER")
        begun = time.perf_counter()
        for _ in range(40):
            at[side] += 1
            points = [(1000.0 + at[side], Metric(f"user/s{n}", at[side], float(n))) for n in range(30)]
            put_points(store_connection(), run[side], points)
        return time.perf_counter() - begun

    found = interleave({"with": lambda: steps("with"), "without": lambda: steps("without")}, max(5, rounds))
    return paired_ratios(found["with"], found["without"])


if __name__ == "__main__":
    main()
