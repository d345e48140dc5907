"""Serving keys of a project: what programs ask its agents with, and what each has used. Forms act through REST."""

from typing import Any

from django.http import HttpRequest, HttpResponse

from flexmarl.controlplane.accounts import queries as accounts
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.playground import queries as playground
from webui.grants import named
from webui.views.base import page, project_of, show
from webui.views.people import choose_project

MOST_ROWS = 500
STATES = (("active", "Active"), ("revoked", "Revoked"), ("", "All"))


@page(Scope.MODELS_USE)
def serving_keys(request: HttpRequest) -> HttpResponse:
    """Show the keys of the chosen project; without a choice, the projects to choose from."""
    place = project_of(request)
    if not place:
        return choose_project(request, "serving_keys", "Serving keys", "webui:serving_keys")
    actor = accounts.actor_of(request)
    may = actor.may(Scope.MODELS_USE, place)
    granters = named(accounts.project_admins([place]).get(place, []) or accounts.cluster_admins())
    context = {
        "nav": "serving_keys",
        "place": accounts.project_row(accounts.find_project(actor, place), actor),
        "may": may,
        "keeps": actor.may(Scope.PROJECTS_ADMIN, place),
        "granters": granters,
        "origin": f"{request.scheme}://{request.get_host()}",
    }
    return show(request, "webui/serving_keys.html", {**context, **(_listed(request, place) if may else {})})


def _listed(request: HttpRequest, place: str) -> dict[str, Any]:
    wanted, model = (request.GET.get(name, "").strip() for name in ("q", "model"))
    state = request.GET.get("state", "active")
    state = state if state in {value for value, _ in STATES} else "active"
    rows = [playground.key_row(key) for key in playground.keys_of(accounts.actor_of(request), place)[:MOST_ROWS]]
    found = [
        row
        for row in rows
        if wanted.lower() in row["name"].lower() and (not model or not row["models"] or model in row["models"])
    ]
    counts = [(value, word, sum(not value or row["state"] == value for row in found)) for value, word in STATES]
    return {
        "rows": [{**row, "share": _share(row)} for row in found if not state or row["state"] == state],
        "total": len(rows),
        "counts": counts,
        "state": state,
        "q": wanted,
        "model": model,
        "defaults": playground.DEFAULT_QUOTAS,
    }


def _share(row: dict[str, Any]) -> float:
    """Return which part of today's tokens is used."""
    return min(1.0, int(row["today"]["tokens"]) / int(row["tokens_per_day"]))
