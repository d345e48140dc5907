"""Experiments: the list, one with its runs and verdict, and runs beside each other."""

from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.http import HttpRequest, HttpResponse, JsonResponse

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.api.filters import Parameter
from flexmarl.controlplane.common.problems import ValidationProblem
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.experiments import queries as experiments
from flexmarl.controlplane.experiments.api.serializers import VERDICTS
from flexmarl.controlplane.runs import queries as runs
from flexmarl.controlplane.telemetry.comparison import comparing
from webui.figures import compared
from webui.narrowing import chips, narrowed
from webui.views.base import page, project_of, show

FILTERS = (
    Parameter("q", "Part of the name.", lookup="name__icontains"),
    Parameter("verdict", "Verdict.", choices=tuple(VERDICTS), lookup="verdict"),
)
MOST_RUNS = 200


@page()
def listing(request: HttpRequest) -> HttpResponse:
    """Show experiments, newest first."""
    actor, place = actor_of(request), project_of(request)
    rows = experiments.experiments(actor)
    rows = rows.filter(project_id=place) if place else rows
    context: dict[str, Any] = {
        "nav": "experiments",
        "q": request.GET.get("q", ""),
        "asked": request.GET.get("verdict", ""),
        "verdicts": VERDICTS,
        "chips": chips(request.GET, {"verdict": "Verdict"}),
        "place": place,
        "may_write": actor.may(Scope.RUNS_WRITE, place) if place else actor.may(Scope.RUNS_WRITE),
        **narrowed(request, rows, FILTERS, experiments.experiment_row),
    }
    return show(request, "webui/experiments.html", context)


@page()
def detail(request: HttpRequest, experiment_id: UUID) -> HttpResponse:
    """Show an experiment: question, runs, notes, verdict."""
    actor = actor_of(request)
    found = experiments.find_experiment(actor, experiment_id)
    own = runs.light(runs.runs(actor).filter(experiment_id=found.pk))
    context = {
        "nav": "experiments",
        "experiment": experiments.experiment_detail(found),
        "rows": runs.run_rows(own[:MOST_RUNS]),
        "most": MOST_RUNS,
        "verdicts": VERDICTS,
        "may_write": actor.may(Scope.RUNS_WRITE, found.project_id),
    }
    return show(request, "webui/experiment.html", context)


@page()
def compare(request: HttpRequest) -> HttpResponse:
    """Show runs beside each other: what differs, curves, final figures. All of its state is in the address."""
    context: dict[str, Any] = {"nav": "experiments", "given": request.GET, "most": comparing.MOST_RUNS}
    try:
        found, asked = _compared(request), _asked(request)
    except ValidationProblem as refused:
        hint = refused.errors[0].hint if refused.errors else ""
        return show(request, "webui/compare_runs.html", {**context, "refusal": f"{refused.detail} {hint}".strip()})
    context |= {
        "found": found,
        "facets": [compared.table(found, facet) for facet in found["facets"]],
        "heads": [{**one, "label": compared.label(one), "hue": compared.hue(one)} for one in found["variants"]],
        "differences": compared.differences(found),
        "experiment": asked["experiment"],
        "baseline": asked["baseline"],
        "figures_url": f"/compare/figures?{urlencode({name: value for name, value in asked.items() if value})}",
    }
    return show(request, "webui/compare_runs.html", context)


@page()
def figures(request: HttpRequest) -> JsonResponse:
    """Answer the charts of a comparison, one for each agent."""
    return JsonResponse({"figures": compared.charts(_compared(request))})


def _asked(request: HttpRequest) -> dict[str, str]:
    return {name: request.GET.get(name, "")[:4000] for name in ("runs", "experiment", "baseline", "metric")}


def _compared(request: HttpRequest) -> dict[str, Any]:
    asked = _asked(request)
    named = [part for part in asked["runs"].replace(" ", ",").split(",") if part]
    found, baseline = comparing.chosen(actor_of(request), named, asked["experiment"], asked["baseline"])
    return comparing.compare(found, baseline, asked["metric"] or comparing.USUAL)
