"""Server time of the list of runs, as a page and over REST, with thousands of runs: every filter, order and place.

Rows of runs and their live state are made by the database itself, without partitions: lists never read any. A tenth of
the runs have a reward series. Requests go through Django's own client in this process, so that a figure is the time
between request and complete answer in the web process, with all of its queries, without the network. The sides of
each row are asked in turns, so that noise of the machine falls on all of them alike.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import Report, start

from flexmarl.launcher.home import Home
from flexmarl.launcher.postgres import EmbeddedPostgres

WITH_SERIES = 10
STEPS = 200

FILL_RUNS = """
INSERT INTO runs_run (id, created_at, updated_at, version, no, key, project, name, owner_id, preset, template,
  environment, seed, spec, sources, note, tags, external_id)
SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7000' || '8000' || lpad(to_hex(n), 12, '0'))
    ::uuid,
  at, at, 1, 1000000 + n, 'run-' || n, 'default', 'run number ' || n, %(owner)s, 'flexmarl',
  CASE n %% 3 WHEN 0 THEN 'reference_game' ELSE 'arithmetic' END, 'reference_game', n,
  jsonb_set(jsonb_set(%(spec)s::jsonb, '{batch,tasks_per_step}', to_jsonb(8 * (1 + n %% 12))), '{seed}', to_jsonb(n)),
  '{}', '', CASE WHEN n %% 7 = 0 THEN ARRAY['baseline'] ELSE '{}'::varchar[] END, ''
FROM (SELECT n, now() - (%(runs)s - n) * interval '11 minutes' AS at FROM generate_series(1, %(runs)s) n) made
"""
FILL_STATES = """
INSERT INTO store.run_state (run_id, spec, status, step, progress, status_since, started_at, finished_at)
SELECT 1000000 + n, '{}',
  CASE WHEN n > %(runs)s - 30 THEN 'running' ELSE (ARRAY['completed', 'failed', 'cancelled', 'paused'])[1 + n %% 4] END,
  CASE WHEN n %% %(every)s = 0 THEN %(steps)s ELSE n %% 300 END,
  jsonb_build_object('max_steps', 300, 'reward', (n * 7919 %% 1000) / 1000.0, 'reward_first', 0.1, 'step_seconds', 2,
    'agents', jsonb_build_object('speaker', jsonb_build_object('reward', 0.4, 'version', 3))),
  now() - (%(runs)s - n) * interval '1 minute', now() - (%(runs)s - n) * interval '11 minutes', NULL
FROM generate_series(1, %(runs)s) n
"""
FILL_SERIES = """
INSERT INTO store.metric (run_id, name, agent, stat, step, value, at)
SELECT 1000000 + n, name, '', 'mean', step, (n * 7919 %% 1000) / 1000.0 * step / %(steps)s, now()
FROM generate_series(%(every)s, %(runs)s, %(every)s) n, generate_series(1, %(steps)s) step,
  unnest(ARRAY['reward/team', 'throughput/tokens']) name
"""

FILTERS = {
    "all": "",
    "status": "status=failed&status=paused",
    "mine": "owner=bench",
    "tag": "tag=baseline",
    "text": "q=number+77",
    "config_equal": "config.batch.tasks_per_step=64",
    "config_range": "config.batch.tasks_per_step__gte=64",
    "series": "metric.reward/team:last__gte=0.5",
    "started": "started_at__gte=2020-01-01T00:00:00Z",
    "by_reward": "ordering=-reward",
    "by_name": "ordering=name",
    "by_step": "ordering=step",
    "none": "q=nothing-is-called-so",
}
PART = {"HTTP_X_PART": "1"}


def main() -> None:
    """Fill a database, ask for the list in every way, report p50 and p95."""
    report = start("lists", __doc__ or "", _options)
    runs = 500 if report.quick else int(str(report.settings["runs"]))
    repeats = 3 if report.quick else int(str(report.settings["repeats"]))
    with tempfile.TemporaryDirectory(prefix="flexmarl-lists-") as folder:
        Path(folder).chmod(0o711)
        server = EmbeddedPostgres(Home(Path(folder)), settings={"fsync": "off", "shared_buffers": "128MB"})
        server.start()
        try:
            _time(report, server.url, runs, repeats)
        finally:
            server.stop()
    report.finish()


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=20, help="timings per request")


def _time(report: Report, url: str, runs: int, repeats: int) -> None:
    os.environ |= {
        "DATABASE_URL": url, "REDIS_URL": "redis://127.0.0.1:1/0",
        "DJANGO_SETTINGS_MODULE": "flexmarl.controlplane.settings.test", "FLEXMARL_SECRET_KEY": "benchmark",
    }  # fmt: skip
    import django

    django.setup()
    from lists_database import fill, people

    page, api = people()
    fill(runs, (FILL_RUNS, FILL_STATES, FILL_SERIES), {"every": WITH_SERIES, "steps": STEPS})
    assert len(api.get("/api/v1/runs").json()["results"]) == 50, "the list is empty"
    asked: dict[str, Callable[[], Any]] = {}
    for name, query in FILTERS.items():
        asked[f"page_{name}"] = lambda query=query: page.get(f"/runs?{query}", **PART)
        asked[f"api_{name}"] = lambda query=query: api.get(f"/api/v1/runs?{query}")
    asked["page_whole"] = lambda: page.get("/runs")
    asked["home"] = lambda: page.get("/")
    asked["api_deep"] = _deep(api)
    found: dict[str, list[float]] = {name: [] for name in asked}
    for turn in range(repeats + 1):
        for name, ask in asked.items():
            begun = time.perf_counter()
            answer = ask()
            spent = (time.perf_counter() - begun) * 1000
            assert answer.status_code == 200, (name, answer.content[:500])
            if turn:  # the first round warms caches of templates and plans
                found[name].append(spent)
    for name, values in found.items():
        report.figures[f"{name}_p50_ms"] = statistics.median(values)
        report.figures[f"{name}_p95_ms"] = sorted(values)[max(0, round(len(values) * 0.95) - 1)]
    worst = max(found, key=lambda name: report.figures[f"{name}_p95_ms"])
    report.figures["worst_p95_ms"] = report.figures[f"{worst}_p95_ms"]
    report.settings["worst"] = worst


def _deep(api: Any) -> Callable[[], Any]:
    """Ask for a page in the middle of the list, where an offset would be slow."""
    link = api.get("/api/v1/runs?limit=500&ordering=created_at&fields=key").json()["next"]
    for _ in range(5):
        link = api.get(link).json()["next"] or link if link else "/api/v1/runs"
    deep = (link or "/api/v1/runs").replace("limit=500", "limit=50").replace("&fields=key", "")
    return lambda: api.get(deep)


if __name__ == "__main__":
    main()
