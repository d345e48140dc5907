"""What Kubernetes says: its Jobs and pods as sightings, and what an administrator can do about its refusals. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from flexmarl.controlplane.inventory.providers.base import HostSighting, HostState

Shown = Mapping[str, Any]
"""A Job or pod as the API server writes it."""
MOST_WORDS = 400

_STEPS = (
    (
        "exceeded quota",
        "Wait until other Jobs of the namespace end, lower max_nodes, devices, cpus or memory_gib, or ask for a larger "
        "ResourceQuota.",
    ),
    ("namespace", "Set namespace to one that kubectl get namespaces lists."),
    ("imagepullsecrets", "Set image_pull_secrets to names of Secrets of the namespace."),
    ("image", "Set image to the name of an image, such as registry.example.org/flexmarl:1.4."),
    ("nodeselector", "Set node_selector to labels that kubectl get nodes --show-labels lists."),
    ("toleration", "Set tolerations to taints that kubectl describe nodes lists."),
    ("priorityclass", "Set priority_class to one that kubectl get priorityclasses lists."),
    ("serviceaccount", "Set service_account to one that kubectl get serviceaccounts lists."),
    ("volume", "Set volume_claims to paths and claims that kubectl get persistentvolumeclaims lists."),
    ("resources", "Set cpus, memory_gib, devices and gpu_resource to what kubectl describe nodes lists."),
    ("env", "Correct env_vars."),
)
"""Part of a refusal -> what to do, the first that fits."""
_ROLE = "Bind the Role of docs/clusters.md to the account that is named, in the namespace of the pool."
_CREDENTIALS = (
    "Renew the credentials in the file that FLEXMARL_KUBECONFIG names; in a cluster, those of the service account."
)
_ADMISSION = "An admission rule of the cluster forbids such a Job: change what it names, or ask who runs the cluster."
_OTHER = "Change the pool's options; the dry run shows the manifest."


def next_step(status: int, said: str) -> str:
    """Return what to do about a refusal: its HTTP status and message."""
    lower = said.lower()
    if status == 401:
        return _CREDENTIALS
    if status == 403 and "exceeded quota" not in lower:
        return _ROLE if " cannot " in lower else _ADMISSION
    return next((step for part, step in _STEPS if part in lower), _OTHER)


def sighting_of(job: Shown, pods: Sequence[Shown], *, unwanted: bool, grace_s: float, now: float) -> HostSighting:
    """Return what there is of a host: its Job, and the pods that this has had."""
    name = job["metadata"]["name"]
    pod = max(pods, key=lambda one: (not _over(one), one["metadata"].get("creationTimestamp", "")), default=None)
    if pod is None:
        return _without_pod(name, job)
    place, began = pod["spec"].get("nodeName", ""), _began(pod)
    phase, leaving = pod["status"].get("phase", "Pending"), pod["metadata"].get("deletionTimestamp")
    if _over(pod):
        over: HostState = "ended" if unwanted or phase == "Succeeded" else "failed"
        return HostSighting(name, over, _end_words(pod), place, began)
    if leaving and (unwanted or phase == "Pending"):
        return HostSighting(name, "ending", _words(phase, "", "its pod is being ended"), place, began)
    if phase == "Pending":
        return HostSighting(name, "pending", _waiting_words(pod), place)
    evicted = _condition(pod, "DisruptionTarget")
    why, said = evicted.get("reason", ""), evicted.get("message", "")
    ends_at = moment(leaving) if leaving else (now + grace_s if evicted else None)
    ends_why = f"Kubernetes ends its pod: {said or why or 'it was deleted'}" if ends_at else ""
    return HostSighting(name, "running", _words(phase, why, said), place, began, ends_at, ends_why)


_JOB_STATES: tuple[tuple[str, HostState], ...] = (("Complete", "ended"), ("Failed", "failed"), ("Suspended", "pending"))


def _without_pod(name: str, job: Shown) -> HostSighting:
    for condition, state in _JOB_STATES:
        if found := _condition(job, condition):
            words = _words(condition, found.get("reason", ""), found.get("message", ""))
            return HostSighting(name, state, words)
    if job["metadata"].get("deletionTimestamp"):
        return HostSighting(name, "ending", "the Job is being deleted")
    return HostSighting(name, "pending", PENDING)


PENDING = "PENDING"
"""All that is said of a host that waits without a condition that says why; an event may say more."""


def pending_words(warnings: Sequence[Shown]) -> str:
    """Return what the newest warning about a Job or pod says of its waiting."""
    newest = max(warnings, key=lambda one: one.get("lastTimestamp") or one.get("eventTime") or "", default={})
    return _words(PENDING, newest.get("reason", ""), newest.get("message", ""))


def moment(text: str) -> float:
    """Return a time of Kubernetes in seconds since the epoch."""
    return datetime.fromisoformat(text).timestamp()


def _over(pod: Shown) -> bool:
    return pod["status"].get("phase") in {"Succeeded", "Failed"}


def _began(pod: Shown) -> float | None:
    """Return when the pod's container began."""
    state = _container_state(pod)
    began = (state.get("running") or state.get("terminated") or {}).get("startedAt")
    return moment(began) if began else None


