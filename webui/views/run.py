"""What all tabs of a run share: the header, one part on all of them."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.runs import queries as runs
from flexmarl.controlplane.telemetry import queries as telemetry
from webui.views import verbs, words
from webui.views.base import page, show

TABS = (
    ("overview", "Overview", "webui:run"),
    ("metrics", "Metrics", "webui:metrics"),
    ("agents", "Agents", "webui:agents"),
    ("trajectories", "Trajectories", "webui:trajectories"),
    ("pipeline", "Pipeline", "webui:pipeline"),
    ("load", "Load", "webui:load"),
    ("timeline", "Timeline", "webui:timeline"),
    ("events", "Events", "webui:events"),
    ("config", "Config", "webui:config"),
    ("checkpoints", "Checkpoints", "webui:checkpoints"),
    ("attempts", "Attempts", "webui:attempts"),
    ("playground", "Playground", "webui:playground"),
    ("what_if", "What-if", "webui:what_if"),
)


def run_frame(request: HttpRequest, key: str, tab: str, *, advised: bool = False) -> dict[str, Any]:
    """What the header of every tab shows; `advised`: with the advisories, which hold the verdict already."""
    found = runs.find_run(actor_of(request), key)
    row = runs.run_detail(found)
    leases = telemetry.leases(found)
    advice = telemetry.advisories(found) if advised else None
    return {
        "nav": "runs",
        "found": found,
        "tab": tab,
        "tabs": TABS,
        "run": row,
        "may_edit": runs.may_edit(actor_of(request), found),
        "verbs": verbs.verbs(row, may_act=runs.may_act(actor_of(request), found)),
        "pending": verbs.pending(row),
        "notice": verbs.resting(row, timezone.now()) or words.notice(row),
        "verdict": telemetry.verdict(found) if advice is None else advice["verdict"],
        "advice": advice,
        "held": telemetry.held(leases),
        "leases": leases,
        "eta_basis": words.eta_basis(row["progress"]),
    }


@page()
def header_part(request: HttpRequest, key: str) -> HttpResponse:
    """The header alone, re-read while the run moves."""
    return show(request, "webui/parts/run_header.html", run_frame(request, key, request.GET.get("tab", "overview")))
