"""What all pages of a run share: the header, one part on all of them, the tabs and the views of each tab."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from flexmarl.contracts.status import RunReason, RunStatus
from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.runs import checkpoints, queue
from flexmarl.controlplane.runs import queries as runs
from flexmarl.controlplane.runs.choices import archivable
from flexmarl.controlplane.telemetry import queries as telemetry
from flexmarl.controlplane.telemetry import task_beliefs
from webui.figures.steps import spark
from webui.formats import number
from webui.views import verbs, words
from webui.views.base import page, show

HEADER_PARTS = 30
"""Points of the header's lines; each point reads every lease once."""
HEADER_SPARK = (64, 16)


class RunPage(NamedTuple):
    """A page of a run. `key` is what its view calls itself."""

    key: str
    word: str
    route: str
    environment: str = ""
    """Type of the only environment whose runs have it."""
    chooses: bool = False
    """Only runs have it whose task sampler chooses among tasks."""


class Tab(NamedTuple):
    """A tab of a run; one with several views shows them below, and opens with the first."""

    word: str
    views: tuple[RunPage, ...]


TABS = (
    Tab("Overview", (RunPage("overview", "Overview", "webui:run"),)),
    Tab("Metrics", (RunPage("metrics", "Series", "webui:metrics"), RunPage("agents", "Agents", "webui:agents"))),
    Tab(
        "Trajectories",
        (
            RunPage("trajectories", "Recorded", "webui:trajectories"),
            RunPage("sessions", "Sessions", "webui:sessions", environment="program"),
            RunPage("tasks", "Tasks", "webui:tasks", chooses=True),
            RunPage("playground", "Playground", "webui:playground"),
        ),
    ),
    Tab(
        "Performance",
        (
            RunPage("pipeline", "Pipeline", "webui:pipeline"),
            RunPage("load", "Load", "webui:load"),
            RunPage("timeline", "Timeline", "webui:timeline"),
            RunPage("what_if", "What-if", "webui:what_if"),
        ),
    ),
    Tab("Logs", (RunPage("events", "Logs", "webui:events"),)),
    Tab("Config", (RunPage("config", "Settings", "webui:config"), RunPage("attempts", "Attempts", "webui:attempts"))),
    Tab("Checkpoints", (RunPage("checkpoints", "Checkpoints", "webui:checkpoints"),)),
)


def tabs(view: str) -> list[dict[str, Any]]:
    """The tabs of a run as the page shows them: where each leads, and which one holds a view."""
    return [
        {"word": tab.word, "route": tab.views[0].route, "on": any(one.key == view for one in tab.views)} for tab in TABS
    ]


def views_beside(view: str, spec: Mapping[str, Any]) -> tuple[RunPage, ...]:
    """The views of the tab that holds a view, none when it is alone in it, of a run with a specification."""
    kind, chooses = spec["environment"]["type"], task_beliefs.chooses(spec)
    views = next((tab.views for tab in TABS if any(one.key == view for one in tab.views)), ())
    beside = tuple(one for one in views if one.environment in ("", kind) and one.chooses <= chooses)
    return beside if len(beside) > 1 else ()


def over_time(leases: Any, course: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Engines and cost since the first lease, as small lines with what they say in words; None before any time."""
    if not course:
        return None
    engines = telemetry.engines_over_time(leases, HEADER_PARTS)
    spent = [one["cost"] or 0.0 for one in course]
    held = f"{engines[0]} at first, {min(engines)} at least, {max(engines)} at most, {engines[-1]} at the end"
    half = number(spent[(len(spent) - 1) // 2], 2)
    return {
        "engines": spark(engines, *HEADER_SPARK),
        "engines_text": f"Engines since the first lease: {held}",
        "cost": spark([0.0, *spent], *HEADER_SPARK),
        "cost_text": f"Cost since the first lease: {half} after half of the time, {number(spent[-1], 2)} at the end",
    }


def run_frame(request: HttpRequest, key: str, tab: str, *, advised: bool = False) -> dict[str, Any]:
    """What the header of every tab shows; `advised`: with the advisories, which hold the verdict already."""
    actor = actor_of(request)
    found = runs.find_run(actor, key)
    row = runs.run_detail(found)
    leases = telemetry.leases(found)
    cost = telemetry.cost_of(found, HEADER_PARTS) if leases.spans else None
    advice = telemetry.advisories(found) if advised else None
    return {
        "nav": "runs",
        "found": found,
        "tab": tab,
        "tabs": tabs(tab),
        "views_beside": views_beside(tab, row["spec"]),
        "run": row,
        "may_edit": runs.may_edit(actor, found),
        "deletable": archivable(RunStatus(found.state.status), row["pending_verb"]),
        "may_create": actor.may(Scope.RUNS_WRITE, found.project_id),
        "verbs": verbs.verbs(row, may_act=runs.may_act(actor, found), may_edit=runs.may_edit(actor, found)),
        "forked": checkpoints.forked_from(actor, found) if found.parent_id else None,
        "pending": verbs.pending(row),
        "notice": verbs.resting(row, timezone.now()) or words.notice(_awaited(actor, found, row)),
        "verdict": telemetry.verdict(found) if advice is None else advice["verdict"],
        "advice": advice,
        "held": telemetry.held(leases),
        "cost": cost,
        "over_time": over_time(leases, cost["over_time"]) if cost else None,
        "leases": leases,
        "eta_basis": words.eta_basis(row["progress"]),
    }


def _awaited(actor: Actor, found: Any, row: dict[str, Any]) -> dict[str, Any]:
    """A run that waits for devices, with what it lacks and who holds that as the queue says it."""
    place = queue.queue_of(actor, found) if row["reason"] == RunReason.WAITING_FOR_DEVICES else None
    return row if place is None else {**row, "reason_text": place["text"]}


@page()
def header_part(request: HttpRequest, key: str) -> HttpResponse:
    """The header alone, re-read while the run moves."""
    return show(request, "webui/parts/run_header.html", run_frame(request, key, request.GET.get("tab", "overview")))
