"""Teams of a project: the list, and the editor of one with its drawing, its versions and what differs between them."""

from collections.abc import Mapping
from functools import partial
from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_POST

from flexmarl.contracts.specification.environment import Sums
from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.agents import queries as agents
from flexmarl.controlplane.agents import versions
from flexmarl.controlplane.common.api.parsers import safe_json
from flexmarl.controlplane.common.problems import ValidationProblem
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.experiments import queries as experiments
from flexmarl.controlplane.registry import queries as registry
from flexmarl.controlplane.runs import queries as runs
from webui import reading, yamltext
from webui.figures.team import TeamGraph, team_graph
from webui.forms import model_choices
from webui.forms.team_form import kinds_for_page, team_form, team_schema
from webui.forms.team_of_run import team_of
from webui.versions import Version, asked, before, differences
from webui.views.base import page, project_of, show
from webui.views.team_rows import seats_of, settings_of, team_rows

MOST_ROWS = 200
MOST_VERSIONS = 50
MOST_RUNS = 20
MOST_OFFERED = 200
"""Definitions and models that the form offers; others are named in it all the same."""
MOST_TEXT = 200_000
"""Bytes of settings that the form is made for; the API has its own limit."""
FIRST = "chat_sums"
"""Template whose team a new one begins with."""


@page()
def listing(request: HttpRequest) -> HttpResponse:
    """Show the teams of the projects in reach."""
    actor, place, wanted = actor_of(request), project_of(request), request.GET.get("q", "").strip()
    rows = agents.teams(actor)
    rows = rows.filter(project_id=place) if place else rows
    rows = rows.filter(name__icontains=wanted) if wanted else rows
    listed = list(rows[:MOST_ROWS])
    context = {
        "nav": "teams",
        "rows": team_rows(listed),
        "total": rows.count(),
        "q": wanted,
        "place": place,
        "may_write": actor.may(Scope.RUNS_WRITE, place) if place else actor.may(Scope.RUNS_WRITE),
    }
    return show(request, "webui/teams.html", context)


@page(Scope.RUNS_WRITE)
def new(request: HttpRequest) -> HttpResponse:
    """Show the editor of a team that is not there yet; it begins with the team of a template or of a run."""
    if "from" in request.GET:
        run = runs.find_run(actor_of(request), request.GET["from"])
        place, settings, begins = run.project_id, team_of(run.spec), run.key
    else:
        row = experiments.template(request.GET.get("template", FIRST))
        place, settings, begins = project_of(request) or "default", team_of(row["spec"]), row["title"]
    context = {"team": {"project": place}, "based_on": 0, "may_write": True, "begins": begins}
    context |= _editor(request, settings, place)
    return show(request, "webui/team.html", {**context, "templates": _templates()})


@page()
def detail(request: HttpRequest, team_id: UUID) -> HttpResponse:
    """Show a team's newest version in the editor, or the one that the address names, and what others changed."""
    actor = actor_of(request)
    team = agents.find_team(actor, team_id)
    find = partial(_version, team)
    saved = [agents.team_version_row(one) for one in agents.team_versions(team)[:MOST_VERSIONS]]
    shown = asked(request, "version", find) or saved[0]
    against = asked(request, "against", find) or before(saved, shown)
    context = {
        "team": agents.team_row(team),
        "shown": shown,
        "based_on": saved[0]["number"],
        "versions": saved,
        "against": against,
        "changed": differences(_lines(against), _lines(shown)) if against else [],
        "used_by": runs.run_rows(runs.of_team(actor, team.project_id, team.name)[:MOST_RUNS]),
        "may_write": actor.may(Scope.RUNS_WRITE, team.project_id),
        **_editor(request, shown["settings"], team.project_id),
    }
    return show(request, "webui/team.html", context)


@require_POST
@page(Scope.RUNS_WRITE)
def form_part(request: HttpRequest) -> HttpResponse:
    """The form of settings as they are edited, right or wrong."""
    try:
        given = safe_json(request.body[: MOST_TEXT + 1])
        settings, project = given["settings"], given["project"]
    except (ValueError, KeyError, TypeError):
        settings, project = None, None
    if not isinstance(settings, dict) or not isinstance(project, str):
        raise ValidationProblem(
            f"Send JSON of at most {MOST_TEXT} bytes with settings, an object, and project, a name."
        )
    return show(request, "webui/parts/team_form.html", {"may_write": True, **_form(request, settings, project)})


def _editor(request: HttpRequest, settings: Mapping[str, Any], project: str) -> dict[str, Any]:
    """Return what the editor shows of settings: their form, their text and the drawing."""
    data = {"settings": settings, "kinds": kinds_for_page(team_schema())}
    form = _form(request, settings, project)
    return {"nav": "teams", "data": data, "text": "\n".join(_text(settings)), "graph": _drawing(settings), **form}


def _form(request: HttpRequest, settings: Mapping[str, Any], project: str) -> dict[str, Any]:
    """Return what the form of settings shows, with the definitions and models that it offers."""
    actor = actor_of(request)
    newest = agents.newest_of_project(actor, project, MOST_OFFERED)
    form = team_form(settings, newest)
    other = (
        model_choices.choice("A folder of the hosts", {"type": "folder"}),
        model_choices.choice("A checkpoint of a run", {"type": "checkpoint"}),
    )
    return {
        "form": form,
        "marks": {mark["role"]: mark for mark in reading.role_marks([role for role in form.roles if role], project)},
        "definitions": sorted(newest.items()),
        "models": (*model_choices.offered(registry.offered(actor, MOST_OFFERED), False), ("Other", other)),
    }


def _drawing(settings: Mapping[str, Any]) -> TeamGraph | None:
    """Draw who hears whom; None where the environment says it, or the graph is of a plug-in that is not here."""
    team = settings_of(settings)
    if team is None or team.graph is None:
        return None
    facts = Sums(graph=team.graph).facts()
    marks = {mark["role"]: mark for mark in reading.role_marks([role.name for role in facts.roles])}
    return team_graph(facts.roles, marks, facts.stages)


def _text(settings: Mapping[str, Any]) -> list[str]:
    """Return settings as lines of YAML: the graph first, agents in the order of their seats, policies in theirs."""
    team = settings_of(settings)
    parts = dict(settings) if team is None else team.model_dump(mode="json", exclude_unset=True)
    agents_of = {name: parts["agents"][name] for name in seats_of(settings)}
    policies = parts.get("policies", {})
    used = dict.fromkeys(agent.get("policy") or name for name, agent in agents_of.items())
    ordered = {"agents": agents_of, "policies": {name: policies[name] for name in used if name in policies}}
    return yamltext.dump({**parts, **{name: part for name, part in ordered.items() if part}}).splitlines()


def _lines(version: Version) -> list[str]:
    return _text(version["settings"])


def _version(team: Any, number: int) -> Version:
    return agents.team_version_row(versions.find(agents.team_versions(team), number))


def _templates() -> list[dict[str, Any]]:
    """Return the templates whose teams have a graph."""
    return [row for row in experiments.templates() if "graph" in row["spec"]["environment"]]
