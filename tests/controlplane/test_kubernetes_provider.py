"""Pools whose hosts are Jobs of Kubernetes: dry run, refusals, and what the loop does with its words.

The official client speaks over HTTP to what stands for a cluster (`tests/support/kubernetes_server.py`), which holds
manifests against the schemas that Kubernetes publishes.
"""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import yaml

from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.inventory.providers import kubernetes_api, source_of
from flexmarl.controlplane.runs.providing.working import can_submit
from flexmarl.store.control import host_jobs, nodes
from flexmarl.store.control.nodes import DeviceFacts, NodeFacts
from tests.support.further_node import eventually
from tests.support.kubernetes_cluster import KubernetesCluster, kubernetes_cluster
from tests.support.kubernetes_server import Refusal, now
from tests.support.providing import jobs, rounds

pytestmark = pytest.mark.django_db

OPTIONS = {"type": "kubernetes", "namespace": "flexmarl", "image": "registry.test/flexmarl:1", "max_nodes": 2}


@pytest.fixture
def cluster(tmp_path: Path, settings: Any) -> Iterator[KubernetesCluster]:
    settings.HOME = tmp_path / "home"
    settings.HOME.mkdir()
    settings.CLUSTER_KEY = "cluster-key-of-the-test"
    with kubernetes_cluster(tmp_path, runs=False, cpus=(8, 8)) as running:
        settings.KUBECONFIG = str(running.kubeconfig)
        yield running


@pytest.fixture
def options(cluster: KubernetesCluster, settings: Any) -> dict[str, Any]:
    return {**OPTIONS, "volume_claims": {str(settings.HOME): "flexmarl-home"}}


@pytest.fixture
def pool(admin_api: Any, options: dict[str, Any]) -> str:
    made = admin_api.post("/api/v1/pools", {"name": "batch", "provider": {**options, "min_nodes": 1}}, format="json")
    assert made.status_code == 201, made.content
    return "batch"


def placed(cluster: KubernetesCluster, api: Any) -> dict[str, Any]:
    """Wait until the cluster has made the pod of the one job, and return the job."""
    rounds(2)
    [job] = jobs(api)
    eventually(lambda: cluster.all("pods"))
    return job


def running(cluster: KubernetesCluster, api: Any) -> dict[str, Any]:
    """Let the pod of the one job run, and return the job."""
    job = placed(cluster, api)
    began = {"running": {"startedAt": now()}}
    cluster.set_status(job["name"], phase="Running", containerStatuses=[{"name": "host", "state": began}])
    rounds()
    return jobs(api)[0]


def test_the_dry_run_shows_the_manifest_what_the_api_server_says_and_no_secret(
    admin_api: Any, pool: str, cluster: KubernetesCluster, settings: Any
) -> None:
    cluster.quota_cpus = 16
    found = admin_api.get("/api/v1/pools/batch/submission").json()
    assert found["command"] == "POST /apis/batch/v1/namespaces/flexmarl/jobs"
    assert found["offers"] == ["Quota compute: cpu 0 of 16", "node-1: cpu 8", "node-2: cpu 8"]
    assert cluster.all("jobs") == [], "the API server was asked to check it, not to make it"
    rounds(2)
    [made] = cluster.all("jobs")
    [job] = jobs(admin_api)
    example = found["script"].replace(host_jobs.name_of(UUID(int=0)), job["name"]).replace(str(UUID(int=0)), job["id"])
    shown = yaml.safe_load(example)
    assert made["spec"] == shown["spec"]
    assert shown["metadata"].items() <= made["metadata"].items()
    kept = json.loads(Path(found["settings_file"]).read_text())
    secrets = {kept[name] for name in ("DATABASE_URL", "FLEXMARL_CLUSTER_KEY")}
    assert not [secret for secret in secrets if secret in json.dumps([found, made])]


def test_a_dry_run_says_what_the_cluster_would_refuse(admin_api: Any, pool: str, cluster: KubernetesCluster) -> None:
    cluster.denied = {("create", "jobs"), ("list", "nodes")}
    found = admin_api.get("/api/v1/pools/batch/submission").json()
    assert 'cannot create resource "jobs"' in found["notices"][-1]
    assert "Bind the Role of docs/clusters.md" in found["notices"][-1]
    assert found["offers"] == [], "nodes need not be shown to this account"