def _container_state(pod: Shown) -> Shown:
    found: Shown = next((one.get("state", {}) for one in pod["status"].get("containerStatuses") or ()), {})
    return found


def _condition(shown: Shown, name: str) -> Shown:
    """Return a condition that holds; empty where it does not."""
    conditions = shown.get("status", {}).get("conditions") or ()
    return next((one for one in conditions if one["type"] == name and one["status"] == "True"), {})


def _waiting_words(pod: Shown) -> str:
    """Return why a pod does not run yet: it was not scheduled, or what its container waits for."""
    for one in pod["status"].get("conditions") or ():
        if one["type"] == "PodScheduled" and one["status"] == "False":
            return _words(PENDING, one.get("reason", ""), one.get("message", ""))
    waiting = _container_state(pod).get("waiting") or {}
    if waiting.get("message"):
        return _words(PENDING, waiting.get("reason", ""), waiting["message"])
    return PENDING


def _end_words(pod: Shown) -> str:
    """Return how a pod ended: the reason of its node or container, its exit status, and what it said last."""
    status, ended = pod["status"], _container_state(pod).get("terminated") or {}
    evicted = _condition(pod, "DisruptionTarget")
    reason = status.get("reason") or evicted.get("reason") or ended.get("reason") or ""
    code = f"exit code {ended['exitCode']}" if ended.get("exitCode") else ""
    said = status.get("message") or evicted.get("message") or ""
    last = (ended.get("message") or "").strip().splitlines()[-1:]
    return _words(status["phase"], ", ".join(filter(None, (reason, code))), "; ".join(filter(None, (said, *last))))


def _words(state: str, reason: str, said: str) -> str:
    """Return words like `PENDING (Unschedulable): 0/3 nodes are available`."""
    head = f"{state.upper()} ({reason})" if reason else state.upper()
    return f"{head}: {' '.join(said.split())[:MOST_WORDS]}" if said else head


def quota_words(quota: Shown) -> str:
    """Return what of a resource quota is used."""
    status = quota.get("status", {})
    used = status.get("used") or {}
    parts = [f"{name} {used.get(name, 0)} of {most}" for name, most in (status.get("hard") or {}).items()]
    return f"Quota {quota['metadata']['name']}: {', '.join(parts) or 'nothing'}"


def capacity_words(node: Shown, gpu_resource: str) -> str:
    """Return what pods of a node can have together, and whether new ones are placed there."""
    has = node["status"].get("allocatable") or {}
    parts = [f"{name} {has[name]}" for name in ("cpu", "memory", gpu_resource) if name in has]
    closed = "" if _condition(node, "Ready") else ", not ready"
    closed += ", cordoned" if node.get("spec", {}).get("unschedulable") else ""
    return f"{node['metadata']['name']}: {', '.join(parts)}{closed}"
