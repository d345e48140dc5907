"""The list of runs. All of its state is in the URL, in the words of the REST list."""

import csv
import json
from collections.abc import Iterable, Iterator
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict, StreamingHttpResponse
from django.utils import timezone

from flexmarl.contracts.status import RunStatus
from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.api import pagination
from flexmarl.controlplane.common.api.views import pick_column
from flexmarl.controlplane.common.problems import ValidationProblem
from flexmarl.controlplane.experiments import queries as experiments
from flexmarl.controlplane.runs import lists, saved_views
from flexmarl.controlplane.runs import queries as runs
from flexmarl.controlplane.runs.choices import archivable
from flexmarl.controlplane.telemetry import queries as telemetry
from webui import reading, runlist
from webui.figures.steps import spark
from webui.formats import number
from webui.views import bulk
from webui.views.base import is_part, page, project_of, show

PAGE = 50
MOST_LINES = 10_000
"""Lines of a CSV file."""
ACTIVE = frozenset({"queued", "starting", "running", "pausing", "resuming", "stopping"})


@page()
def run_list(request: HttpRequest) -> HttpResponse:
    """Show runs, filtered and ordered by the address."""
    if "add" in request.GET:
        query, wrong = runlist.added(request.GET, timezone.localtime())
        if not wrong:
            return HttpResponseRedirect(runlist.address(request.path, query))
        return _show(request, query, wrong)
    if request.GET.get("format") == "csv":
        return _csv(request)
    return _show(request, request.GET.copy())


def _show(request: HttpRequest, query: QueryDict, wrong: str = "") -> HttpResponse:
    context = {**_frame(request, query), **_table(request, query)}
    if wrong:
        context["wrong"] = wrong
    return show(request, "webui/parts/run_rows.html" if is_part(request) else "webui/runs.html", context)


def _in_project(request: HttpRequest) -> Any:
    rows, project = runs.light(runs.runs(actor_of(request))), project_of(request)
    return rows.filter(project_id=project) if project else rows


def _frame(request: HttpRequest, query: QueryDict) -> dict[str, Any]:
    """Views, chips and menus around the table."""
    me, path = request.user.get_username(), request.path
    counts = runs.status_counts(_in_project(request).filter(archived_at=None), request.user.pk)
    kept = saved_views.saved_views(actor_of(request)).filter(page="runs")
    project = project_of(request)
    if project:
        kept = kept.filter(project_id=project)
    templates = experiments.templates()
    return {
        "nav": "runs",
        "bulk_bar": bulk.BAR,
        "bulk_menu": bulk.MENU,
        "views": runlist.views(path, query, counts, me),
        "saved": runlist.saved(path, query, [saved_views.row(view) for view in kept], me),
        "chips": runlist.chips(path, query),
        "filters": runlist.FILTERS,
        "signs": runlist.SIGNS,
        "choices": runlist.choices(
            [row["name"] for row in templates],
            [row["name"] for row in experiments.presets()],
            [row["environment"] for row in templates],
        ),
        "hidden": [(name, value) for name, values in runlist.having(query).lists() for value in values],
        "hidden_search": [
            (name, value) for name, values in runlist.having(query, ["cursor", "q"]).lists() for value in values
        ],
        "choosable": runlist.column_choices(path, query),
        "csv_url": runlist.address(path, runlist.having(query, format="csv")),
        "query_text": runlist.narrowing(query).urlencode(safe="/:@,"),
        "q": query.get("q", ""),
        "all_url": path,
        "project_word": project,
    }


def _table(request: HttpRequest, query: QueryDict) -> dict[str, Any]:
    """The rows of one page and where the others are; a filter that is not legal shows why instead."""
    ordering = query.get("ordering", runlist.DEFAULT_ORDERING)
    wanted = runlist.narrowing(query)
    shown = runlist.columns(query)
    context: dict[str, Any] = {
        "heads": runlist.heads(request.path, query, shown),
        "columns": {column.name for column in shown},
        "order_words": runlist.ORDER_WORDS.get(ordering, ""),
        "filtered": bool(wanted),
        "page_size": PAGE,
        "rows": [],
        "total": 0,
        "wrong": "",
    }
    try:
        whole = _in_project(request)
        found = lists.narrowed(whole, wanted)
        values = {"limit": PAGE, "count": "exact"} | ({"cursor": query["cursor"]} if query.get("cursor") else {})
        cut = pagination.page(found, lists.ordering(ordering), values, pick_column, whole=whole)
    except ValidationProblem as refused:
        hint = refused.errors[0].hint if refused.errors else ""
        return context | {"wrong": f"{refused.detail} {hint}".strip()}
    return context | {
        "rows": drawn(cut.rows),
        "total": cut.count,
        "next_url": runlist.address(request.path, runlist.having(query, cursor=cut.next)) if cut.next else "",
        "previous_url": (
            runlist.address(request.path, runlist.having(query, cursor=cut.previous)) if cut.previous else ""
        ),
        "bulk_filter": json.dumps(_members(wanted, project_of(request))),
    }


