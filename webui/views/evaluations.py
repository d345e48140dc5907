"""Evaluations and suites: lists, the forms of new ones, the table of an evaluation, the leaderboard of a suite."""

import json
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from flexmarl.contracts.packaged_models import PACKAGED_MODELS
from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.problems import NotFound
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.datasets import queries as datasets
from flexmarl.controlplane.evaluations import queries as evaluations
from flexmarl.controlplane.evaluations import results
from flexmarl.controlplane.evaluations.filters import FILTERS, SUITE_FILTERS
from flexmarl.controlplane.experiments import queries as experiments
from flexmarl.controlplane.registry import queries as registry
from flexmarl.controlplane.runs import queries as runs
from webui.forms import model_choices
from webui.narrowing import chips, link_with, narrowed
from webui.views.base import page, project_of, projects_of, show

MOST_SUITES = 200
MOST_MODELS = 50
MOST_DATASETS = 100
USUAL_TEMPLATE = "chat_sums"
ORDERS = {
    "label": "Model",
    "pass": "pass@1",
    "score": "Score",
    "tokens": "Tokens",
    "attempt_seconds": "Time per attempt",
}
_HIGH_FIRST = ("pass", "score")
_OPEN = ("waiting", "running")


@page()
def listing(request: HttpRequest) -> HttpResponse:
    """Show evaluations, newest first, narrowed by the address in the words of the API."""
    found, place = evaluations.evaluations(actor_of(request)), project_of(request)
    found = found.filter(project_id=place) if place else found
    words = {"suite": "Suite is"}
    context = {
        "nav": "evaluations",
        "chips": chips(request.GET, words),
        "q": request.GET.get("q", ""),
        "may_create": actor_of(request).may(Scope.RUNS_WRITE),
        "several": not place and len(projects_of(request)) > 1,
        **narrowed(request, found, FILTERS, evaluations.evaluation_row),
    }
    return show(request, "webui/evaluations.html", context)


@page(Scope.RUNS_WRITE)
def new(request: HttpRequest) -> HttpResponse:
    """Show the form of an evaluation; the address fills it with a suite and a checkpoint or a model."""
    actor, place = actor_of(request), project_of(request)
    found = evaluations.suites(actor)
    found = found.filter(project_id=place) if place else found
    suites = [evaluations.suite_row(one) for one in found[:MOST_SUITES]]
    asked = {name: request.GET.get(name, "") for name in ("suite", "run", "step", "model")}
    known = {one["id"] for one in suites}
    models = [{"label": name, "value": json.dumps({"type": "package", "name": name})} for name in PACKAGED_MODELS]
    models += [
        {"label": f"{one['name']} v{one['revision']} of {one['project']}", "value": json.dumps(_source(one))}
        for one in registry.offered(actor, MOST_MODELS)
    ]
    for model in models:
        model["chosen"] = "yes" if asked["model"] and json.loads(model["value"])["name"] == asked["model"] else ""
    context = {
        "nav": "evaluations",
        "suites": suites,
        "chosen": asked["suite"] if asked["suite"] in known else "",
        "asked": asked,
        "kept": urlencode(_asked(request)),
        "models": models,
    }
    return show(request, "webui/new_evaluation.html", context)


def _source(model: dict[str, Any]) -> dict[str, Any]:
    return {"type": "registered", **{key: model[key] for key in ("name", "project")}, "version": model["revision"]}


@page()
def detail(request: HttpRequest, evaluation_id: UUID) -> HttpResponse:
    """Show the table of an evaluation: models by parts of the suite."""
    actor = actor_of(request)
    found = evaluations.find_evaluation(actor, evaluation_id)
    row = results.detail(found)
    context = {
        "nav": "evaluations",
        "evaluation": row,
        "open": row["state"] in _OPEN,
        "may_act": actor.may(Scope.RUNS_WRITE, found.project_id),
        "last_k": row["ks"][-1],
    }
    return show(request, "webui/evaluation.html", context)


@page()
def suites(request: HttpRequest) -> HttpResponse:
    """Show suites, newest first."""
    found, place = evaluations.suites(actor_of(request)), project_of(request)
    found = found.filter(project_id=place) if place else found
    context = {
        "nav": "evaluations",
        "q": request.GET.get("q", ""),
        "may_create": actor_of(request).may(Scope.RUNS_WRITE),
        "several": not place and len(projects_of(request)) > 1,
        **narrowed(request, found, SUITE_FILTERS, evaluations.suite_row),
    }
    return show(request, "webui/suites.html", context)


