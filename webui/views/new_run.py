"""New run: a form or YAML at the left, the plan at the right. The page plans and starts through the API."""

from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_POST
from pydantic import TypeAdapter

from flexmarl.contracts.problems import SpecProblems
from flexmarl.contracts.resolve import parse_yaml
from flexmarl.contracts.schema_nodes import Schema
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.specification.environment import EnvironmentSpec
from flexmarl.contracts.specification.environment_base import EnvironmentOptions
from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.agents import queries as agents
from flexmarl.controlplane.agents import versions
from flexmarl.controlplane.common.api.parsers import safe_json
from flexmarl.controlplane.common.problems import NotFound, ValidationProblem
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.datasets import queries as datasets
from flexmarl.controlplane.experiments import queries as experiments
from flexmarl.controlplane.inventory import queries as inventory
from flexmarl.controlplane.packages import naming as pinning
from flexmarl.controlplane.packages import queries as packages
from flexmarl.controlplane.registry import queries as registry
from flexmarl.controlplane.runs import checkpoints
from flexmarl.controlplane.runs import queries as runs
from flexmarl.simulator.reporting.report import CAUSES, USES
from webui import reading, templates_offered, yamltext
from webui.figures.simulated import word_of
from webui.figures.team import team_graph
from webui.forms import model_choices, package_choice, sections, team_choice
from webui.forms.fields import unions
from webui.views.base import page, project_of, projects_of, show
from webui.views.team_rows import team_rows

DEFAULT_PROJECT = "default"
MOST_TEXT = 200_000
"""Characters of a specification the page reads; the API has its own limit."""
BOUNDS = {f"/batch/{name}": "/batch/tasks_per_step" for name in ("micro_batch_groups", "rollout_groups")}
"""Settings that are refused above another one, and follow it in the form."""
MOST_MODELS = 200
"""Imported models that the page offers; others are named in the YAML."""
MOST_TEAMS = 5
"""Saved teams that the choice shows; others are found under Teams."""


@page(Scope.RUNS_WRITE)
def new_run(request: HttpRequest) -> HttpResponse:
    """Choose a template, then change and start it."""
    choices = experiments.templates()
    name, cloned = request.GET.get("template", ""), request.GET.get("from", "")
    model, foreign, team = _model(request), _package(request), _team(request)
    if not name and not cloned and foreign is None:
        return _choose(request, model, team)
    base = foreign or (_clone(request, cloned) if cloned else experiments.template(name))
    base = base if team is None or cloned else team_choice.with_team(base, team, team["project"])
    fork = _fork(request, cloned) if cloned and "checkpoint" in request.GET else None
    base |= {"title": f"Fork of {cloned}"} if fork else {}
    base |= {"spec": package_choice.with_tools(base["spec"], _tools(request))}
    environment = ExperimentSpec.model_validate(base["spec"]).environment
    facts = environment.facts()
    document = {**base["spec"], "agents": {role.name: base["spec"]["agents"][role.name] for role in facts.roles}}
    marks = {mark["role"]: mark for mark in reading.role_marks(list(document["agents"]))}
    schema = _schema(request, environment)
    rows, groups = sections.agent_rows(document, schema), sections.sections(document, schema)
    fields = list(sections.every_field(rows, groups))
    actor, chosen = actor_of(request), project_of(request)
    writable = [name for name in projects_of(request) if actor.may(Scope.RUNS_WRITE, name)]
    context = {
        "nav": "runs",
        "writable": writable,
        "chosen": chosen if chosen in writable else DEFAULT_PROJECT,
        "pools": inventory.pool_names(),
        "base": base,
        "fork": fork,
        "templates": choices,
        "rows": [(row, marks[row.role]) for row in rows],
        "groups": groups,
        "marks": marks,
        "preset_groups": _preset_groups(),
        "graph": team_graph(facts.roles, marks, facts.stages),
        "models": model_choices.offered(registry.offered(actor, MOST_MODELS), environment.converses),
        "model": model,
        "datasets": model_choices.datasets(datasets.offered(actor, MOST_MODELS)),
        "environment_title": facts.title,
        "solved_text": facts.solved_text,
        "data": {
            "template": base["name"],
            "preset": base["preset"],
            "document": document,
            "unions": unions(document, schema),
            "reads": sections.reads(fields),
            "plain": sections.plain(fields),
            "like": {f"/policies/{one}/devices/most": f"/policies/{one}/devices/least" for one in document["policies"]},
            "bounds": BOUNDS,
            "template_document": experiments.resolved(base["name"]),
            "agents": marks,
            "causes": {use: {cause: word_of(cause, use) for cause in CAUSES} for use in USES},
            "name": base["run_name"] if cloned else "",
            "parent": {"key": base["key"], "id": base["id"]} if cloned else None,
            "fork": {"checkpoint": fork["step"]} if fork else None,
            "model": model_choices.registered(model) if model else None,
            "dataset": _dataset(request),
        },
    }
    return show(request, "webui/new_run.html", context)


