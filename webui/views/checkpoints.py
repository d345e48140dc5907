"""Checkpoints of a run, the version of each policy, and the promises checked on its rows."""

from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest, HttpResponse

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.runs import checkpoints as kept
from flexmarl.controlplane.runs import queries as runs
from flexmarl.controlplane.telemetry import queries as telemetry
from webui.views.base import page, show
from webui.views.run import run_frame

TITLES = {
    "log_gapless": "The log has no gap",
    "episodes_accounted": "Every episode is accounted for",
    "episode_rows_match_log": "The log tells of every episode row",
    "sample_rows_match_log": "The log tells of every sample row",
    "groups_complete": "Groups are whole",
    "none_trained_twice": "No sample is trained twice",
    "trained_samples_exist": "What was trained exists",
    "payloads_registered": "Every payload lies in a file that is known",
    "own_lag_within_bound": "Staleness keeps its bound",
    "steps_match_log": "Every step is a version",
    "versions_chain": "Versions form a chain",
    "applied_belong_to_steps": "What was applied belongs to a step",
    "ended_run_is_closed": "An ended run leaves nothing open",
}
"""What each check of the report promises, in words."""
CHECKED_AT_ONCE = 20_000
"""Episodes up to which opening the page checks the rows; above, a person asks for it, since every row is read."""
KEPT = {
    "last": ("newest", "One of the newest, as checkpoints.keep_last says."),
    "best": ("best", "One of the best evaluated, as checkpoints.keep_best says."),
    "every": ("for good", "One of those that checkpoints.keep_every keeps for good."),
}
"""Rule -> its word, and what it means."""
GONE = frozenset({"removing", "removed"})


def titled(report: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Prepare the checks of a report, each with what it promises."""
    return [{**row, "title": TITLES.get(row["name"], row["name"])} for row in (report or {}).get("checks", [])]


def adapter_of(spec: Mapping[str, Any], policy: str) -> bool:
    """Tell whether what is kept of a policy is an adapter."""
    tuning = spec["policies"].get(policy, {}).get("tuning") or {}
    return bool(tuning.get("type") == "lora")


@page()
def checkpoints(request: HttpRequest, key: str) -> HttpResponse:
    """Show what a run left on disk, how to load it, and whether its rows keep their promises."""
    context = run_frame(request, key, "checkpoints")
    found = context["found"]
    small = context["run"]["progress"]["episodes_finished"] <= CHECKED_AT_ONCE
    report = telemetry.consistency(found) if small or request.GET.get("check") == "1" else None
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
            "example": rows[0] if rows else None,
            "policy": policy,
            "adapter": adapter_of(spec, policy),
            "versions": [{**row, "agent": agents.get(row["policy"])} for row in runs.versions(found)],
            "report": report,
            "checks": titled(report),
            "failed": sum(not row["ok"] for row in (report or {}).get("checks", [])),
        },
    )


def listed(rows: list[dict[str, Any]], spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Prepare checkpoints that are there, newest first."""
    return [
        {
            **row,
            "parts": sorted(row["versions"].items()),
            "rules": [KEPT[reason] for reason in row["kept_by"]],
            "adapters": any(adapter_of(spec, policy) for policy in row["versions"]),
            "may_fork": bool(row["policies"]),
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