def test_a_host_waits_in_the_words_of_the_scheduler_works_and_is_cancelled(
    admin_api: Any, pool: str, cluster: KubernetesCluster
) -> None:
    cluster.nodes = {"node-1": 1}
    job = placed(cluster, admin_api)
    eventually(lambda: cluster.pod_of(job["name"])["status"].get("conditions"))
    rounds()
    [job] = jobs(admin_api)
    assert (job["state"], job["native"]) == ("pending", job["name"])
    assert job["reason"] == "PENDING (Unschedulable): 0/1 nodes are available: 1 Insufficient cpu."
    cluster.nodes = {"node-1": 8}
    eventually(lambda: cluster.pod_of(job["name"])["spec"].get("nodeName"))
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "registry.test/x"'}}
    cluster.set_status(job["name"], containerStatuses=[{"name": "host", "state": waiting}])
    rounds()
    assert jobs(admin_api)[0]["reason"] == 'PENDING (ImagePullBackOff): Back-off pulling image "registry.test/x"'
    job = running(cluster, admin_api)
    [state] = [one["state"] for one in cluster.pod_of(job["name"])["status"]["containerStatuses"]]
    assert (job["state"], job["place"]) == ("running", "node-1")
    assert job["started_at"][:19] == state["running"]["startedAt"][:19]
    assert admin_api.post(f"{job['url']}/actions/cancel").status_code == 200
    rounds()
    eventually(lambda: not cluster.all("jobs"))
    rounds()
    ended = next(row for row in jobs(admin_api) if row["id"] == job["id"])
    assert (ended["state"], ended["reason"]) == ("ended", "DELETED")


def test_a_quota_that_is_used_up_is_named_by_the_event_of_the_job(
    admin_api: Any, pool: str, cluster: KubernetesCluster
) -> None:
    cluster.quota_cpus = 1
    rounds(2)
    eventually(lambda: cluster.events)
    rounds()
    [job] = jobs(admin_api)
    assert job["state"] == "pending"
    assert job["reason"].startswith("PENDING (FailedCreate): Error creating: pods")
    assert "exceeded quota: compute, requested: cpu=2, used: cpu=0, limited: cpu=1" in job["reason"]


