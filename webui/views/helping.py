"""Glossary and help, and the page of components. Both are for everybody who is signed in."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from flexmarl.controlplane.common.times import rfc3339
from flexmarl.controlplane.experiments import queries as experiments
from webui import glossary, keyboard
from webui.figures import steps
from webui.forms.fields import Field, described
from webui.templatetags.ui import PILLS
from webui.views.base import page, show

ROLES = ("planner", "solver", "verifier", "speaker", "listener", "guesser", "hinter", "judge")
KIND_TITLES = {
    "environment": "Environments",
    "loss": "Losses",
    "advantage": "Advantages",
    "correction": "Off-policy corrections",
    "shaping": "Reward shaping",
    "group_filter": "Group filters",
    "task_sampler": "Task samplers",
    "member_count": "Numbers of members",
    "arranger": "Arrangers of rows",
    "router": "Routers",
}
VERDICTS = ("healthy", "watch", "degraded", "stalled")


@page(None)
def help_page(request: HttpRequest) -> HttpResponse:
    """Show the words of the product and the keys of its pages."""
    context = {"nav": "help", "glossary": glossary.words(), "keys": keyboard.everything()}
    return show(request, "webui/help.html", context)


@page(None)
def plugins(request: HttpRequest) -> HttpResponse:
    """Show every plug-in by kind with its settings; `q` narrows them to what has a word in name, text or settings."""
    wanted = request.GET.get("q", "").strip().lower()
    rows = [{**row, "settings": plugin_settings(row)} for row in experiments.plugins()]
    shown = [row for row in rows if wanted in _text_of(row)]
    kinds = [
        {"name": name, "title": KIND_TITLES.get(name, name), "pointer": found[0]["pointer"], "rows": found}
        for name, found in ((name, [row for row in shown if row["kind"] == name]) for name in kinds_of(rows))
        if found
    ]
    context = {"nav": "help", "kinds": kinds, "count": len(shown), "of": len(rows), "q": request.GET.get("q", "")}
    return show(request, "webui/plugins.html", context)


def kinds_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the kinds of some rows, each once, in their order."""
    return list(dict.fromkeys(row["kind"] for row in rows))


def plugin_settings(row: Mapping[str, Any]) -> list[Field]:
    """Describe the settings of a plug-in the way the form of a run does."""
    schema = row["options"] or {}
    named = ((name, node) for name, node in schema.get("properties", {}).items() if name != "type")
    found = (described(f"{row['pointer']}/{name}", node.get("default"), node, schema) for name, node in named)
    return [field for field in found if field is not None]


def _text_of(row: Mapping[str, Any]) -> str:
    words = (row["kind"], row["name"], row["summary"], row["distribution"], *(one.pointer for one in row["settings"]))
    return " ".join(words).lower()


@page(None)
def components(request: HttpRequest) -> HttpResponse:
    """Show every component and state, drawn by the templates and classes that pages use."""
    return show(request, "webui/components.html", {"nav": "help", **samples()})


def samples() -> dict[str, Any]:
    """Made-up figures that show a component; they speak of no run."""
    team = [
        {"role": role, "hue": hue, "monogram": role[0].upper(), "reward": 0.9 - hue / 20}
        for hue, role in enumerate(ROLES, start=1)
    ]
    climb = [0.2 + 0.7 * step / 60 + 0.04 * ((step * 7) % 5 - 2) for step in range(61)]
    since = rfc3339(timezone.now())
    return {
        "hues": range(1, 9),
        "ramp": range(7),
        "tones": PILLS,
        "states": [{"status": status, "status_since": since, "reason_text": ""} for status in PILLS],
        "verdicts": VERDICTS,
        "team": team,
        "spark": steps.spark(climb, 120, 32),
        "cells": [
            {"x": round(i * 100 / 61, 2), "level": min(6, max(0, round(value * 6)))} for i, value in enumerate(climb)
        ],
        "rows": [{"name": f"sample-{i}", "reward": 0.6 + i / 50, "on": i == 2} for i in range(1, 4)],
    }
