"""What all pages of a run share: the header, one part on all of them, the tabs and the views of each tab."""

from collections.abc import Mapping
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
from webui.views import verbs, words
from webui.views.base import page, show


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


def run_frame(request: HttpRequest, key: str, tab: str, *, advised: bool = False) -> dict[str, Any]:
    """What the header of every tab shows; `advised`: with the advisories, which hold the verdict already."""
    actor = actor_of(request)
    found = runs.find_run(actor, key)
    row = runs.run_detail(found)
    leases = telemetry.leases(found)
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
        "cost": telemetry.cost_of(found, parts=1) if leases.spans else None,
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
