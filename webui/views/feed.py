"""The events tab: the run's history and the log lines of its processes in one feed."""

from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.problems import ValidationProblem
from flexmarl.controlplane.runs import queries as runs
from flexmarl.controlplane.telemetry import queries as telemetry
from webui.views.base import page, show
from webui.views.checks import checked
from webui.views.joint import decided
from webui.views.moved import moved
from webui.views.run import run_frame

LINES = 300
"""Newest lines that match; older ones come by a jump to a moment."""
LEVELS = (("", "All"), ("info", "Info"), ("warning", "Warning"), ("error", "Error"))
TITLES = {
    "history": "History", "driver": "Driver", "node": "Node", "device": "Device worker", "rollout": "Rollout worker",
    "engine": "Engine", "trainer": "Trainer",
}  # fmt: skip
KEYS = ("level", "component", "agent", "node", "q", "regex", "at")
"""Parameters of the address that choose lines."""


@page()
def events(request: HttpRequest, key: str) -> HttpResponse:
    """Show history and log lines, or decisions, or transitions, filtered and followed."""
    context = {**run_frame(request, key, "events"), "view": request.GET.get("view", "")}
    found = context["found"]
    if context["view"] == "decisions":
        return show(request, "webui/run_decisions.html", {**context, **decided(request, found, context["run"])})
    if context["view"] == "transitions":
        return show(request, "webui/run_transitions.html", {**context, **moved(request, found, context["run"])})
    shown = {**context, **checked(request, found), **_controls(request, found), **_read(request, found)}
    return show(request, "webui/run_events.html", shown)


@page()
def events_part(request: HttpRequest, key: str) -> HttpResponse:
    """The feed alone."""
    found = runs.find_run(actor_of(request), key)
    return show(request, "webui/parts/events.html", {"run": runs.run_detail(found), **_read(request, found)})


def _controls(request: HttpRequest, found: Any) -> dict[str, Any]:
    """What the filter bar offers, with what is chosen."""
    chosen = {name: request.GET[name] for name in KEYS if request.GET.get(name)}
    known = telemetry.log_origins(found)
    query = request.GET.copy()
    for name in list(query):
        if name not in KEYS:
            del query[name]
    export = {"level": chosen.get("level"), "component": chosen.get("component"), "agent": chosen.get("agent"),
              "node": chosen.get("node"), "pattern" if chosen.get("regex") else "q": chosen.get("q")}  # fmt: skip
    return {
        "chosen": chosen,
        "levels": [(word, text, _with(request, level=word)) for word, text in LEVELS],
        "components": [(name, TITLES[name]) for name in known["components"]],
        "agents": sorted({*known["agents"], *([chosen["agent"]] if "agent" in chosen else [])}),
        "nodes": sorted({*known["nodes"], *([chosen["node"]] if "node" in chosen else [])}),
        "query": query.urlencode(),
        "chips": [(TITLES.get(value, value), _with(request, **{name: ""})) for name, value in _chips(chosen)],
        "export": _encoded(export),
    }


def _chips(chosen: dict[str, str]) -> list[tuple[str, str]]:
    return [(name, value) for name, value in chosen.items() if name not in ("level", "regex")]


def _with(request: HttpRequest, **changes: str) -> str:
    query = request.GET.copy()
    for name, value in changes.items():
        if value:
            query[name] = value
        else:
            query.pop(name, None)
    return query.urlencode()


def _encoded(values: dict[str, str | None]) -> str:
    return urlencode({name: value for name, value in values.items() if value and value != "history"})


def _read(request: HttpRequest, found: Any) -> dict[str, Any]:
    text = request.GET.get("q", "")[:200] or None
    regex = request.GET.get("regex") == "1"
    at = _moment(request.GET.get("at", ""))
    level, component = request.GET.get("level", ""), request.GET.get("component", "")
    wanted = telemetry.LogFilter(
        levels=[level] if level in dict(LEVELS) and level else None,
        components=[component] if component in TITLES else None,
        agent=request.GET.get("agent") or None,
        node=request.GET.get("node") or None,
        text=None if regex else text,
        pattern=text if regex else None,
        until=None if at is None else at.timestamp(),
    )
    try:
        rows, refused = telemetry.log_feed(found, wanted, LINES), ""
    except ValidationProblem as problem:
        rows, refused = [], problem.detail
    return {"events": rows, "refused": refused, "until": at, "filtered": wanted != telemetry.LogFilter()}


def _moment(text: str) -> datetime | None:
    """Read a moment in the person's time zone; a wrong one is as good as none."""
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        return None
    return read if read.tzinfo else timezone.make_aware(read)
