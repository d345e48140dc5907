"""A pool whose hosts are Jobs of what stands for a Kubernetes cluster, asked by the official client.

Its kubelet runs the pods' commands as processes of this machine: a run trains on them, a pod is killed and another
evicted, the run goes on, and nothing is left. Pods share a folder with the installation, or have a node token and
nothing of it.
"""

import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.further_node import WITHIN_S, eventually
from tests.support.kubernetes_cluster import KubernetesCluster, kubernetes_cluster
from tests.support.ray_cluster import processes_of
from tests.support.system import Api, System

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.full]

SMALL = {
    "budget": {"train_steps": 5000, "target": None},
    "environment": {"latency": {"scale_s": 1.0, "sigma": 0.0}},
    "evaluation": {"every_steps": 1000, "tasks": 8},
    "batch": {"tasks_per_step": 8, "episodes_per_task": 4, "micro_batch_groups": 4, "rollout_groups": 4},
}
SECRETS = ("DATABASE_URL", "REDIS_URL", "FLEXMARL_CLUSTER_KEY")
TOKENS = "/node-tokens?pool=apart"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesCluster]:
    with kubernetes_cluster(tmp_path_factory.mktemp("cluster"), runs=True, cpus=(2, 2)) as running:
        yield running


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, cluster: KubernetesCluster) -> Iterator[System]:
    home = tmp_path_factory.mktemp("provided") / "home"
    environment = {"FLEXMARL_NODE": "front", "FLEXMARL_KUBECONFIG": str(cluster.kubeconfig)}
    with System(home, environment=environment) as running:
        yield running


@pytest.fixture(scope="module")
def api(system: System) -> Api:
    api = system.api()
    provider = {
        "type": "kubernetes",
        "namespace": "flexmarl",
        "image": "registry.test/flexmarl:1",
        "idle_s": 10,
        "grace_s": 300,
    }
    shared = {"volume_claims": {str(system.home.parent): "flexmarl-home"}}
    for pool, access in (("batch", shared), ("apart", {"access": "node_token"})):
        api.post("/pools", {"name": pool, "provider": {**provider, **access}, "device_hour_price": 2.0})
    return api


def jobs(api: Api, pool: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = api.get(f"/pools/{pool}/jobs")["results"]
    return rows


def registered(api: Api, pool: str, *but: str) -> dict[str, Any]:
    """Wait for a host at work that is none of some jobs."""
    found: dict[str, Any] = eventually(
        lambda: next((job for job in jobs(api, pool) if job["registered"] and job["id"] not in but), None)
    )
    return found


def home_without_secrets(system: System, cluster: KubernetesCluster, job: dict[str, Any]) -> Path:
    """Return the home of a host that has its token from the Secret of its Job, and nothing of the installation."""
    [secret] = [one for one in cluster.all("secrets") if one["metadata"]["name"] == job["name"]]
    [made] = [one for one in cluster.all("jobs") if one["metadata"]["name"] == job["name"]]
    assert [one["uid"] for one in secret["metadata"]["ownerReferences"]] == [made["metadata"]["uid"]]
    token = secret["stringData"]["token"]
    assert token not in json.dumps([made, cluster.pod_of(job["name"])])
    pod = psutil.Process(cluster.process_of(job["name"]))
    found = [pod.environ()]
    for process in pod.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # some live for a moment
            found.append(process.environ())
    assert found[0]["FLEXMARL_NODE_TOKEN"] == token
    assert not [name for own in found for name in SECRETS if name in own]
    assert not [own for own in found if any(str(system.home) in value for value in own.values())]
    [home] = {Path(own["FLEXMARL_HOME"]) for own in found if "FLEXMARL_HOME" in own}
    return home


@pytest.mark.parametrize("pool", ["batch", "apart"])
def test_a_run_trains_on_pods_one_is_killed_one_is_evicted_and_nothing_is_left(
    api: Api, system: System, cluster: KubernetesCluster, pool: str
) -> None:
    providing, homes = system.processes()["simulations"], []
    cluster.calls.clear()
    cluster.once_made = lambda: os.kill(providing, signal.SIGKILL)
    overrides = {**SMALL, "resources": {"rollout_pool": pool, "training_pool": pool}}
    run = api.create_run(name=f"grows {pool}", template="reference_game", overrides=overrides)
    first = registered(api, pool)
    assert (first["state"], first["native"]) == ("running", first["name"])
    assert system.processes()["simulations"] != providing, "it never learned that the first Job was made"
    made = [call.rpartition("/")[2] for call in cluster.calls if call.startswith("POST")]
    assert made == {"batch": ["jobs"], "apart": ["jobs", "jobs", "secrets"]}[pool], "the Job was found by its name"
    trained = api.wait(run["id"], lambda r: r["status"] == "running" and r["step"] >= 2, WITHIN_S)
    if pool == "apart":
        homes.append(home_without_secrets(system, cluster, first))
    os.kill(cluster.process_of(first["name"]), signal.SIGKILL)
    killed = eventually(lambda: next((j for j in jobs(api, pool) if j["id"] == first["id"] and j["ended_at"]), None))
    assert (killed["state"], killed["reason"]) == ("failed", "FAILED (Error, exit code 137)")
    second = registered(api, pool, first["id"])
    moved = api.wait(
        run["id"], lambda r: r["status"] == "running" and r["step"] >= trained["step"] + 2 and not r["reason"], WITHIN_S
    )
    if pool == "apart":
        homes.append(home_without_secrets(system, cluster, second))
    cluster.evict(second["name"])
    leaving = eventually(lambda: next((job for job in jobs(api, pool) if job["state"] == "leaving"), None))
    assert (leaving["id"], "Kubernetes ends its pod" in leaving["why"]) == (second["id"], True)
    began = time.monotonic()
    third = registered(api, pool, first["id"], second["id"])
    assert cluster.pod_of(second["name"])["status"]["phase"] == "Running", "what runs there can move"
    eventually(lambda: all(job["ended_at"] for job in jobs(api, pool) if job["id"] == second["id"]))
    evicted = next(job for job in jobs(api, pool) if job["id"] == second["id"])
    assert (evicted["state"], time.monotonic() - began < 250) == ("ended", True), "it went once it was empty"
    api.wait(run["id"], lambda r: r["status"] == "running" and r["step"] >= moved["step"] + 2, WITHIN_S)
    assert {node["name"] for node in api.get("/nodes")["results"]} == {"front", third["node"]}
    api.act(run["id"], "kill")
    eventually(lambda: all(job["ended_at"] for job in jobs(api, pool)), 90)
    eventually(lambda: not [pod for pod in cluster.all("pods") if pod["status"]["phase"] == "Running"])
    assert third["name"] not in {job["metadata"]["name"] for job in cluster.all("jobs")}
    assert [one for job in jobs(api, pool) for one in processes_of(system.home, job["id"])] == []
    assert api.consistency(run["id"])["ok"]
    if pool == "apart":
        shutil.rmtree(homes[0])  # that of the killed one; the evicted one took its own along
        assert not homes[1].exists()
        ended = {job["id"]: "revoked" for job in jobs(api, pool)}
        eventually(lambda: {one["job"]: one["state"] for one in api.get(TOKENS)["results"]} == ended, 30)
        assert third["name"] not in {secret["metadata"]["name"] for secret in cluster.all("secrets")}
