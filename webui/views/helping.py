"""Glossary and help, and the page of components. Both are for everybody who is signed in."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from flexmarl.controlplane.common.times import rfc3339
from webui import glossary, keyboard
from webui.figures import steps
from webui.templatetags.ui import PILLS
from webui.views.base import page, show

ROLES = ("planner", "solver", "verifier", "speaker", "listener", "guesser", "hinter", "judge")
VERDICTS = ("healthy", "watch", "degraded", "stalled")


@page(None)
def help_page(request: HttpRequest) -> HttpResponse:
    """Show the words of the product and the keys of its pages."""
    context = {"nav": "help", "glossary": glossary.words(), "keys": keyboard.everything()}
    return show(request, "webui/help.html", context)


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
