"""Options of pools of Kubernetes, and the manifests that are made of them, by the schemas that Kubernetes publishes."""

from typing import Any
from uuid import UUID

import kubernetes_validate
import pytest

from flexmarl.controlplane.inventory.providers import HostRequest
from flexmarl.controlplane.inventory.providers.kubernetes_jobs import job_of
from flexmarl.store.control import host_jobs

OPTIONS = {"type": "kubernetes", "namespace": "flexmarl", "image": "registry.test/flexmarl:1", "max_nodes": 2}


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("changes", "pointer", "words"),
    [
        ({"image": ""}, "/provider/image", "registry.example.org/flexmarl:1.4"),
        ({"image": None}, "/provider/image", ""),
        ({"namespace": "Team A"}, "/provider/namespace", ""),
        ({"kubeconfig": "/etc/admin.conf"}, "/provider/kubeconfig", ""),
        ({"volume_claims": {"srv": "home"}}, "/provider/volume_claims/srv", "write it like /srv/flexmarl"),
        ({"volume_claims": {"/a/../etc": "home"}}, "/provider/volume_claims/~1a~1..~1etc", "write it like /srv"),
        ({"volume_claims": {"/srv": "A b"}}, "/provider/volume_claims/~1srv", "write it like flexmarl-home"),
        ({"gpu_resource": "gpus"}, "/provider/gpu_resource", "nvidia.com/gpu"),
        ({"node_selector": {"a b": "c"}}, "/provider/node_selector/a b", "nvidia.com/gpu.product=H100"),
        ({"tolerations": ["a:NoSchedule", "b:Never"]}, "/provider/tolerations/1", "nvidia.com/gpu:NoSchedule"),
        ({"image_pull_secrets": ["A_b"]}, "/provider/image_pull_secrets/0", "write it like registry"),
        ({"priority_class": "A b"}, "/provider/priority_class", "batch-low"),
        ({"service_account": "A b"}, "/provider/service_account", "flexmarl-hosts"),
        ({"grace_s": 5}, "/provider/grace_s", "30"),
        ({"env_vars": {"REDIS_URL": "x"}}, "/provider/env_vars/REDIS_URL", "remove it"),
        ({"devices": 1}, "/provider/devices", "set 2"),
        ({"min_nodes": 3}, "/provider/min_nodes", "max_nodes, which is 2"),
    ],
)
def test_options_are_refused_with_field_rule_and_legal_value(
    admin_api: Any, changes: dict[str, Any], pointer: str, words: str
) -> None:
    given = {name: value for name, value in {**OPTIONS, **changes}.items() if value is not None}
    answer = admin_api.post("/api/v1/pools", {"name": "batch", "provider": given}, format="json")
    assert answer.status_code == 400
    errors = answer.json()["errors"]
    assert [error["pointer"] for error in errors] == [pointer]
    assert words in f"{errors[0]['detail']} {errors[0]['hint']}"


WIDE: dict[str, Any] = {
    "kind": "cuda",
    "devices": 4,
    "cpus": 32,
    "memory_gib": 256,
    "image_pull_secrets": ["registry"],
    "node_selector": {"nvidia.com/gpu.product": "H100"},
    "tolerations": ["nvidia.com/gpu:NoSchedule", "team=rl:NoExecute", "spot"],
    "priority_class": "batch-low",
    "service_account": "flexmarl-hosts",
    "env_vars": {"NCCL_DEBUG": "INFO"},
    "grace_s": 90,
}


@pytest.mark.parametrize("version", ["1.29", "1.33", "1.37"])
@pytest.mark.parametrize("changes", [{}, WIDE], ids=["least", "most"])
def test_the_manifest_is_valid_by_the_published_schemas(changes: dict[str, Any], version: str) -> None:
    pool = f"{'long-name-' * 6}-end-"[:64]
    job = job_of(HostRequest(UUID(int=7), host_jobs.name_of(UUID(int=7)), f"{pool}-1", pool, {**OPTIONS, **changes}))
    kubernetes_validate.validate(job, version, strict=True)
    labels = [*job["metadata"]["labels"].values()]
    assert all(len(label) <= 63 and label[-1].isalnum() for label in labels)


def test_the_manifest_says_what_the_options_say(settings: Any) -> None:
    claims = {"/srv/flexmarl": "home", "/opt/models": "models", "/srv/more": "home"}
    given = {**OPTIONS, **WIDE, "volume_claims": claims}
    job = job_of(HostRequest(UUID(int=7), "flexmarl-7", "gpu-1", "gpu", given))
    assert (job["metadata"]["name"], job["metadata"]["namespace"]) == ("flexmarl-7", "flexmarl")
    assert (job["spec"]["backoffLimit"], job["spec"]["ttlSecondsAfterFinished"]) == (0, 900)
    pod = job["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert (pod["restartPolicy"], pod["terminationGracePeriodSeconds"]) == ("Never", 90)
    amounts = {"cpu": "32", "memory": "256Gi", "nvidia.com/gpu": "4"}
    assert container["resources"] == {"requests": amounts, "limits": amounts}
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod["tolerations"]
    assert {"key": "team", "operator": "Equal", "value": "rl", "effect": "NoExecute"} in pod["tolerations"]
    assert {"key": "spot", "operator": "Exists"} in pod["tolerations"]
    variables = {one["name"]: one["value"] for one in container["env"]}
    assert (variables["NCCL_DEBUG"], variables["CUDA_VISIBLE_DEVICES"]) == ("INFO", "0,1,2,3")
    volumes = {one["name"]: one.get("persistentVolumeClaim", {}).get("claimName") for one in pod["volumes"]}
    assert {m["mountPath"]: volumes[m["name"]] for m in container["volumeMounts"]} == {**claims, "/dev/shm": None}
    assert pod["automountServiceAccountToken"] is False
