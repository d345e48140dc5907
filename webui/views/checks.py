"""Consistency checks of a run, as a card of its tabs. Never makes one: it shows what is remembered."""

from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest, HttpResponse

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.runs import queries as runs
from flexmarl.controlplane.telemetry import queries as telemetry
from webui.views.base import page, show

TITLES = {
    "log_gapless": "The log has no gap",
    "episodes_accounted": "Every episode is accounted for",
    "episode_rows_match_log": "The log has every episode row",
    "sample_rows_match_log": "The log has every sample row",
    "groups_complete": "Groups are complete",
    "none_trained_twice": "No sample is trained twice",
    "trained_samples_exist": "Every trained sample exists",
    "payloads_registered": "Every payload is in a registered file",
    "own_lag_within_bound": "Staleness is within its bound",
    "replayed_once_per_step": "No row is replayed twice in a step",
    "replayed_were_trained": "Every replayed row was trained before",
    "replayed_within_age": "Replayed rows are young enough",
    "imported_rows_match_log": "Imported rows match the log",
    "steps_match_log": "Every step is a version",
    "versions_chain": "Versions form a chain",
    "applied_belong_to_steps": "Every applied micro-batch belongs to a step",
    "ended_run_is_closed": "An ended run leaves nothing open",
}
"""What each check of the report promises, in words."""
READING = {
    "log": "the log",
    "commands": "commands",
    "episodes": "episodes",
    "samples": "samples",
    "trained": "trained samples",
}


@page()
def checks_part(request: HttpRequest, key: str) -> HttpResponse:
    """The card alone, re-read while a check is under way."""
    found = runs.find_run(actor_of(request), key)
    return show(request, "webui/parts/checks.html", {"run": runs.run_detail(found), **checked(request, found)})


def checked(request: HttpRequest, found: Any) -> dict[str, Any]:
    """What the card shows: the last result with its time, and the newest check."""
    report = telemetry.consistency(found)
    newest = report["check"]
    rows = titled(report)
    return {
        "report": report,
        "checks": rows,
        "failed": sum(not row["ok"] for row in rows),
        "newest": newest and {**newest, "reading": READING.get(newest["progress"]["now"], "")},
        "checking": newest is not None and newest["state"] in {"queued", "running"},
        "check_share": newest["progress"]["done"] / newest["progress"]["total"] if newest else 0,
        "may_cancel_check": runs.may_act(actor_of(request), found),
    }


def titled(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Prepare the checks of a report, each with what it promises."""
    return [{**row, "title": TITLES.get(row["name"], row["name"])} for row in report["checks"]]