def test_a_job_that_was_never_noted_is_the_same_job(admin_api: Any, pool: str, cluster: KubernetesCluster) -> None:
    rounds(2)
    conn = store_connection()
    conn.execute("UPDATE store.host_job SET native = '', state = 'requested'")
    rounds()
    [job] = jobs(admin_api)
    assert (job["state"], job["native"]) == ("pending", job["name"]), "it was found by its name"
    assert len([call for call in cluster.calls if call.startswith("POST")]) == 1
    cluster.denied = {("list", "jobs")}
    conn.execute("UPDATE store.host_job SET native = '', state = 'requested'")
    rounds()
    assert jobs(admin_api)[0]["native"] == job["name"], "the API server says that it was made already"
    assert len([call for call in cluster.calls if call.startswith("POST")]) == 2
    assert len(cluster.all("jobs")) == 1


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (
            {"containerStatuses": [{"state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]},
            "FAILED (OOMKilled, exit code 137)",
        ),
        (
            {"reason": "Evicted", "message": "The node was low on resource: memory."},
            "FAILED (Evicted): The node was low on resource: memory.",
        ),
        (
            {
                "containerStatuses": [
                    {"state": {"terminated": {"exitCode": 78, "reason": "Error", "message": "a\nallocated: no home\n"}}}
                ]
            },
            "FAILED (Error, exit code 78): allocated: no home",
        ),
    ],
)
def test_a_host_that_fails_says_how(
    admin_api: Any, pool: str, cluster: KubernetesCluster, status: dict[str, Any], words: str
) -> None:
    job = running(cluster, admin_api)
    cluster.set_status(job["name"], phase="Failed", **status)
    rounds()
    failed = next(row for row in jobs(admin_api) if row["id"] == job["id"])
    assert (failed["state"], failed["reason"]) == ("failed", words)


def test_a_pod_that_is_evicted_is_drained_at_once(admin_api: Any, pool: str, cluster: KubernetesCluster) -> None:
    job = running(cluster, admin_api)
    found = [DeviceFacts(f"batch-1.cpu{n}", "cpu", n, "CPU", 2**30, "batch") for n in range(2)]
    nodes.register_node(store_connection(), NodeFacts("batch-1", "127.0.0.1:1", "a", "1"), found)
    cluster.evict(job["name"])
    rounds()
    [job] = [row for row in jobs(admin_api) if row["id"] == job["id"]]
    assert (job["state"], job["why"]) == ("leaving", "Kubernetes ends its pod: Eviction API: evicting")
    left_s = time.mktime(time.strptime(job["leaving_at"][:19], "%Y-%m-%dT%H:%M:%S")) - time.mktime(time.gmtime())
    assert 280 < left_s < 302, "it has its grace"
    assert admin_api.get("/api/v1/nodes/batch-1").json()["state"] == "drained"


@pytest.mark.parametrize(
    ("change", "reason", "step"),
    [
        ({"denied": {("create", "jobs")}}, 'cannot create resource "jobs"', "Bind the Role of docs/clusters.md"),
        ({"provider": {"namespace": "nowhere"}}, 'namespaces "nowhere" not found', "Set namespace to one that"),
        (
            {"fails": Refusal(403, "Forbidden", 'jobs.batch "x" is forbidden: exceeded quota: jobs, requested: 1')},
            "exceeded quota: jobs",
            "lower max_nodes",
        ),
        (
            {"fails": Refusal(403, "Forbidden", 'admission webhook "policy" denied the request: no latest tags')},
            "no latest tags",
            "An admission rule",
        ),
        (
            {"fails": Refusal(422, "Invalid", 'Job.batch "x" is invalid: spec.template.spec.tolerations[0]: no')},
            "tolerations[0]",
            "Set tolerations to",
        ),
        ({"provider": {"volume_claims": {}}}, "volume_claims: no claim is mounted at", "=flexmarl-home"),
        ({"provider": {"context": "other"}}, "other", "correct context"),
        ({"settings": {"KUBECONFIG": "/nowhere/config"}}, "/nowhere/config cannot be read", "Set FLEXMARL_KUBECONFIG"),
        ({"settings": {"KUBECONFIG": ""}}, "FLEXMARL_KUBECONFIG is not set", "Set FLEXMARL_KUBECONFIG"),
        ({"token": "another"}, "Unauthorized", "Renew the credentials"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_must_be_changed_first_is_a_refusal_with_the_next_step(
    admin_api: Any,
    cluster: KubernetesCluster,
    options: dict[str, Any],
    settings: Any,
    change: dict[str, Any],
    reason: str,
    step: str,
) -> None:
    given = {**options, "min_nodes": 1, **change.get("provider", {})}
    assert admin_api.post("/api/v1/pools", {"name": "batch", "provider": given}, format="json").status_code == 201
    for name, value in change.get("settings", {}).items():
        setattr(settings, name, value)
    cluster.denied, cluster.fails = change.get("denied", set()), change.get("fails")
    if token := change.get("token"):
        cluster.write_kubeconfig(
            yaml.safe_load(cluster.kubeconfig.read_text())["clusters"][0]["cluster"]["server"], token
        )
    rounds(2)
    [job] = jobs(admin_api)
    assert job["state"] == "refused"
    assert reason in job["reason"]
    assert step in job["next_step"]
    notices = admin_api.get("/api/v1/pools/batch/submission").json()["notices"]
    assert any(reason in notice and step in notice for notice in notices)


def test_without_the_client_it_is_said_what_to_install(
    admin_api: Any, pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubernetes_api._client.cache_clear()
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    rounds(2)
    [job] = jobs(admin_api)
    assert (job["state"], "is not installed" in job["reason"]) == ("refused", True)
    assert "pip install 'flexmarl[kubernetes]'" in job["next_step"]


@pytest.mark.parametrize(
    "fails",
    [
        Refusal(500, "InternalError", "etcdserver: leader changed"),
        Refusal(429, "TooManyRequests", "too many requests"),
        Refusal(403, "Forbidden", 'jobs.batch is forbidden: User "x" cannot list resource "jobs"'),
        Refusal(401, "Unauthorized", "Unauthorized"),
    ],
    ids=lambda fails: str(fails.status["code"]),
)
def test_a_cluster_that_does_not_answer_ends_nothing(
    admin_api: Any, pool: str, cluster: KubernetesCluster, fails: Refusal
) -> None:
    running(cluster, admin_api)
    cluster.fails = fails
    rounds(2)
    [job] = jobs(admin_api)
    assert (job["state"], job["ended_at"]) == ("running", None)
    assert str(fails) in job["reason"]
    assert job["next_step"]
    cluster.fails = None
    rounds()
    [job] = jobs(admin_api)
    assert (job["state"], job["reason"], job["next_step"]) == ("running", "RUNNING", "")


def test_an_api_server_that_is_away_or_hangs_ends_nothing(
    admin_api: Any, pool: str, cluster: KubernetesCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    running(cluster, admin_api)
    monkeypatch.setattr(kubernetes_api, "ANSWERS_S", 0.3)
    began = time.monotonic()
    with cluster.guard:
        rounds()
    [job] = jobs(admin_api)
    assert (job["state"], "timed out" in job["reason"]) == ("running", True)
    assert time.monotonic() - began < 15
    cluster.write_kubeconfig("http://127.0.0.1:1")
    rounds()
    [job] = jobs(admin_api)
    assert (job["state"], "Connection refused" in job["reason"], bool(job["next_step"])) == ("running", True, True)


def test_one_cluster_is_one_source(options: dict[str, Any]) -> None:
    assert source_of({**options, "context": "a"}) == "kubernetes a flexmarl"
    assert source_of({**options, "context": ""}) != source_of({**options, "context": "", "namespace": "other"})


def test_who_has_credentials_can_submit(settings: Any) -> None:
    settings.RAY_PYTHON, settings.KUBECONFIG, settings.COMMAND_ENVIRONMENT = "", "", {"PATH": "/nowhere"}
    settings.IN_KUBERNETES = False
    assert not can_submit()
    settings.KUBECONFIG = "/etc/flexmarl/kubeconfig"
    assert can_submit()
    settings.KUBECONFIG, settings.IN_KUBERNETES = "", True
    assert can_submit()