@page(Scope.RUNS_WRITE)
def new_suite(request: HttpRequest) -> HttpResponse:
    """Show the form of a suite, filled from a template, a run or the newest version of another suite.

    Who comes from a new evaluation goes back to it, with what was to be evaluated.
    """
    actor = actor_of(request)
    writable = [name for name in projects_of(request) if actor.may(Scope.RUNS_WRITE, name)]
    chosen = request.GET.get("project") or project_of(request)
    templates = [row["name"] for row in experiments.templates()]
    owned = datasets.offered(actor, MOST_DATASETS)
    start = request.GET.get("start", "")
    dataset = next((row for row in owned if start == row["id"]), None)
    start = start if dataset or start in templates else USUAL_TEMPLATE
    content = _of_dataset(actor, dataset) if dataset else _content(experiments.template(start)["spec"], start)
    given: dict[str, Any] = {"name": "", "based_on": "", "content": content}
    if reference := request.GET.get("from"):
        given = _from_suite(request, reference)
    elif (run := request.GET.get("run")) and not request.GET.get("start"):
        given["content"] = _content(runs.run_detail(runs.find_run(actor, run))["spec"])
    asked = _asked(request)
    sampling = given["content"]["sampling"]
    context = {
        "nav": "evaluations",
        "writable": writable,
        "chosen": chosen if chosen in writable else next(iter(writable), ""),
        "templates": templates,
        "datasets": owned,
        "start": start,
        "given": given,
        "sampling": sampling,
        "asked": asked,
        "then": f"{reverse('webui:new_evaluation')}?{urlencode(asked)}" if asked else "",
        "parts": json.dumps(given["content"]["parts"], indent=2),
    }
    return show(request, "webui/new_suite.html", context)


def _asked(request: HttpRequest) -> dict[str, str]:
    """Return what of the address says what shall be evaluated."""
    return {name: request.GET[name] for name in ("run", "step", "model") if request.GET.get(name)}


def _content(spec: dict[str, Any], name: str = "") -> dict[str, Any]:
    """Return a suite of one part: the held-out tasks of a specification's environment."""
    first = next(iter(spec["agents"].values()))["sampling"]
    environment = spec["environment"]
    part = {"name": name or environment["type"], "environment": environment, "tasks": spec["evaluation"]["tasks"]}
    kept = {"temperature": first["temperature"], "max_tokens": first["max_tokens"]}
    return {"parts": [part], "attempts": 1, "greedy": True, "seed": 0, "sampling": kept}


def _of_dataset(actor: Actor, row: dict[str, Any]) -> dict[str, Any]:
    """Return a suite of the rows that a dataset holds out, played as the template of such datasets does."""
    newest = datasets.newest(datasets.find_dataset(actor, UUID(row["id"])))
    template = model_choices.template_of_dataset(newest.mapping if newest else {})
    spec = experiments.template(template)["spec"]
    own = {**spec["environment"], "dataset": model_choices.named_dataset(row)}
    tasks = {**spec["evaluation"], "tasks": max(1, newest.held_out if newest else 0)}
    return _content({**spec, "environment": own, "evaluation": tasks}, row["name"])


def _from_suite(request: HttpRequest, reference: str) -> dict[str, Any]:
    try:
        found = evaluations.find_suite(actor_of(request), UUID(reference))
    except ValueError as error:
        raise NotFound("There is no such suite.") from error
    version = evaluations.find_version(found)
    return {"name": found.name, "based_on": version.number, "content": version.content}


@page()
def suite(request: HttpRequest, suite_id: UUID) -> HttpResponse:
    """Show the leaderboard of a version of a suite, sorted and filtered by the address."""
    actor = actor_of(request)
    found = evaluations.find_suite(actor, suite_id)
    text = request.GET.get("version", "")
    if text and (not text.isdecimal() or len(text) > 9):
        raise NotFound(f"{found.name} has no version {text[:20]}.")
    version = evaluations.find_version(found, int(text) if text else None)
    board = results.leaderboard(version)
    q, order = request.GET.get("q", ""), request.GET.get("sort", "pass")
    order = order if order in ORDERS else "pass"
    rows = [{**row, "rank": place} for place, row in enumerate(board["rows"], start=1)]
    rows = sorted([row for row in rows if q.lower() in row["label"].lower()], key=lambda row: _sorted_by(row, order))
    context = {
        "nav": "evaluations",
        "suite": evaluations.suite_row(found),
        "board": board,
        "rows": rows,
        "all": len(board["rows"]),
        "q": q,
        "sort": order,
        "heads": {name: {"word": word, "url": link_with(request, sort=name)} for name, word in ORDERS.items()},
        "versions": [evaluations.version_row(one) for one in evaluations.versions(found)[:50]],
        "parts": [part["name"] for part in version.content["parts"]],
        "content": json.dumps(version.content, indent=2),
        "may_change": actor.may(Scope.RUNS_WRITE, found.project_id),
        "evaluate_url": f"/evaluations/new?{urlencode({'suite': str(found.id)})}",
    }
    return show(request, "webui/suite.html", context)


def _sorted_by(row: dict[str, Any], order: str) -> tuple[Any, ...]:
    value = row["pass_at_1"]["value"] if order == "pass" else row[order]
    return (-value if order in _HIGH_FIRST else value, row["label"])