def _choose(request: HttpRequest, model: dict[str, Any] | None, team: dict[str, Any] | None) -> HttpResponse:
    """Show the templates, those alone that a team can play where one is named; without either, other ways as well."""
    rows = [row for row in experiments.templates() if team is None or team_choice.fits(team, row["spec"])]
    query = request.GET.get("q", "").strip()
    kept = ({"model": model["id"]} if model else {}) | (
        {"team": team["team"], "version": team["number"]} if team else {}
    )
    context = {
        "nav": "runs",
        "groups": templates_offered.grouped(rows, query),
        "starts": () if query or kept else templates_offered.STARTS,
        "teams": [] if kept else _teams(request, query),
        "model": model,
        "team": team,
        "q": query,
        "kept": kept,
        "more": f"&{urlencode(kept)}" if kept else "",
    }
    return show(request, "webui/new_run_choose.html", context)


def _teams(request: HttpRequest, query: str) -> list[dict[str, Any]]:
    """The teams that were changed last, of those whose name holds every word of a query."""
    place = project_of(request)
    rows = agents.teams(actor_of(request)).order_by("-updated_at")
    rows = rows.filter(project_id=place) if place else rows
    for word in query.split():
        rows = rows.filter(name__icontains=word)
    return team_rows(list(rows[:MOST_TEAMS]))


def _model(request: HttpRequest) -> dict[str, Any] | None:
    """The imported model that the address names, which the run's policies shall be of."""
    try:
        reference = UUID(request.GET["model"])
    except KeyError:
        return None
    except ValueError:
        raise NotFound("There is no such model.") from None
    return registry.model_row(registry.find_model(actor_of(request), reference))


def _team(request: HttpRequest) -> dict[str, Any] | None:
    """The version of a team that the address names, which shall play the run."""
    if "team" not in request.GET:
        return None
    number = request.GET.get("version", "")
    try:
        found = agents.find_team(actor_of(request), UUID(request.GET["team"]))
    except ValueError:
        raise NotFound("There is no such team.") from None
    rows = agents.team_versions(found)
    last = rows[0].number
    wanted = int(number) if number.isascii() and number.isdigit() and len(number) < 10 else last
    return {**agents.team_version_row(versions.find(rows, wanted)), "project": found.project_id}


def _dataset(request: HttpRequest) -> dict[str, Any] | None:
    """What names the dataset of the address, which the run shall train on, and how many rows it can evaluate."""
    if "dataset" not in request.GET:
        return None
    try:
        found = datasets.find_dataset(actor_of(request), UUID(request.GET["dataset"]))
    except ValueError:
        raise NotFound("There is no such dataset.") from None
    newest = datasets.newest(found)
    named = model_choices.named_dataset(datasets.dataset_row(found))
    return {"named": named, "held_out": newest.held_out if newest else 0}


def _package(request: HttpRequest) -> dict[str, Any] | None:
    """What a run of the package's environment or program begins with that the address names."""
    if "package" not in request.GET:
        return None
    actor, named = actor_of(request), package_choice.named(request.GET)
    try:
        found = packages.find_package(actor, UUID(request.GET["package"]))
        written = pinning.completed(actor, found.project, named)
    except ValueError:
        raise NotFound("There is no such package.") from None
    if isinstance(written, list):
        raise NotFound(" ".join(f"{problem.detail} {problem.hint}".strip() for problem in written))
    assert written is not None
    written.get("runner", written)["package"] = str(found)
    return package_choice.base(packages.package_row(found), written)


