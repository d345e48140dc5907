"""Pools that grow, for their pages: the fields of a provider, and what stands of its jobs on a card."""

from collections.abc import Mapping, Sequence
from typing import Any

from flexmarl.contracts.providers import SlurmProvider

_LABELS = {
    "partition": "Partition",
    "account": "Account",
    "qos": "Quality of service",
    "kind": "Devices are",
    "devices": "Devices of a host",
    "cpus": "Processors of a job",
    "memory_gib": "Memory of a job, GiB",
    "time_limit_minutes": "Time limit, minutes",
    "notice_s": "Drained before the end, seconds",
    "min_nodes": "Hosts at least",
    "max_nodes": "Hosts at most",
    "idle_s": "Given back when idle, seconds",
    "rollout_workers": "Rollout workers of a host",
    "sbatch": "Further options of sbatch, one a line",
    "python": "Interpreter on the hosts",
}
KINDS = (("cpu", "shares of processors"), ("cuda", "GPUs"))
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


def option_fields(provider: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a field for each option of Slurm with what a pool says, or the default."""
    shown = provider if provider.get("type") == "slurm" else {}
    defaults, schema = SlurmProvider().model_dump(mode="json"), SlurmProvider.model_json_schema()["properties"]
    fields = []
    for name, label in _LABELS.items():
        value = shown.get(name, defaults[name])
        fields.append(
            {
                "name": name,
                "label": label,
                "form": "kinds" if name == "kind" else _FORMS[schema[name]["type"]],
                "value": "\n".join(value) if isinstance(value, list) else value,
                "help": schema[name].get("description", ""),
                "least": schema[name].get("minimum"),
                "most": schema[name].get("maximum"),
            }
        )
    return fields


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


def summary(jobs: Sequence[Mapping[str, Any]], most: int) -> str:
    """Return what stands of the jobs of a pool on its card."""
    counts = [(state, sum(job["state"] == state for job in jobs)) for state in ("running", "pending", "leaving")]
    said = [f"{count} {state}" for state, count in counts if count]
    waiting = sum(job["state"] == "requested" for job in jobs)
    said += [f"{waiting} to be submitted"] if waiting else []
    return f"Slurm: {', '.join(said) or 'no job'}, {most} at most"
