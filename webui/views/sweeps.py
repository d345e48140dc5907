"""Sweeps: the list, the form of a new one, and one with its trials."""

from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse, JsonResponse

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.api.filters import Parameter
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.experiments import queries as experiments
from flexmarl.controlplane.sweeps import queries as sweeps
from flexmarl.controlplane.sweeps.api.serializers import SWEEP_STATES
from webui.figures import searched
from webui.narrowing import chips, narrowed
from webui.views.base import is_part, page, project_of, show

FILTERS = (
    Parameter("q", "Part of the name.", lookup="name__icontains"),
    Parameter("state", "State.", choices=tuple(SWEEP_STATES), lookup="state"),
)


@page()
def listing(request: HttpRequest) -> HttpResponse:
    """Show sweeps, newest first."""
    actor, place = actor_of(request), project_of(request)
    rows = sweeps.sweeps(actor)
    rows = rows.filter(project_id=place) if place else rows
    context: dict[str, Any] = {
        "nav": "experiments",
        "q": request.GET.get("q", ""),
        "asked": request.GET.get("state", ""),
        "states": SWEEP_STATES,
        "chips": chips(request.GET, {"state": "State"}),
        "place": place,
        "may_write": actor.may(Scope.RUNS_WRITE, place) if place else actor.may(Scope.RUNS_WRITE),
        **narrowed(request, rows, FILTERS, sweeps.sweep_row),
    }
    return show(request, "webui/sweeps.html", context)


@page(Scope.RUNS_WRITE)
def new(request: HttpRequest) -> HttpResponse:
    """Show the form of a new sweep."""
    context = {
        "nav": "experiments",
        "templates": experiments.templates(),
        "experiment": request.GET.get("experiment", "")[:64],
        "base": request.GET.get("from", "")[:64],
        "place": project_of(request) or "default",
    }
    return show(request, "webui/new_sweep.html", context)


@page()
def detail(request: HttpRequest, sweep_id: UUID) -> HttpResponse:
    """Show how far a sweep is: its trials, the best of them, what it has used."""
    found = sweeps.find_sweep(actor_of(request), sweep_id)
    row = sweeps.sweep_detail(found)
    plan = row["plan"]
    context = {
        "nav": "experiments",
        "sweep": row,
        "pointers": [one["pointer"] for one in plan["parameters"]],
        "trials": [
            {**one, "cells": [searched.said(one["values"].get(p["pointer"])) for p in plan["parameters"]]}
            for one in row["tried"]
        ],
        "may_change": sweeps.may_change(actor_of(request), found),
    }
    return show(request, "webui/parts/sweep.html" if is_part(request) else "webui/sweep.html", context)


@page()
def figures(request: HttpRequest, sweep_id: UUID) -> JsonResponse:
    """Answer the charts of a sweep."""
    row = sweeps.sweep_detail(sweeps.find_sweep(actor_of(request), sweep_id))
    return JsonResponse({"figures": searched.charts(row)})
