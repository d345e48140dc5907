"""Attempts of a run: the continuous stretches between getting devices and giving them back."""

from typing import Any

from django.http import HttpRequest, HttpResponse

from flexmarl.controlplane.runs import queries as runs
from webui.views.base import page, show
from webui.views.run import run_frame
from webui.views.words import ENDED

BEGAN = {"start": "started", "resume": "resumed", "retry": "retried", "stop": "finishing after a stop"}


@page()
def attempts(request: HttpRequest, key: str) -> HttpResponse:
    """Show each attempt: when, which steps, why it ended, who asked, and the versions at its end."""
    context = run_frame(request, key, "attempts")
    found = context["found"]
    asked = runs.operation_rows(runs.operations(found)[:ASKED])
    return show(
        request, "webui/run_attempts.html", {**context, "attempts": listed(context["run"]), "operations": asked}
    )


ASKED = 50
"""Operations shown; the API lists all."""


def listed(run: dict[str, Any]) -> list[dict[str, Any]]:
    """Prepare attempts, newest first, with their share of the run's steps for the bar."""
    whole = max(run["max_steps"], 1)
    return [
        {
            **row,
            "began": BEGAN.get(row["verb"], row["verb"]),
            "why": "" if row["ended_at"] is None else ENDED.get(row["reason"], row["reason"]) or row["status"],
            "steps": row["last_step"] - row["first_step"],
            "parts": sorted(row["versions"].items()),
            "x": round(100 * row["first_step"] / whole, 3),
            "width": round(100 * (row["last_step"] - row["first_step"]) / whole, 3),
            "pill": {"status": row["status"], "status_since": row["began_at"], "reason_text": row["reason_text"]},
        }
        for row in reversed(run["attempts"])
    ]
