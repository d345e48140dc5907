"""A pool whose hosts are Jobs of what stands for a Kubernetes cluster, asked by the official client.

Its kubelet runs the pods' commands as processes of this machine: a run trains on them, a pod is killed and another
evicted, the run goes on, and nothing is left.
"""

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.further_node import WITHIN_S, eventually
from tests.support.kubernetes_cluster import KubernetesCluster, kubernetes_cluster
from tests.support.ray_cluster import processes_of
from tests.support.system import Api, System

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.full]

SMALL = {
    "name": "grows",
    "template": "reference_game",
    "overrides": {
        "budget": {"train_steps": 5000, "target": None},
        "environment": {"latency": {"scale_s": 1.0, "sigma": 0.0}},
        "evaluation": {"every_steps": 1000, "tasks": 8},
        "batch": {"tasks_per_step": 8, "episodes_per_task": 4, "micro_batch_groups": 4, "rollout_groups": 4},
        "resources": {"rollout_pool": "batch", "training_pool": "batch"},
    },
}


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
        "volume_claims": {str(system.home.parent): "flexmarl-home"},
        "idle_s": 10,
        "grace_s": 300,
    }
    api.post("/pools", {"name": "batch", "provider": provider, "device_hour_price": 2.0})
    return api


def jobs(api: Api) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = api.get("/pools/batch/jobs")["results"]
    return rows


def registered(api: Api, *but: str) -> dict[str, Any]:
    """Wait for a host at work that is none of some jobs."""
    found: dict[str, Any] = eventually(
        lambda: next((job for job in jobs(api) if job["registered"] and job["id"] not in but), None)
    )
    return found


def test_a_run_trains_on_pods_one_is_killed_one_is_evicted_and_nothing_is_left(
    api: Api, system: System, cluster: KubernetesCluster
) -> None:
    providing = system.processes()["simulations"]
    cluster.once_made = lambda: os.kill(providing, signal.SIGKILL)
    run = api.create_run(**SMALL)
    first = registered(api)
    assert (first["state"], first["native"]) == ("running", first["name"])
    assert system.processes()["simulations"] != providing, "it never learned that the first Job was made"
    assert len([call for call in cluster.calls if call.startswith("POST")]) == 1, "the Job was found by its name"
    trained = api.wait(run["id"], lambda r: r["status"] == "running" and r["step"] >= 2, WITHIN_S)
    os.kill(cluster.process_of(first["name"]), signal.SIGKILL)
    killed = eventually(lambda: next((j for j in jobs(api) if j["id"] == first["id"] and j["ended_at"]), None))
    assert (killed["state"], killed["reason"]) == ("failed", "FAILED (Error, exit code 137)")
    second = registered(api, first["id"])
    moved = api.wait(
        run["id"], lambda r: r["status"] == "running" and r["step"] >= trained["step"] + 2 and not r["reason"], WITHIN_S
    )
    cluster.evict(second["name"])
    leaving = eventually(lambda: next((job for job in jobs(api) if job["state"] == "leaving"), None))
    assert (leaving["id"], "Kubernetes ends its pod" in leaving["why"]) == (second["id"], True)
    began = time.monotonic()
    third = registered(api, first["id"], second["id"])
    assert cluster.pod_of(second["name"])["status"]["phase"] == "Running", "what runs there can move"
    eventually(lambda: all(job["ended_at"] for job in jobs(api) if job["id"] == second["id"]))
    evicted = next(job for job in jobs(api) if job["id"] == second["id"])
    assert (evicted["state"], time.monotonic() - began < 250) == ("ended", True), "it went once it was empty"
    api.wait(run["id"], lambda r: r["status"] == "running" and r["step"] >= moved["step"] + 2, WITHIN_S)
    assert {node["name"] for node in api.get("/nodes")["results"]} == {"front", third["node"]}
    api.act(run["id"], "kill")
    eventually(lambda: all(job["ended_at"] for job in jobs(api)), 90)
    eventually(lambda: not [pod for pod in cluster.all("pods") if pod["status"]["phase"] == "Running"])
    assert third["name"] not in {job["metadata"]["name"] for job in cluster.all("jobs")}
    assert processes_of(system.home) == []
    assert api.consistency(run["id"])["ok"]
