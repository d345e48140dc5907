"""Pools that grow, for their pages: the fields of a provider, and what stands of its jobs on a card."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter

from flexmarl.contracts.providers import GrowingProvider, KubernetesProvider, RayProvider, SlurmProvider

NAMES = {"slurm": "Slurm", "ray": "Ray", "kubernetes": "Kubernetes"}
_PROVIDERS: dict[str, type[GrowingProvider]] = {
    "slurm": SlurmProvider,
    "ray": RayProvider,
    "kubernetes": KubernetesProvider,
}
_TITLES = {"slurm": "Slurm jobs", "ray": "Ray hosts", "kubernetes": "Kubernetes Jobs"}
_OWN_LABELS = {
    "slurm": {"partition": "Partition", "account": "Account", "qos": "QOS"},
    "ray": {"address": "Cluster address"},
    "kubernetes": {
        "namespace": "Namespace",
        "context": "Context",
        "image": "Image",
        "image_pull_secrets": "Image pull secrets, one per line",
        "volume_claims": "Volume claims, PATH=CLAIM, one per line",
    },
}
_SHARED_LABELS = {
    "kind": "Device type",
    "devices": "Devices per host",
    "cpus": "CPUs per host",
    "memory_gib": "Memory per host, GiB",
}
_LATER_LABELS = {
    "slurm": {"time_limit_minutes": "Time limit, minutes", "notice_s": "Drain notice, s"},
    "ray": {"resources": "Custom resources, NAME=AMOUNT, one per line"},
    "kubernetes": {
        "gpu_resource": "GPU resource",
        "node_selector": "Node labels, NAME=VALUE, one per line",
        "tolerations": "Tolerated taints, one per line",
        "priority_class": "Priority class",
        "service_account": "Service account",
        "grace_s": "Grace of an evicted pod, s",
    },
}
_SIZE_LABELS = {
    "min_nodes": "Min hosts",
    "max_nodes": "Max hosts",
    "idle_s": "Idle time before release, s",
    "rollout_workers": "Rollout workers per host",
}
_LAST_LABELS = {
    "slurm": {"sbatch": "Additional sbatch options, one per line"},
    "ray": {"env_vars": "Environment variables, NAME=VALUE, one per line"},
    "kubernetes": {"env_vars": "Variables of the container, NAME=VALUE, one per line"},
}
_ACCESS_LABELS = {
    "python": "Interpreter on the hosts",
    "checkout": "Checkout on the hosts",
    "access": "Access to the installation",
    "home": "Folder on the hosts, with a node token",
}
_CHOICES = {
    "kind": (("cpu", "CPU shares"), ("cuda", "GPUs")),
    "access": (("shared_folder", "Shared folder and secrets"), ("node_token", "Node token")),
}
_FORMS = {"string": "text", "integer": "number", "array": "lines"}
_ICONS = {
    "running": ("ok", "circle-check"),
    "pending": ("", "hourglass"),
    "requested": ("", "hourglass"),
    "leaving": ("wn", "hourglass"),
    "ended": ("muted", "circle-check"),
    "refused": ("bad", "alert-triangle"),
    "failed": ("bad", "alert-triangle"),
}
LIVING = frozenset({"requested", "pending", "running", "leaving", "refused"})


def option_groups(provider: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the fields of each provider with what a pool says, or the default; `shown`: those of the pool's own."""
    return [
        {
            "type": kind,
            "title": title,
            "shown": provider.get("type") == kind,
            "fields": _fields(kind, provider if provider.get("type") == kind else {}),
        }
        for kind, title in _TITLES.items()
    ]


def _fields(kind: str, kept: Mapping[str, Any]) -> list[dict[str, Any]]:
    labels = {**_OWN_LABELS[kind], **_SHARED_LABELS, **_LATER_LABELS[kind], **_SIZE_LABELS, **_LAST_LABELS[kind]}
    schema = TypeAdapter(_PROVIDERS[kind]).json_schema()["properties"]
    fields = []
    for name, label in {**labels, **_ACCESS_LABELS}.items():
        value = kept.get(name, schema[name].get("default", ""))
        choices = _CHOICES.get(name, ())
        form = "choice" if choices else _FORMS.get(schema[name]["type"]) or _pairs(schema[name])
        fields.append(
            {
                "name": name,
                "label": label,
                "form": form,
                "choices": choices,
                "lines": form in {"lines", "amounts", "pairs"},
                "value": _shown(value),
                "help": schema[name].get("description", ""),
                "least": schema[name].get("minimum"),
                "most": schema[name].get("maximum"),
            }
        )
    return fields


def _pairs(schema: Mapping[str, Any]) -> str:
    return "amounts" if schema["additionalProperties"]["type"] == "number" else "pairs"


def _shown(value: Any) -> Any:
    if isinstance(value, Mapping):
        return "\n".join(
            f"{name}={one:g}" if isinstance(one, float) else f"{name}={one}" for name, one in value.items()
        )
    return "\n".join(value) if isinstance(value, list | tuple) else value


def troubles(jobs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what keeps hosts of a pool from coming, each once, with what to do about it."""
    found: dict[str, dict[str, Any]] = {}
    for job in jobs:
        if job["state"] == "refused":
            says = f"{NAMES[job['provider']]} takes no job for {job['node']}"
            found[job["id"]] = {"node": job["node"], "head": says, "reason": job["reason"], "step": job["next_step"]}
        elif job["state"] in LIVING and job["next_step"]:
            says = f"{NAMES[job['provider']]} does not answer"
            one = {"node": job["node"], "head": says, "reason": job["reason"], "step": job["next_step"]}
            found.setdefault(job["reason"], one)
    return list(found.values())


def with_icons(jobs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return jobs with the word, tone and icon of their state, and whether they can be cancelled."""
    return [
        {
            **job,
            "tone": _ICONS[job["state"]][0],
            "icon": _ICONS[job["state"]][1],
            "living": job["state"] in LIVING,
            "state_word": "Cancelling" if job["cancelling"] else job["state"].capitalize(),
        }
        for job in jobs
    ]


def summary(jobs: Sequence[Mapping[str, Any]], provider: Mapping[str, Any]) -> str:
    """Return what stands of the jobs of a pool on its card."""
    counts = [(state, sum(job["state"] == state for job in jobs)) for state in ("running", "pending", "leaving")]
    said = [f"{count} {state}" for state, count in counts if count]
    waiting = sum(job["state"] == "requested" for job in jobs)
    said += [f"{waiting} to be submitted"] if waiting else []
    return f"{NAMES[provider['type']]}: {', '.join(said) or 'no host'}, {provider.get('max_nodes', 1)} at most"
