"""A pool whose hosts are jobs of a real Slurm: it grows for a run, drains at the time limit, and the run goes on."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import slurm
from tests.support.further_node import WITHIN_S, eventually
from tests.support.system import Api, System

pytestmark = [
    pytest.mark.services,
    pytest.mark.slow,
    pytest.mark.skipif(bool(slurm.missing()), reason=slurm.missing()),
]

PROVIDER = {
    "type": "slurm",
    "partition": "train",
    "devices": 2,
    "cpus": 2,
    "time_limit_minutes": 30,
    "notice_s": 120,
    "max_nodes": 1,
    "idle_s": 10,
}
PACED = {"latency": {"scale_s": 1.0, "sigma": 0.0}}
"""The run lasts as long as the cluster takes; between its episodes the cores are the cluster's."""
SMALL = {
    "name": "grows",
    "template": "reference_game",
    "overrides": {
        "budget": {"train_steps": 5000, "target": None},
        "environment": PACED,
        "evaluation": {"every_steps": 1000, "tasks": 8},
        "batch": {"tasks_per_step": 8, "episodes_per_task": 4, "micro_batch_groups": 4, "rollout_groups": 4},
        "resources": {"rollout_pool": "batch", "training_pool": "batch"},
    },
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[slurm.Cluster]:
    with slurm.cluster(tmp_path_factory.mktemp("slurm") / "cluster") as running:
        yield running


KILLS = """#!/bin/sh
{sbatch} "$@"
code=$?
[ -e {folder}/killed ] || {{ : > {folder}/killed; kill -9 $PPID; }}
exit $code
"""
"""Submits, and the first time kills who submitted, before it can note the job's number."""


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, cluster: slurm.Cluster) -> Iterator[System]:
    folder: Path = tmp_path_factory.mktemp("provided")
    folder.chmod(0o711)
    kills = folder / "bin" / "sbatch"
    kills.parent.mkdir()
    kills.write_text(KILLS.format(sbatch=shutil.which("sbatch"), folder=folder))
    kills.chmod(0o755)
    path = f"{kills.parent}:{os.environ['PATH']}"
    environment = {"FLEXMARL_NODE": "front", "PATH": path, **cluster.environment}
    with System(folder / "home", environment=environment) as running:
        yield running


@pytest.fixture(scope="module")
def api(system: System) -> Api:
    api = system.api()
    api.post("/pools", {"name": "batch", "provider": PROVIDER, "device_hour_price": 2.0})
    return api


def jobs(api: Api) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = api.get("/pools/batch/jobs")["results"]
    return rows


def test_a_pool_grows_drains_at_the_time_limit_and_the_run_goes_on(
    api: Api, system: System, cluster: slurm.Cluster
) -> None:
    run = api.create_run(**SMALL)
    first = eventually(lambda: next((job for job in jobs(api) if job["registered"]), None))
    assert (first["state"], first["node"]) == ("running", "batch-1")
    api.wait(run["id"], lambda r: r["status"] == "running" and r["step"] >= 2, WITHIN_S)
    cluster.shorten(first["native"])
    leaving = eventually(lambda: next((job for job in jobs(api) if job["state"] == "leaving"), None))
    assert leaving["id"] == first["id"]
    second = eventually(
        lambda: next((job for job in jobs(api) if job["node"] == "batch-2" and job["registered"]), None)
    )
    step = api.run(run["id"])["step"]
    eventually(lambda: all(job["state"] == "ended" for job in jobs(api) if job["id"] == first["id"]))
    assert {node["name"] for node in api.get("/nodes")["results"]} == {"front", second["node"]}
    moved = api.wait(run["id"], lambda r: r["status"] == "running" and r["step"] >= step + 3, WITHIN_S)
    assert moved["reason"] == ""
    api.act(run["id"], "kill")
    eventually(lambda: all(job["state"] == "ended" for job in jobs(api)), 60)
    assert (system.home.parent / "killed").exists(), "the first submission was not noted"
    assert sorted(name for _, name, _ in cluster.jobs()) == sorted(job["name"] for job in jobs(api)), "each once"
    assert cluster.living() == []
    assert api.consistency(run["id"])["ok"]
