"""How long until a run plays, on a pool whose host must first be asked of a cluster? One machine, a real Ray cluster.

The same run is submitted in turns to the installation's own node (`local`), to a pool of a Ray cluster that has no host
(`cold`) and to one that keeps one (`warm`); nothing else runs meanwhile. `_s` is from the request that submits the run
to the first group of episodes that has settled, by the clock of the store, and `_more_s` what a pool takes longer than
the installation's node, turn by turn. The parts of a cold start follow one another: until the host was asked for
(`asked`), the cluster had its job (`submitted`), its processes began (`began`), its node agent had registered
(`registered`), the run had its devices (`granted`), its first child served (`served`) and a group settled (`played`).

    FLEXMARL_RAY_PYTHON=$PWD/.venv-ray/bin/python .venv/bin/python tests/benchmarks/provider_start.py
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from harness import interleave, start

from tests.support import ray_cluster
from tests.support.further_node import eventually
from tests.support.system import Api, System

WITHIN_S = 300.0
PROVIDER = {"type": "ray", "devices": 2, "cpus": 2, "max_nodes": 1, "idle_s": 3600, "rollout_workers": 1}
POOLS = {"local": "default", "cold": "cold", "warm": "warm"}
MOMENTS = ("asked", "submitted", "began", "registered", "granted", "served", "played")
_STARTS = """
SELECT extract(epoch FROM j.requested_at)::float8, extract(epoch FROM j.submitted_at)::float8,
  extract(epoch FROM j.started_at)::float8, extract(epoch FROM n.registered_at)::float8
FROM store.host_job j JOIN store.node n ON n.name = j.node WHERE j.pool = %s ORDER BY j.requested_at DESC LIMIT 1
"""
_PLAYS = """
SELECT (SELECT extract(epoch FROM min(granted_at))::float8 FROM store.lease WHERE run_id = %(run)s),
  (SELECT extract(epoch FROM min(at))::float8 FROM store.event WHERE run_id = %(run)s AND kind = 'child_ready'),
  (SELECT extract(epoch FROM min(at))::float8 FROM store.event WHERE run_id = %(run)s AND kind = 'group_settled')
"""


def main() -> None:
    """Submit runs in turns, report what was waited for."""
    report = start("provider_start", __doc__ or "", _options)
    if ray_cluster.MISSING:
        raise SystemExit(ray_cluster.MISSING)
    repeats = 1 if report.quick else int(str(report.settings["repeats"]))
    report.settings["load_before"] = round(os.getloadavg()[0], 2)
    parts: dict[str, list[float]] = {name: [] for name in MOMENTS}
    environment = {"FLEXMARL_RAY_PYTHON": ray_cluster.RAY_PYTHON}
    with tempfile.TemporaryDirectory(prefix="flexmarl-start-") as folder, ray_cluster.ray_cluster((2, 2)) as cluster:
        Path(folder).chmod(0o711)
        with System(Path(folder) / "home", environment=environment) as system:
            api = system.api()
            for pool, least in (("cold", 0), ("warm", 1)):
                options = {**PROVIDER, "min_nodes": least, "address": cluster.address}
                options["access"] = report.settings["access"]
                api.post("/pools", {"name": pool, "provider": options})
            eventually(lambda: [job["registered"] for job in _jobs(api, "warm")] == [True])
            template = str(report.settings["template"])
            waits: dict[str, Callable[[], float]] = {
                name: partial(_first_sample, system, pool, template, parts) for name, pool in POOLS.items()
            }
            for wait in waits.values():
                wait()  # the first of each also fills caches of the machine
            for kept in parts.values():
                kept.clear()
            found = interleave(waits, repeats)
    for name, times in found.items():
        report.figures[f"{name}_s"] = statistics.median(times)
        more = [one - here for one, here in zip(times, found["local"], strict=True)]
        if name != "local":
            report.figures[f"{name}_more_s"], report.figures[f"{name}_more_most_s"] = statistics.median(more), max(more)
    for name, times in parts.items():
        report.figures[f"cold_{name}_s"] = statistics.median(times)
    report.finish()


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--template", default="reference_game")
    parser.add_argument("--access", choices=("shared_folder", "node_token"), default="shared_folder")


def _jobs(api: Api, pool: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = api.get(f"/pools/{pool}/jobs")["results"]
    return [row for row in rows if not row["ended_at"]]


def _first_sample(system: System, pool: str, template: str, parts: dict[str, list[float]]) -> float:
    """Submit a run, and end it and the host of a pool that keeps none; returns seconds to the first settled group."""
    api = system.api()
    overrides = {
        "seed": 1,
        "budget": {"train_steps": 1, "target": None},
        "evaluation": {"every_steps": 1000, "tasks": 4},
        "resources": {"rollout_pool": pool, "training_pool": pool},
    }
    submitted = time.time()
    run = api.create_run(name=f"start-{pool}", template=template, overrides=overrides)
    ended = api.finish(run["id"], WITHIN_S)
    if ended["status"] != "completed":
        raise RuntimeError(f"{pool}: {ended['status']} {ended['reason_text']}")
    with psycopg.connect(system.database_url, autocommit=True) as conn:
        plays = conn.execute(_PLAYS, {"run": ended["no"]}).fetchone()
        starts = conn.execute(_STARTS, [pool]).fetchone() if pool == "cold" else None
    assert plays is not None
    if starts is not None:
        moments = [submitted, *starts, *plays]
        for name, before, after in zip(MOMENTS, moments[:-1], moments[1:], strict=True):
            parts[name].append(after - before)
        for job in _jobs(api, pool):
            api.post(f"/pools/{pool}/jobs/{job['id']}/actions/cancel")
        eventually(lambda: not _jobs(api, pool))
    else:
        eventually(
            lambda: all(job["leases"] == 0 for job in _jobs(api, pool)) if pool == "warm" else api.devices_free()
        )
    return float(plays[2] - submitted)


if __name__ == "__main__":
    main()
