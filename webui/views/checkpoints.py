"""Checkpoints of a run, and the version of each policy."""

from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest, HttpResponse

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.runs import checkpoints as kept
from flexmarl.controlplane.runs import queries as runs
from webui.views.base import page, show
from webui.views.checks import checked
from webui.views.run import run_frame

KEPT = {
    "last": ("newest", "One of the newest, as checkpoints.keep_last says."),
    "best": ("best", "One of the best evaluated, as checkpoints.keep_best says."),
    "every": ("for good", "One of those that checkpoints.keep_every keeps for good."),
}
"""Rule -> its word, and what it means."""
GONE = frozenset({"removing", "removed"})


def adapter_of(spec: Mapping[str, Any], policy: str) -> bool:
    """Tell whether what is kept of a policy is an adapter."""
    tuning = spec["policies"].get(policy, {}).get("tuning") or {}
    return bool(tuning.get("type") == "lora")


@page()
def checkpoints(request: HttpRequest, key: str) -> HttpResponse:
    """Show what a run left on disk, how to load it, and whether its rows keep their promises."""
    context = run_frame(request, key, "checkpoints")
    found = context["found"]
    spec, every = context["run"]["spec"], kept.listed(found)
    rows = listed(every, spec)
    policy = next(iter(rows[0]["versions"]), "") if rows else ""
    agents: dict[str, Any] = {}
    for agent in context["run"]["agents"]:
        agents.setdefault(agent["policy"], agent)
    return show(
        request,
        "webui/run_checkpoints.html",
        {
            **context,
            "checkpoints": rows,
            "gone": [row["step"] for row in every if row["state"] in GONE],
            "disk_bytes": sum(row["size_bytes"] for row in every),
            "related": related(kept.lineage_of(actor_of(request), found)),
            "origin": request.build_absolute_uri("/").rstrip("/"),
            "callable": callable_models(context["run"], rows) if _may_ask(request, context["run"]) else [],
            "example": rows[0] if rows else None,
            "policy": policy,
            "adapter": adapter_of(spec, policy),
            "versions": [{**row, "agent": agents.get(row["policy"])} for row in runs.versions(found)],
            **checked(request, found),
        },
    )


def callable_models(run: Mapping[str, Any], rows: list[dict[str, Any]]) -> list[str]:
    """Return the names by which the agents of the newest checkpoint are asked."""
    versions = rows[0]["versions"] if rows else {}
    agents = [agent for agent in run["agents"] if agent["policy"] in versions]
    return [f"{run['key']}/{agent['role']}@{versions[agent['policy']]}" for agent in agents]


def _may_ask(request: HttpRequest, run: Mapping[str, Any]) -> bool:
    return actor_of(request).may(Scope.MODELS_USE, run["project"]) and run["archived_at"] is None


def listed(rows: list[dict[str, Any]], spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Prepare checkpoints that are there, newest first."""
    return [
        {
            **row,
            "parts": sorted(row["versions"].items()),
            "rules": [KEPT[reason] for reason in row["kept_by"]],
            "adapters": any(adapter_of(spec, policy) for policy in row["versions"]),
            "may_fork": bool(row["policies"]),
            "policy_names": sorted(row["policies"]),
            "may_download": bool(row["node"]) and row["state"] == "whole",
        }
        for row in rows
        if row["state"] not in GONE
    ]


def related(lineage: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Prepare which runs this one began with and which began with it: one line per run and direction."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for way in ("origins", "copies"):
        for one in lineage[way]:
            line = found.setdefault((way, (one["run"] or {}).get("key", "")), {**one, "way": way, "policies": []})
            line["policies"].append((one["policy"], one["version"]))
    return list(found.values())
