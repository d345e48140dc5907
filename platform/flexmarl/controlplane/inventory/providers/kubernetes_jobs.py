"""What Kubernetes is asked for: the Job of one host, whose one pod runs once.

The Job names the file with the secrets of the hosts on the folder that they share, or the Secret that has the token of
this one, and holds none. Its name is made of the id of its row, so that Kubernetes refuses to make it twice.
"""

import os
from pathlib import PurePosixPath
from typing import Any

from django.conf import settings

from flexmarl.contracts.providers import TOLERATION, KubernetesProvider, PoolProvider
from flexmarl.controlplane.inventory.providers.base import HostRequest
from flexmarl.controlplane.inventory.providers.host_settings import (
    TOKEN,
    TOKEN_SHOWN,
    checkout_of,
    command_of,
    own_variables,
    python_of,
)

JOB_LABEL = "flexmarl/job"
"""On Job and pod: the id of the row."""
OURS = {"app.kubernetes.io/managed-by": "flexmarl", "app.kubernetes.io/component": "host"}
FINISHED_S = 900
"""How long Kubernetes keeps a Job that has finished, for people who read its log."""


JOB_UID = "UID_OF_THE_JOB"
"""Stands for what the API server gives a Job that is not made yet."""
_TOKEN_KEY = "token"


def job_of(request: HostRequest) -> dict[str, Any]:
    """Return the manifest of a host's Job, as it is submitted."""
    options, labels = kubernetes_options(request), _labels(request)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": request.name, "namespace": options.namespace, "labels": dict(labels)},
        "spec": {
            "parallelism": 1,
            "completions": 1,
            "backoffLimit": 0,
            "podReplacementPolicy": "Failed",
            "ttlSecondsAfterFinished": FINISHED_S,
            "template": {"metadata": {"labels": labels}, "spec": _pod(request, options)},
        },
    }


def secret_of(request: HostRequest, job: str) -> dict[str, Any]:
    """Return the manifest of the Secret with a host's token, which goes with the Job that has this uid."""
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": request.name, "uid": job}
    named = {"name": request.name, "namespace": kubernetes_options(request).namespace, "labels": _labels(request)}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {**named, "ownerReferences": [owner]},
        "type": "Opaque",
        "immutable": True,
        "stringData": {_TOKEN_KEY: request.token or TOKEN_SHOWN},
    }


def _labels(request: HostRequest) -> dict[str, str]:
    told = {"flexmarl/pool": _label(request.pool), "flexmarl/node": _label(request.node)}
    return {**OURS, JOB_LABEL: str(request.id), **told}


def unmounted(options: KubernetesProvider) -> str:
    """Return the folder that hosts share where no claim of a pool has it; empty where one does."""
    home = PurePosixPath(settings.HOME)
    return "" if any(home.is_relative_to(path) for path in options.volume_claims) else str(home)


def kubernetes_options(request: HostRequest) -> KubernetesProvider:
    """Return what the pool of a host says."""
    options = PoolProvider.model_validate({"provider": dict(request.options)}).provider
    assert isinstance(options, KubernetesProvider)
    return options


def _pod(request: HostRequest, options: KubernetesProvider) -> dict[str, Any]:
    chosen = {
        "nodeSelector": dict(options.node_selector),
        "tolerations": [_toleration(taint) for taint in options.tolerations],
        "imagePullSecrets": [{"name": name} for name in options.image_pull_secrets],
        "serviceAccountName": options.service_account,
        "priorityClassName": options.priority_class,
    }
    memory = {"name": "shared-memory", "emptyDir": {"medium": "Memory"}}  # what is there by default has 64 MiB
    claims = [
        {"name": volume, "persistentVolumeClaim": {"claimName": claim}} for claim, volume in _volumes(options).items()
    ]
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": options.grace_s,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,  # variables of a service named flexmarl would be read as settings
        "shareProcessNamespace": True,  # the first process of the pod waits for those that lost their parent
        **{name: value for name, value in chosen.items() if value},
        "securityContext": {
            "runAsUser": os.geteuid(),
            "runAsGroup": os.getegid(),
            "runAsNonRoot": os.geteuid() != 0,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(request, options)],
        "volumes": [memory, *claims],
    }


def _container(request: HostRequest, options: KubernetesProvider) -> dict[str, Any]:
    root, given = checkout_of(options), _resources(options)
    gpus = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(options.devices)))} if options.kind == "cuda" else {}
    user = {"HOME": "/tmp", "USER": "flexmarl"}  # the image knows nothing of the account
    paths = {"PYTHONPATH": f"{root}:{root}/platform"}
    variables = {**user, **options.env_vars, **own_variables(request), **gpus, **paths}
    kept = {"secretKeyRef": {"name": request.name, "key": _TOKEN_KEY}}
    token = [{"name": TOKEN, "valueFrom": kept}] if request.has_token else []
    volumes = _volumes(options)
    mounts = [{"name": volumes[claim], "mountPath": path} for path, claim in options.volume_claims.items()]
    command = [python_of(options), "-m", "workers.allocated", *command_of(request, options), "--native", request.name]
    command += ["--memory-gib", str(options.memory_gib), "--grace", str(options.grace_s)]
    return {
        "name": "host",
        "image": options.image,
        "command": command,
        "workingDir": root,
        "env": [*({"name": name, "value": value} for name, value in variables.items()), *token],
        "resources": {"requests": given, "limits": dict(given)},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}, *mounts],
    }


def _resources(options: KubernetesProvider) -> dict[str, str]:
    memory = {"memory": f"{options.memory_gib}Gi"} if options.memory_gib else {}
    gpus = {options.gpu_resource: str(options.devices)} if options.kind == "cuda" else {}
    return {"cpu": str(options.cpus), **memory, **gpus}


def _toleration(taint: str) -> dict[str, str]:
    found = TOLERATION.fullmatch(taint)
    assert found is not None
    key, value, effect = found.groups()
    wanted = {"operator": "Exists"} if value is None else {"operator": "Equal", "value": value}
    return {"key": key, **wanted, **({"effect": effect} if effect else {})}


def _label(name: str) -> str:
    """Return as much of a name as the value of a label holds."""
    return name[:63].strip("-._")


def _volumes(options: KubernetesProvider) -> dict[str, str]:
    """Return the name of the volume that each claim is."""
    return {claim: f"claim-{number + 1}" for number, claim in enumerate(sorted(set(options.volume_claims.values())))}
