"""The pipeline tab: what passed through a run in a window, and what limited it."""

from typing import Any

from django.http import HttpRequest, HttpResponse

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.runs import queries as runs
from flexmarl.controlplane.telemetry import queries as telemetry
from webui.figures import flow, lanes
from webui.formats import duration
from webui.views import joint
from webui.views.base import page, show, whole_number
from webui.views.run import run_frame

WINDOWS = (("step", "1 step"), ("10", "10 s"), ("60", "1 min"), ("180", "3 min"), ("600", "10 min"))
"""(word in the address, words) of the windows."""
STEPS_SHOWN = 1.9
"""`1 step` shows the open step and what is left of the one before."""


@page()
def pipeline(request: HttpRequest, key: str) -> HttpResponse:
    """Show lanes, counts and times of a run's pipeline."""
    context = run_frame(request, key, "pipeline", advised=True)
    found, row = context["found"], context["run"]
    shown = {**_read(request, found, row), **joint.joint(request, found, row), **joint.store(request, found, row)}
    return show(request, "webui/run_pipeline.html", {**context, **shown})


@page()
def pipeline_part(request: HttpRequest, key: str) -> HttpResponse:
    """The drawings alone, re-read while the run moves."""
    found = runs.find_run(actor_of(request), key)
    row = runs.run_detail(found)
    return show(
        request,
        "webui/parts/pipeline.html",
        {"run": row, "advice": telemetry.advisories(found), **_read(request, found, row)},
    )


def _read(request: HttpRequest, found: Any, row: dict[str, Any]) -> dict[str, Any]:
    word = request.GET.get("window", "step")
    word = word if word in dict(WINDOWS) else "step"
    step = whole_number(request, "step")
    step = step if step is not None and 1 <= step <= row["step"] else None
    usual = row["progress"]["step_seconds"]
    seconds = max(1.0, STEPS_SHOWN * (usual or 60.0)) if word == "step" else float(word)
    if step is None and word == "step" and row["finished_at"] and row["step"]:
        step = row["step"]
    payload = telemetry.pipeline(found, step=step) if step else telemetry.pipeline(found, seconds)
    agents = {agent["policy"]: agent for agent in reversed(row["agents"])}
    return {
        "pipe": payload,
        "lanes": lanes.draw(payload, agents),
        "strip": lanes.strip(payload),
        "flow": flow.flow(payload["flow"], agents),
        "trainer": flow.trainer_bars(payload["trainer_time"]),
        "stale": flow.staleness_bars(payload["staleness"], payload["lag_bound"], agents),
        "windows": WINDOWS,
        "window": "" if step else word,
        "step": step,
        "query": f"step={step}" if step else f"window={word}",
        "seconds": duration(payload["window_s"]),
        "rows": [(r, agents.get(r["policy"])) for r in payload["passed"]["rows"]],
    }
