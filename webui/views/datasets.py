"""Datasets: the list, the import of a file with its preview, and one dataset with its rows. All state is in the URL."""

from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.http import HttpRequest, HttpResponse

from flexmarl.contracts.specification.scores import SCORE
from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.api.filters import Parameter
from flexmarl.controlplane.common.problems import NotFound
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.datasets import fetches
from flexmarl.controlplane.datasets import queries as datasets
from flexmarl.controlplane.datasets.filters import FILTERS, ORDERINGS, ROW_FILTERS
from flexmarl.controlplane.runs import queries as runs
from flexmarl.controlplane.runs.row_sets import queries as row_sets
from webui.forms.model_choices import template_of_dataset
from webui.narrowing import chips, link_with, narrowed
from webui.views import dataset_words as words
from webui.views.base import page, project_of, projects_of, show

CHIPS = {"name": "Name is", "archived": "Archived"}
MOST_RUNS = 20
MOST_ROW_SETS = 20
MOST_VERSIONS = 50
SHOWN_TEXT = 600
"""Characters of a message or an answer that the viewer shows."""

_VERSION = Parameter("version", "Number of the version that is shown; the newest when absent.")


@page()
def listing(request: HttpRequest) -> HttpResponse:
    """Show datasets, newest first, narrowed by the address in the words of the API."""
    actor, place = actor_of(request), project_of(request)
    found = datasets.datasets(actor)
    found = found.filter(project_id=place) if place else found
    rows = row_sets.row_sets(actor)
    rows = rows.filter(project_id=place) if place else rows
    writable = [name for name in projects_of(request) if actor.may(Scope.RUNS_WRITE, name)]
    context = {
        "nav": "datasets",
        "chips": chips(request.GET, CHIPS),
        "q": request.GET.get("q", ""),
        "asked": {name: request.GET.get(name, "") for name in CHIPS},
        "may_import": actor.may(Scope.RUNS_WRITE, place) if place else actor.may(Scope.RUNS_WRITE),
        "several": not place and len(projects_of(request)) > 1,
        "row_sets": [row_sets.row(one) for one in rows[:MOST_ROW_SETS]],
        "row_sets_in_all": rows.count(),
        "writable": [place] if place in writable else writable,
        **narrowed(
            request, found, FILTERS, datasets.dataset_row, order=ORDERINGS["-created_at"],
            unless_asked={"archived": "no"},
        ),
    }  # fmt: skip
    return show(request, "webui/datasets.html", context)


@page(Scope.RUNS_WRITE)
def new(request: HttpRequest) -> HttpResponse:
    """Show the import: a file or a dataset of a hub, then its columns and split with a preview, then its name."""
    actor = actor_of(request)
    writable = [name for name in projects_of(request) if actor.may(Scope.RUNS_WRITE, name)]
    chosen = request.GET.get("project") or project_of(request)
    context = {
        "nav": "datasets",
        "writable": writable,
        "chosen": chosen if chosen in writable else next(iter(writable), ""),
        "name": request.GET.get("name", ""),
        "hub": fetches.hub(),
        "source": request.GET.get("source", ""),
        "repository": request.GET.get("repository", ""),
        "reasons": words.REASONS,
    }
    return show(request, "webui/import_dataset.html", context)


@page()
def detail(request: HttpRequest, dataset_id: UUID) -> HttpResponse:
    """Show a version of a dataset: facts, rows, versions, and the runs that use it."""
    actor = actor_of(request)
    found = datasets.find_dataset(actor, dataset_id)
    row = datasets.dataset_row(found)
    version = _version(request, found)
    version_row = datasets.version_row(version)
    using = runs.of_dataset(actor, found.project_id, found.name)
    rows = narrowed(
        request, datasets.rows(version, request.GET.get("q", "")), (*ROW_FILTERS, _VERSION), _shown, order="place"
    )
    template = template_of_dataset(version_row["mapping"])
    context = {
        "nav": "datasets",
        "dataset": row,
        "version": version_row,
        "versions": [datasets.version_row(one) for one in datasets.versions(found)[:MOST_VERSIONS]],
        "q": request.GET.get("q", ""),
        "held_out": request.GET.get("held_out", ""),
        "side_urls": [
            (word, link_with(request, cursor="", held_out=value), request.GET.get("held_out", "") == value)
            for word, value in (("All", ""), ("Training", "false"), ("Held out", "true"))
        ],
        "rows": rows,
        "runs": runs.run_rows(using[:MOST_RUNS]),
        "may_change": actor.may(Scope.RUNS_WRITE, found.project_id),
        "new_run_url": f"/runs/new?{urlencode({'template': template, 'dataset': row['id']})}",
        "logged_run_url": f"/runs/new?{urlencode({'template': 'chat_logged', 'dataset': row['id']})}",
        "import_url": f"/datasets/import?{urlencode({'project': row['project'], 'name': row['name']})}",
        "scores": [{"name": one.plugin_name(), "summary": one.summary()} for one in SCORE.variants().values()],
    }
    return show(request, "webui/dataset.html", context)


def _version(request: HttpRequest, found: Any) -> Any:
    """Return the version that the address names, the newest without. Raises NotFound."""
    text = request.GET.get("version", "")
    if text and (not text.isdecimal() or len(text) > 9):
        raise NotFound(f"{found.name} has no version {text[:20]}.")
    version = datasets.find_version(found, int(text)) if text else datasets.newest(found)
    if version is None:
        raise NotFound(f"{found.name} has no version yet.")
    return version


def _shown(row: Any) -> dict[str, Any]:
    """Return a row with its texts cut to what a table shows."""
    value = datasets.content_row(row)
    messages = [{**one, "content": _cut(one["content"])} for one in value["messages"]]
    return {**value, "messages": messages, "answer": _cut(value["answer"])}


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_TEXT else f"{text[:SHOWN_TEXT]}…"
