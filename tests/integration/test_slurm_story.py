"""Pools whose hosts are jobs of a real Slurm: one grows for a run, drains at the time limit, and the run goes on.

Hosts share a folder with the installation, or have a node token, a home and a checkout of their own and no secret.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support import slurm
from tests.support.further_node import WITHIN_S, eventually
from tests.support.ray_cluster import processes_of
from tests.support.system import ROOT, Api, System

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
SECRETS = ("DATABASE_URL", "REDIS_URL", "FLEXMARL_CLUSTER_KEY")
PACED = {"latency": {"scale_s": 1.0, "sigma": 0.0}}
"""The run lasts as long as the cluster takes; between its episodes the cores are the cluster's."""
SMALL = {
    "budget": {"train_steps": 5000, "target": None},
    "environment": PACED,
    "evaluation": {"every_steps": 1000, "tasks": 8},
    "batch": {"tasks_per_step": 8, "episodes_per_task": 4, "micro_batch_groups": 4, "rollout_groups": 4},
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
def apart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder as hosts that share none have it: their homes, and a checkout of their own."""
    folder: Path = tmp_path_factory.mktemp("apart")
    for part in ("platform", "workers"):
        shutil.copytree(ROOT / part, folder / "checkout" / part)
    return folder


@pytest.fixture(scope="module")
def api(system: System, apart: Path) -> Iterator[Api]:
    api = system.api()
    token = {"access": "node_token", "home": str(apart / "home"), "checkout": str(apart / "checkout")}
    for pool, access in (("batch", {}), ("apart", token)):
        api.post("/pools", {"name": pool, "provider": {**PROVIDER, **access}, "device_hour_price": 2.0})
    yield api
    for job in jobs(api, "apart"):
        Path(f"/tmp/flexmarl-{job['native']}.log").unlink(missing_ok=True)  # outside of what pytest removes


def jobs(api: Api, pool: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = api.get(f"/pools/{pool}/jobs")["results"]
    return rows


def submitted(api: Api, pool: str, overrides: dict[str, Any]) -> dict[str, Any]:
    """Submit a run of the reference game to a pool."""
    resources = {"rollout_pool": pool, "training_pool": pool}
    run: dict[str, Any] = api.create_run(
        name=f"on {pool}", template="reference_game", overrides={**overrides, "resources": resources}
    )
    return run


def tokens(api: Api, pool: str) -> dict[str, str]:
    """Return the states of a pool's node tokens by their jobs."""
    return {one["job"]: one["state"] for one in api.get(f"/node-tokens?pool={pool}")["results"]}


@pytest.mark.parametrize("pool", ["batch", pytest.param("apart", marks=pytest.mark.full)])
def test_a_pool_grows_drains_at_the_time_limit_and_the_run_goes_on(
    api: Api, system: System, cluster: slurm.Cluster, pool: str
) -> None:
    run = submitted(api, pool, SMALL)
    first = eventually(lambda: next((job for job in jobs(api, pool) if job["registered"]), None))
    assert (first["state"], first["node"]) == ("running", f"{pool}-1")
    api.wait(run["id"], lambda r: r["status"] == "running" and r["step"] >= 2, WITHIN_S)
    cluster.shorten(first["native"])
    leaving = eventually(lambda: next((job for job in jobs(api, pool) if job["state"] == "leaving"), None))
    assert leaving["id"] == first["id"]
    second = eventually(
        lambda: next((job for job in jobs(api, pool) if job["node"] == f"{pool}-2" and job["registered"]), None)
    )
    step = api.run(run["id"])["step"]
    eventually(lambda: all(job["state"] == "ended" for job in jobs(api, pool) if job["id"] == first["id"]))
    assert {node["name"] for node in api.get("/nodes")["results"]} == {"front", second["node"]}
    moved = api.wait(run["id"], lambda r: r["status"] == "running" and r["step"] >= step + 3, WITHIN_S)
    assert moved["reason"] == ""
    if pool == "apart":
        assert tokens(api, pool) == {first["id"]: "revoked", second["id"]: "active"}
    api.act(run["id"], "kill")
    eventually(lambda: all(job["state"] == "ended" for job in jobs(api, pool)), 60)
    assert (system.home.parent / "killed").exists(), "the first submission was not noted"
    asked = [job["name"] for job in jobs(api, pool)]
    assert sorted(name for _, name, _ in cluster.jobs() if name in asked) == sorted(asked), "each once"
    assert cluster.living() == []
    assert api.consistency(run["id"])["ok"]


@pytest.mark.full
def test_a_host_with_a_token_trains_to_the_target_without_secrets_and_leaves_its_home_alone(
    api: Api, system: System, cluster: slurm.Cluster, apart: Path
) -> None:
    former = {job["id"] for job in jobs(api, "apart")}
    run = submitted(api, "apart", {"seed": 1})
    job = eventually(lambda: next((one for one in jobs(api, "apart") if one["leases"]), None))
    api.wait(run["id"], lambda r: r["step"] >= 1, WITHIN_S)
    script = cluster.run("scontrol", "write", "batch_script", job["native"], "-")
    [token] = [line.partition("=")[2] for line in script.splitlines() if line.startswith("export FLEXMARL_NODE_TOKEN=")]
    assert token.startswith("fmn_")
    found = processes(job)
    commands = [" ".join(command) for command, _ in found]
    assert any("workers.node" in one for one in commands)
    published = json.loads((system.home / "run" / "environment.json").read_text())
    hidden = [str(published[name]) for name in SECRETS] + [system.password, str(system.home)]
    everything = [script, *commands, *(f"{name}={value}" for _, own in found for name, value in own.items())]
    assert not [one for one in everything if any(secret in one for secret in hidden)]
    assert not [name for _, own in found for name in SECRETS if name in own]
    shown = cluster.run("scontrol", "show", "job", "--details", job["native"])
    assert not [one for one in (*commands, shown) if token in one], "it is in the script, and in their environment"
    home = apart / "home" / job["node"]
    assert {own["FLEXMARL_HOME"] for _, own in found if "FLEXMARL_HOME" in own} == {str(home)}
    assert {own["PYTHONPATH"] for _, own in found} == {f"{apart}/checkout:{apart}/checkout/platform"}
    ended = api.finish(run["id"], 3 * WITHIN_S)
    assert ended["status"] == "completed", ended["reason_text"]
    assert ended["step"] < 300, "by its target, not by its budget"
    assert api.consistency(run["id"])["ok"]
    eventually(lambda: all(one["ended_at"] for one in jobs(api, "apart")), 120)
    asked = {one["id"] for one in jobs(api, "apart")} - former
    assert {one["state"] for one in jobs(api, "apart")} == {"ended"}
    eventually(lambda: {tokens(api, "apart")[one] for one in asked} == {"revoked"})
    assert asked == {job["id"]}, "one host did all of it"
    assert (processes_of(system.home, job["id"]), cluster.living()) == ([], [])
    assert (home / "logs" / "node.log").exists(), "a home that somebody chose stays"


def processes(job: dict[str, Any]) -> list[tuple[list[str], dict[str, str]]]:
    """Return command and environment of what Slurm has started for a job, and of everything below it."""
    own = {"workers.allocated", job["id"]}
    [top] = [one for one in psutil.process_iter(["cmdline"]) if own <= set(one.info["cmdline"] or ())]
    found = []
    for process in (top, *top.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):  # some live for a moment
            found.append((process.cmdline(), process.environ()))
    return found