def _members(query: QueryDict, project: str) -> dict[str, Any]:
    """The filters of this page as the body of a bulk verb says them."""
    members: dict[str, Any] = dict(query.lists())
    return members | ({"project": project} if project else {})


def drawn(found: list[Any]) -> list[dict[str, Any]]:
    """Return runs as rows with their curves, newest rates and verdicts; the same queries for one row and for fifty."""
    curves, rates = runs.curves(found), runs.last_values(found, "throughput/tokens")
    verdicts = telemetry.verdicts(found)
    return [
        {
            **row,
            "top": reading.best_score(run),
            "spark": spark(curves.get(row["no"], []), 56, 22, keep=40),
            "tokens": rates.get(row["no"]) if row["status"] in ACTIVE else None,
            "verdict": verdicts.get(row["no"]),
            "live": row["status"] in ACTIVE,
            "possible": bulk.possible(row, archivable(RunStatus(run.state.status), row["pending_verb"])),
        }
        for run, row in zip(found, runs.run_rows(found), strict=True)
    ]


# The file ------------------------------------------------------------------------------------------------------------


def _csv(request: HttpRequest) -> HttpResponse:
    """Answer with what the list shows, as lines: the current columns of all matching runs."""
    query = request.GET
    shown = [column.name for column in runlist.columns(query)]
    found = lists.narrowed(_in_project(request), runlist.narrowing(query))
    ordered = found.order_by(*lists.ordering(query.get("ordering", runlist.DEFAULT_ORDERING)).split(","))
    answer = StreamingHttpResponse(csv_lines(list(ordered[:MOST_LINES]), shown), content_type="text/csv; charset=utf-8")
    answer["Content-Disposition"] = 'attachment; filename="runs.csv"'
    return answer  # type: ignore[return-value]


class _Echo:
    def write(self, text: str) -> str:
        return text


def csv_lines(found: list[Any], shown: Iterable[str]) -> Iterator[str]:
    """Write runs as CSV, a column of the list as one or two columns of plain values."""
    names = [name for column in shown for name in CSV_COLUMNS.get(column, ())]
    writer = csv.writer(_Echo())
    yield writer.writerow(names)
    make, rates = runs.RowMaker(), {}
    if "tokens_per_s" in names:
        rates = runs.last_values(found, "throughput/tokens")
    for run in found:
        row = make(run)
        values = {
            **row, "reward": row["headline"]["last"], "tags": " ".join(row["tags"]),
            "evaluation": row["progress"]["eval_solved"], "step_seconds": row["progress"]["step_seconds"],
            "tokens_per_s": rates.get(row["no"]), "eta_low_s": (row["eta_s"] or {}).get("low"),
            "eta_high_s": (row["eta_s"] or {}).get("high"),
            "agents": " ".join(f"{a['role']}={number(a['reward'], 3)}" for a in row["agents"]),
        }  # fmt: skip
        yield writer.writerow([_cell(values[name]) for name in names])


CSV_COLUMNS: dict[str, tuple[str, ...]] = {
    "run": ("key", "name"), "state": ("status", "reason"), "progress": ("step", "max_steps"),
    "eta": ("eta_low_s", "eta_high_s"), "reward": ("reward",), "agents": ("agents",), "evaluation": ("evaluation",),
    "step_time": ("step_seconds",), "tokens": ("tokens_per_s",), "devices": ("devices",), "preset": ("preset",),
    "tags": ("tags",), "owner": ("owner", "started_at"), "created": ("created_at",),
}  # fmt: skip
"""Column of the list -> columns of the file. A verdict is of the moment and is left out."""


def _cell(value: Any) -> Any:
    """Keep a spreadsheet from reading what a person wrote as a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t") else value
