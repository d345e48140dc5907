"""Hosts of Kubernetes with a node token: the Secret of a Job, made after it, made once, and gone with it."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import yaml

from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.inventory.models import NodeToken
from flexmarl.store.control import host_jobs
from tests.support.further_node import eventually
from tests.support.kubernetes_cluster import KubernetesCluster, kubernetes_cluster
from tests.support.kubernetes_server import Refusal
from tests.support.providing import jobs, rounds

pytestmark = pytest.mark.django_db

OPTIONS = {
    "type": "kubernetes",
    "namespace": "flexmarl",
    "image": "registry.test/flexmarl:1",
    "min_nodes": 1,
    "access": "node_token",
    "checkout": "/srv/flexmarl",
}


@pytest.fixture
def cluster(tmp_path: Path, settings: Any) -> Iterator[KubernetesCluster]:
    settings.HOME = tmp_path / "home"
    settings.HOME.mkdir()
    settings.CLUSTER_KEY = "cluster-key-of-the-test"
    settings.HOST_SETTINGS = {"FLEXMARL_CONTROL_URL": "https://flexmarl.example.org"}
    with kubernetes_cluster(tmp_path, runs=False, cpus=(8,)) as running:
        settings.KUBECONFIG = str(running.kubeconfig)
        yield running


@pytest.fixture
def pool(admin_api: Any, cluster: KubernetesCluster) -> str:
    made = admin_api.post("/api/v1/pools", {"name": "batch", "provider": OPTIONS}, format="json")
    assert made.status_code == 201, made.content
    return "batch"


def posts(cluster: KubernetesCluster) -> list[str]:
    """Return what was made, in order."""
    return [call.rpartition("/")[2] for call in cluster.calls if call.startswith("POST") and "dryRun" not in call]


def test_the_token_is_in_a_secret_that_goes_with_the_job(admin_api: Any, pool: str, cluster: KubernetesCluster) -> None:
    found = admin_api.get("/api/v1/pools/batch/submission").json()
    assert (found["settings_file"], found["notices"]) == ("", []), "no claim has the folder of the installation"
    assert (cluster.all("jobs"), cluster.all("secrets")) == ([], []), "both were checked alone"
    rounds(2)
    [job], [made], [secret] = jobs(admin_api), cluster.all("jobs"), cluster.all("secrets")
    assert posts(cluster) == ["jobs", "secrets"]
    token = secret["stringData"]["token"]
    assert NodeToken.objects.get(key=token[4:16]).node == "batch-1"
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job["name"], "uid": made["metadata"]["uid"]}
    assert (secret["metadata"]["name"], secret["metadata"]["ownerReferences"]) == (job["name"], [owner])
    [container] = made["spec"]["template"]["spec"]["containers"]
    variables = {one.pop("name"): one for one in container["env"]}
    assert variables["FLEXMARL_NODE_TOKEN"] == {"valueFrom": {"secretKeyRef": {"name": job["name"], "key": "token"}}}
    assert variables["FLEXMARL_CONTROL_URL"] == {"value": "https://flexmarl.example.org"}
    assert (container["workingDir"], "--settings" in container["command"]) == ("/srv/flexmarl", False)
    example = found["script"].replace(host_jobs.name_of(UUID(int=0)), job["name"]).replace(str(UUID(int=0)), job["id"])
    shown = list(yaml.safe_load_all(example.replace("UID_OF_THE_JOB", owner["uid"]).replace("fmn_...", token)))
    assert shown[1].items() <= {**secret, "metadata": shown[1]["metadata"]}.items()
    assert token not in json.dumps([found, made, job])
    assert base64.b64encode(token.encode()).decode() not in json.dumps([found, made])
    assert admin_api.post(f"{job['url']}/actions/cancel").status_code == 200
    rounds()
    eventually(lambda: not cluster.all("jobs"))
    assert cluster.all("secrets") == []


def test_who_was_killed_between_job_and_secret_makes_the_secret_of_the_same_job(
    admin_api: Any, pool: str, cluster: KubernetesCluster
) -> None:
    rounds(2)
    [secret] = cluster.all("secrets")
    conn = store_connection()
    conn.execute("UPDATE store.host_job SET native = '', state = 'requested'")
    with cluster.guard:
        del cluster.objects["secrets", secret["metadata"]["name"]]
    rounds()
    assert jobs(admin_api)[0]["state"] == "pending"
    [again] = cluster.all("secrets")
    assert again["stringData"] == secret["stringData"]
    assert again["metadata"]["ownerReferences"] == secret["metadata"]["ownerReferences"]
    conn.execute("UPDATE store.host_job SET native = '', state = 'requested'")
    rounds()
    assert (len(cluster.all("jobs")), len(cluster.all("secrets"))) == (1, 1)
    assert posts(cluster) == ["jobs", "secrets"] * 3
    conn.execute("UPDATE store.host_job SET native = '', state = 'requested', unwanted = true")
    rounds()
    eventually(lambda: secret["metadata"]["name"] not in {one["metadata"]["name"] for one in cluster.all("jobs")})


def test_a_job_that_can_have_no_secret_is_taken_back_and_the_right_is_named(
    admin_api: Any, pool: str, cluster: KubernetesCluster
) -> None:
    cluster.denied = {("create", "secrets")}
    rounds(2)
    [job] = jobs(admin_api)
    assert (job["state"], 'cannot create resource "secrets"' in job["reason"]) == ("refused", True)
    assert "Bind the Role of docs/clusters.md" in job["next_step"]
    [notice] = admin_api.get("/api/v1/pools/batch/submission").json()["notices"]
    assert 'cannot create resource "secrets"' in notice
    eventually(lambda: not cluster.all("jobs"))
    cluster.denied = set()
    store_connection().execute("UPDATE store.host_job SET try_at = clock_timestamp()")
    rounds()
    assert jobs(admin_api)[0]["state"] == "pending"
    assert len(cluster.all("secrets")) == 1


def test_a_secret_whose_making_was_not_answered_is_made_again(
    admin_api: Any, pool: str, cluster: KubernetesCluster
) -> None:
    def fail() -> None:
        cluster.fails = Refusal(500, "InternalError", "etcdserver: leader changed")

    cluster.once_made = fail  # the Job is made, and nothing is answered after that
    rounds(2)
    [job] = jobs(admin_api)
    assert (job["state"], len(cluster.all("jobs")), cluster.all("secrets")) == ("requested", 1, [])
    cluster.fails = None
    rounds()
    assert (jobs(admin_api)[0]["state"], len(cluster.all("secrets"))) == ("pending", 1)
