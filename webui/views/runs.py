"""The list of runs. All of its state is in the URL."""

from typing import Any
from uuid import UUID

from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest, HttpResponse

from flexmarl.contracts.status import RunStatus
from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.runs import queries as runs
from webui import reading
from webui.figures.steps import spark
from webui.views.base import is_part, page, show

PAGE = 50
VIEWS = (
    ("", "All", None),
    ("active", "Active", ("starting", "running", "pausing", "stopping")),
    ("queued", "Queued", ("draft", "queued")),
    ("paused", "Paused", ("paused",)),
    ("failed", "Failed", ("failed",)),
    ("done", "Done", ("completed", "cancelled", "killed")),
)
"""(word in the URL, label, statuses) of each view of the list."""


@page()
def run_list(request: HttpRequest) -> HttpResponse:
    """Show runs, newest first, filtered by state, text and owner."""
    found = filtered(request)
    before = request.GET.get("before", "")
    cut = found.filter(pk__lt=UUID(before)) if _is_id(before) else found
    shown = list(cut[: PAGE + 1])
    more = str(shown[PAGE - 1].pk) if len(shown) > PAGE else ""
    context = {
        "nav": "runs",
        "rows": with_sparks(shown[:PAGE]),
        "more": _with(request, before=more) if more else "",
        "views": views(request),
        "chips": chips(request),
        "mine_url": _with(request, mine="" if request.GET.get("mine") else "1", before=""),
        "total": found.count(),
        "filtered": bool(request.GET.get("view") or request.GET.get("q") or request.GET.get("mine")),
        "q": request.GET.get("q", ""),
    }
    return show(request, "webui/parts/run_rows.html" if is_part(request) else "webui/runs.html", context)


def filtered(request: HttpRequest, *, view: bool = True) -> QuerySet[Any]:
    """Apply the filters of the URL."""
    found = runs.runs(actor_of(request))
    statuses = next((s for word, _, s in VIEWS if word == request.GET.get("view", "")), None)
    state = request.GET.get("state", "")
    if view and state in set(RunStatus):
        found = found.filter(state__status=state)
    elif view and statuses:
        found = found.filter(state__status__in=statuses)
    text = request.GET.get("q", "").strip()
    if text:
        found = found.filter(Q(name__icontains=text) | Q(key__icontains=text))
    if request.GET.get("mine") == "1":
        found = found.filter(owner_id=request.user.pk)
    template = request.GET.get("template", "")
    return found.filter(template=template) if template else found


def views(request: HttpRequest) -> list[dict[str, Any]]:
    """Each view with the number of runs in it under the other filters."""
    counted = filtered(request, view=False).order_by().values("state__status").annotate(n=Count("pk"))
    counts = {row["state__status"]: row["n"] for row in counted}
    now = request.GET.get("view", "")
    return [
        {
            "label": label,
            "url": _with(request, view=word, state="", before=""),
            "count": sum(counts.values()) if statuses is None else sum(counts.get(s, 0) for s in statuses),
            "on": word == now,
        }
        for word, label, statuses in VIEWS
    ]


def chips(request: HttpRequest) -> list[dict[str, str]]:
    """The filters in force, each with the URL that lifts it."""
    words = {"state": "State is", "q": "Name has", "mine": "Owner is", "template": "Template is"}
    found = []
    for name, text in words.items():
        value = request.GET.get(name, "")
        if value:
            shown = "me" if name == "mine" else value
            found.append({"text": text, "value": shown, "url": _with(request, **{name: "", "before": ""})})
    return found


def with_sparks(found: list[Any]) -> list[dict[str, Any]]:
    """Return runs as rows with their reward curves."""
    curves = reading.reward_curves(found)
    return [
        {**row, "top": reading.best_score(run), "spark": spark(curves.get(row["no"], []), 56, 22, keep=40)}
        for run, row in zip(found, runs.run_rows(found), strict=True)
    ]


def _with(request: HttpRequest, **changes: str) -> str:
    query = request.GET.copy()
    for name, value in changes.items():
        query.pop(name, None)
        if value:
            query[name] = value
    return f"{request.path}?{query.urlencode()}" if query else request.path


def _is_id(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True
