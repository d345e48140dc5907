"""Agent definitions: the list, and the editor of one with its versions and what differs between them."""

from functools import partial
from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse

from flexmarl.contracts.specification.instructions import FILTERS, MOST_CHARACTERS, VARIABLES
from flexmarl.contracts.specification.team import AgentSettings
from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.agents import queries as agents
from flexmarl.controlplane.agents import versions
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.runs import queries as runs
from webui import yamltext
from webui.versions import Version, asked, before, differences
from webui.views.base import page, project_of, show

MOST_ROWS = 200
MOST_VERSIONS = 50
MOST_RUNS = 20
FIELDS = ("instructions", "context_tokens", "trainable", "sampling")
SAMPLING_FIELDS = ("temperature", "max_tokens")
"""What the page has fields for."""
ROLE, TEAM, OWN = "solver", "solver, reviser", "You are the solver of a team of two."
"""Of whom the preview speaks at first."""


@page()
def listing(request: HttpRequest) -> HttpResponse:
    """Show the agents of the projects in reach, those that somebody defined first."""
    actor, place, wanted = actor_of(request), project_of(request), request.GET.get("q", "").strip()
    rows = agents.catalogue(actor)
    rows = rows.filter(project_id=place) if place else rows
    rows = rows.filter(role__icontains=wanted) if wanted else rows
    ordered = sorted(rows[:MOST_ROWS], key=lambda one: (agents.newest_of(one) is None, one.project_id, one.role))
    context = {
        "nav": "agent_definitions",
        "rows": [_row(one) for one in ordered],
        "total": rows.count(),
        "q": wanted,
        "place": place,
        "may_write": actor.may(Scope.RUNS_WRITE, place) if place else actor.may(Scope.RUNS_WRITE),
    }
    return show(request, "webui/agent_definitions.html", context)


@page(Scope.RUNS_WRITE)
def new(request: HttpRequest) -> HttpResponse:
    """Show the editor of an agent that is not there yet."""
    place = project_of(request) or "default"
    context = {"agent": {"project": place}, "settings": _settings({}), "saved": {}, "based_on": 0, "may_write": True}
    return show(request, "webui/agent_definition.html", {**context, **_words()})


@page()
def detail(request: HttpRequest, agent_id: UUID) -> HttpResponse:
    """Show an agent's newest version in the editor, or the one that the address names, and what others changed."""
    actor = actor_of(request)
    agent = agents.find_agent(actor, agent_id)
    saved = [agents.version_row(one) for one in agents.versions(agent)[:MOST_VERSIONS]]
    find = partial(_version, agent)
    shown = asked(request, "version", find) or (saved[0] if saved else None)
    against = asked(request, "against", find) or (before(saved, shown) if shown else None)
    context = {
        "agent": _row(agent),
        "settings": _settings(shown["settings"] if shown else {}),
        "saved": shown["settings"] if shown else {},
        "kept": _without_field(shown["settings"]) if shown else "",
        "shown": shown,
        "based_on": saved[0]["number"] if saved else 0,
        "versions": saved,
        "against": against,
        "changed": differences(_lines(against), _lines(shown)) if shown and against else [],
        "used_by": runs.run_rows(runs.of_agent(actor, agent.project_id, agent.role)[:MOST_RUNS]),
        "may_write": actor.may(Scope.RUNS_WRITE, agent.project_id),
    }
    return show(request, "webui/agent_definition.html", {**context, **_words()})


def _version(agent: Any, number: int) -> Version:
    return agents.version_row(versions.find(agents.versions(agent), number))


def _row(agent: Any) -> dict[str, Any]:
    return {**agents.agent_row(agent), "monogram": agents.monograms([agent.role])[agent.role]}


def _words() -> dict[str, Any]:
    return {
        "nav": "agent_definitions", "variables": VARIABLES, "filters": FILTERS, "most": MOST_CHARACTERS,
        "preview": {"role": ROLE, "team": TEAM, "environment": OWN},
    }  # fmt: skip


def _settings(saved: dict[str, Any]) -> dict[str, Any]:
    """Return whole settings: what was not set has its defaults."""
    return AgentSettings.model_validate(saved).model_dump(mode="json")


def _without_field(saved: dict[str, Any]) -> str:
    """Return as YAML what is set and has no field on the page; a new version keeps it."""
    kept = {name: value for name, value in saved.items() if name not in FIELDS}
    sampling = {name: value for name, value in saved.get("sampling", {}).items() if name not in SAMPLING_FIELDS}
    return yamltext.dump(kept | ({"sampling": sampling} if sampling else {})) if kept or sampling else ""


def _lines(version: Version) -> list[str]:
    """Return settings as lines of text: the instructions last, line by line as they were written."""
    settings = _settings(version["settings"])
    instructions = settings.pop("instructions").splitlines()
    return [*yamltext.dump(settings).splitlines(), "instructions:", *(f"  {line}" for line in instructions)]