def _tools(request: HttpRequest) -> dict[str, Any] | None:
    """The server of tools that the address names, which agents shall have."""
    if "tools" not in request.GET:
        return None
    try:
        found = packages.find_package(actor_of(request), UUID(request.GET["tools"]))
    except ValueError:
        raise NotFound("There is no such package.") from None
    return {"type": "mcp", "package": str(found), "server": request.GET.get("server", "")}


def _schema(request: HttpRequest, environment: EnvironmentOptions) -> Schema:
    """The schema of the specification; options of what a package offers are those of its manifest."""
    schema = experiments.config_schema()
    foreign = package_choice.foreign(environment)
    if foreign is None or not foreign.pinned.id:
        return schema
    try:
        found = packages.find_package(actor_of(request), UUID(foreign.pinned.id))
    except NotFound:
        return schema
    return package_choice.with_options(schema, foreign, found.manifest)


def _preset_groups() -> list[tuple[str, list[dict[str, Any]]]]:
    """Return the presets by where they come from, each part by title."""
    rows = sorted(experiments.presets(), key=lambda row: row["title"].lower())
    return [
        ("Published systems and methods", [row for row in rows if row["paper"]]),
        ("FlexMARL combinations", [row for row in rows if not row["paper"]]),
    ]


def _clone(request: HttpRequest, key: str) -> dict[str, Any]:
    """A run's specification as the base of a new one, on the template the run began with."""
    row = runs.run_detail(runs.find_run(actor_of(request), key))
    title = f"Copy of {row['key']}"
    return {
        "name": row["template"],
        "title": title,
        "preset": row["preset"],
        "description": f"The specification of {row['key']}.",
        "spec": row["spec"],
        "run_name": row["name"],
        "key": row["key"],
        "id": row["id"],
    }


def _fork(request: HttpRequest, key: str) -> dict[str, Any]:
    """The checkpoint that the new run's policies shall begin with."""
    step = request.GET["checkpoint"]
    found = runs.find_run(actor_of(request), key)
    row = checkpoints.one(found, int(step) if step.isascii() and step.isdigit() and len(step) < 10 else -1)
    return {
        "step": row["step"],
        "parts": sorted(row["versions"].items()),
        "state_kept": all(part["training_state"] for part in row["policies"].values()),
    }


@require_POST
@page(Scope.RUNS_WRITE)
def graph(request: HttpRequest) -> HttpResponse:
    """Draw the team that an environment of a document asks for; nothing of it that is wrong is said here."""
    try:
        given = safe_json(request.body[: MOST_TEXT + 1])["environment"]
        facts = TypeAdapter(EnvironmentSpec).validate_python(given).facts()
    except (ValueError, KeyError, TypeError, LookupError):
        return HttpResponse(status=204)
    marks = {mark["role"]: mark for mark in reading.role_marks([role.name for role in facts.roles])}
    return show(request, "webui/parts/team_graph.html", {"graph": team_graph(facts.roles, marks, facts.stages)})


@require_POST
@page(Scope.RUNS_WRITE)
def text(request: HttpRequest) -> HttpResponse:
    """Turn a document into YAML, or YAML into a document, with the line of each value."""
    if len(request.body) > MOST_TEXT:
        raise ValidationProblem(f"The text is longer than {MOST_TEXT} bytes.")
    try:
        body = safe_json(request.body)
    except ValueError as error:
        raise ValidationProblem(f"Send JSON with spec or yaml: {error}") from None
    if not isinstance(body, dict):
        raise ValidationProblem("Send a JSON object with spec or yaml.")
    if "spec" in body:
        written = yamltext.dump(body["spec"])
        return JsonResponse({"yaml": written, "lines": yamltext.lines(written), "errors": []})
    given = str(body.get("yaml", ""))
    try:
        parsed = parse_yaml(given)
    except SpecProblems as refused:
        errors = [problem.model_dump() for problem in refused.problems]
        return JsonResponse({"spec": None, "lines": {}, "errors": errors})
    return JsonResponse({"spec": parsed, "lines": yamltext.lines(given), "errors": []})
