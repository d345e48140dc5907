"""Agent definitions: the list, and the editor of one with its versions and what differs between them."""

from difflib import unified_diff
from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse

from flexmarl.contracts.specification.instructions import FILTERS, MOST_CHARACTERS, VARIABLES
from flexmarl.contracts.specification.team import AgentSettings
from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.agents import queries as agents
from flexmarl.controlplane.common.problems import NotFound
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.runs import queries as runs
from webui import yamltext
from webui.views.base import page, project_of, show

Version = dict[str, Any]
"""A version as `agents.version_row` makes it."""
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
    shown = _asked(request, agent, "version") or (saved[0] if saved else None)
    against = _asked(request, agent, "against") or (_before(saved, shown) if shown else None)
    context = {
        "agent": _row(agent),
        "settings": _settings(shown["settings"] if shown else {}),
        "saved": shown["settings"] if shown else {},
        "kept": _without_field(shown["settings"]) if shown else "",
        "shown": shown,
        "based_on": saved[0]["number"] if saved else 0,
        "versions": saved,
        "against": against,
        "changed": differences(against, shown) if shown and against else [],
        "used_by": runs.run_rows(runs.of_agent(actor, agent.project_id, agent.role)[:MOST_RUNS]),
        "may_write": actor.may(Scope.RUNS_WRITE, agent.project_id),
    }
    return show(request, "webui/agent_definition.html", {**context, **_words()})


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


def _asked(request: HttpRequest, agent: Any, name: str) -> Version | None:
    """Return the version that the address names. Raises NotFound."""
    if not (text := request.GET.get(name)):
        return None
    if not text.isdecimal() or len(text) > 9:
        raise NotFound(f"{agent.role} has no version {text[:20]}.")
    return agents.version_row(agents.find_version(agent, int(text)))


def _before(saved: list[Version], shown: Version) -> Version | None:
    return next((one for one in saved if one["number"] < shown["number"]), None)


def differences(old: Version, new: Version) -> list[dict[str, str]]:
    """Return the lines of two versions, marked where they differ; empty when they are the same."""
    was, now = _lines(old), _lines(new)
    kinds = {"+": "added", "-": "removed"}
    lines = list(unified_diff(was, now, lineterm="", n=len(was) + len(now)))[3:]  # without names and place
    return [{"kind": kinds.get(line[:1], "same"), "text": line} for line in lines]


def _lines(version: Version) -> list[str]:
    """Return settings as lines of text: the instructions last, line by line as they were written."""
    settings = _settings(version["settings"])
    instructions = settings.pop("instructions").splitlines()
    return [*yamltext.dump(settings).splitlines(), "instructions:", *(f"  {line}" for line in instructions)]
