"""Trajectories: a list with filters and a score histogram, and one conversation at a time.

The parameters of the address are those of the API's list, so that a page says which call made it. A value that is not
legal filters nothing.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.problems import ValidationProblem
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.runs import labels
from flexmarl.controlplane.runs import queries as runs
from flexmarl.controlplane.telemetry import queries as telemetry
from webui import reading
from webui.figures import episodes
from webui.formats import number
from webui.views.base import page, show
from webui.views.run import run_frame
from webui.views.trajectory_viewer import BREAK_WORDS, group_no, opened

PAGE = 40
_LARGEST = 2**31 - 1


def _whole(text: str) -> int:
    value = int(text)
    if not 0 <= value <= _LARGEST:
        raise ValueError(text)
    return value


def _figure(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def _one_of(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in words:
            raise ValueError(text)
        return text

    return read


READERS: dict[str, Callable[[str], Any]] = {
    "origin": _one_of("train", "eval"),
    "step": _whole,
    "draw": _whole,
    "status": _one_of("finished", "failed", "cancelled"),
    "solved": lambda text: {"true": True, "false": False, "yes": True, "no": False}[text],
    "reward__gte": _figure,
    "reward__lte": _figure,
    "agent": str,
    "agent_reward__gte": _figure,
    "agent_reward__lte": _figure,
    "turns__gte": _whole,
    "turns__lte": _whole,
    "tokens__gte": _whole,
    "tokens__lte": _whole,
    "duration_s__gte": _figure,
    "duration_s__lte": _figure,
    "version": lambda text: [text],
    "search": str,
    "said": str,
    "said_by": str,
    "broken": _one_of(*telemetry.CHAIN_BREAKS),
    "label": str,
    "ordering": _one_of(*(f"{sign}{name}" for name in telemetry.TRAJECTORY_ORDERINGS for sign in ("-", ""))),
}
WORDS = {
    "step": "Step", "draw": "Group", "status": "Status", "solved": "Solved", "reward": "Team score", "turns": "Turns",
    "tokens": "Tokens", "duration_s": "Seconds", "version": "Version", "search": "Title contains", "label": "Label",
    "said": "Said", "said_by": "Speaker", "broken": "Chain break",
}  # fmt: skip
CAUSES = {"any": "any cause", **{cause: words for cause, (words, _) in BREAK_WORDS.items()}}
RANGES = ("reward", "turns", "tokens", "duration_s")
ORDERS = (
    ("-draw", "Newest first"),
    ("draw", "Oldest first"),
    ("-reward", "Best score first"),
    ("reward", "Worst score first"),
    ("-tokens", "Most tokens first"),
    ("-duration_s", "Longest first"),
    ("duration_s", "Shortest first"),
)


@page(Scope.TRAJECTORIES_READ)
def listing(request: HttpRequest, key: str) -> HttpResponse:
    """Show the list with its first trajectory open."""
    context = run_frame(request, key, "trajectories")
    found = listed(request, context["found"])
    first = found["rows"][0]["id"] if found["rows"] else ""
    shown = opened(context["found"], context["run"], first, request.GET.get("view", "")) if first else {"t": None}
    return show(request, "webui/run_trajectories.html", {**context, **found, **shown, "many": True})


@page(Scope.TRAJECTORIES_READ)
def detail(request: HttpRequest, key: str, tid: str) -> HttpResponse:
    """Show one trajectory beside the list."""
    context = run_frame(request, key, "trajectories")
    shown = opened(context["found"], context["run"], tid, request.GET.get("view", ""))
    found = listed(request, context["found"], around=shown["t"])
    return show(request, "webui/run_trajectories.html", {**context, **found, **shown, "many": False})


@page(Scope.TRAJECTORIES_READ)
def viewer_part(request: HttpRequest, key: str, tid: str) -> HttpResponse:
    """The conversation and its side panel alone."""
    found = runs.find_run(actor_of(request), key, Scope.TRAJECTORIES_READ)
    row = runs.run_detail(found)
    shown = opened(found, row, tid, request.GET.get("view", ""))
    context = {"run": row, "query": urlencode(asked(request)), "may_label": _may_label(request, found), **shown}
    return show(request, "webui/parts/trajectory.html", context)


@page(Scope.TRAJECTORIES_READ)
def rows_part(request: HttpRequest, key: str) -> HttpResponse:
    """The next page of the list alone."""
    found = runs.find_run(actor_of(request), key, Scope.TRAJECTORIES_READ)
    context = {"run": runs.run_detail(found), **listed(request, found, facets=False)}
    return show(request, "webui/parts/trajectory_rows.html", context)


def asked(request: HttpRequest) -> dict[str, str]:
    """Return the parameters of the address that are legal, as they were written."""
    kept: dict[str, str] = {}
    for name, read in READERS.items():
        text = request.GET.get(name, "").strip()
        try:
            read(text)
        except (ValueError, KeyError):
            continue
        if text and "\0" not in text:
            kept[name] = text
    if "agent" not in kept or not {"agent_reward__gte", "agent_reward__lte"} & set(kept):
        for name in ("agent", "agent_reward__gte", "agent_reward__lte"):
            kept.pop(name, None)
    if "said" not in kept:
        kept.pop("said_by", None)
    return kept


def _wanted(run: Any, query: dict[str, str]) -> telemetry.EpisodeFilter:
    values = {name: READERS[name](text) for name, text in query.items()}
    try:
        return telemetry.trajectory_filter(run, values)
    except ValidationProblem:  # a version that names no policy
        query.pop("version", None)
        values.pop("version", None)
        return telemetry.trajectory_filter(run, values)


def listed(
    request: HttpRequest, run: Any, around: dict[str, Any] | None = None, *, facets: bool = True
) -> dict[str, Any]:
    """One page of the list, the histogram over its newest matches, and the filters in force."""
    query = asked(request)
    if around is not None and "origin" not in query:
        query["origin"] = around["origin"]
    wanted = _wanted(run, query)
    ordering = telemetry.trajectory_ordering(query)
    position, back = _place(request, ordering)
    if around is not None and position is None and not set(query) - {"origin"}:
        position = (around["draw"] + 1, 0, 0)  # open the list at the group of the episode that a link named
    rows, before, behind = telemetry.trajectory_page(run, wanted, ordering, limit=PAGE, position=position, back=back)
    return {
        "rows": [{**row, "group_no": group_no(row)} for row in rows],
        "top": reading.best_score(run),
        "more": _link(query, "after", behind),
        "newer": _link(query, "before", before),
        "origin": query.get("origin", "train"),
        "query": urlencode(query),
        "filters": {name: text for name, text in query.items() if name != "origin"},
        "may_label": _may_label(request, run),
        **(_facets(run, query, wanted) if facets else {}),
    }


def _facets(run: Any, query: dict[str, str], wanted: telemetry.EpisodeFilter) -> dict[str, Any]:
    """Histogram and outcomes: of everything that matches but the score, so that the bars stay while one is chosen."""
    whole = replace(wanted, score=(None, None), solved=None, status=None)
    found = telemetry.trajectory_facets(run, whole)
    rest = {k: v for k, v in query.items() if not k.startswith("reward")}
    bins = episodes.bins(found["histogram"], wanted.score)
    return {
        "bins": [{"bin": b, "query": urlencode({**rest, "reward__gte": b.low, "reward__lte": b.high})} for b in bins],
        "last_bin": bins[-1] if bins else None,
        "counted": found["counted"],
        "exact": found["exact"],
        "outcomes": _outcomes(found["outcomes"], query),
        "chips": _chips(query),
        "clear": urlencode({"origin": query["origin"]}) if "origin" in query else "",
        "orders": ORDERS,
        "label_words": labels.words(run),
        "causes": CAUSES.items(),
    }


def _outcomes(counts: dict[str, int], query: dict[str, str]) -> list[dict[str, Any]]:
    rest = {name: text for name, text in query.items() if name not in ("solved", "status")}
    choices = (
        ("Solved", "solved", {"solved": "true"}),
        ("Not solved", "not_solved", {"solved": "false", "status": "finished"}),
        ("Failed", "failed", {"status": "failed"}),
        ("Cancelled", "cancelled", {"status": "cancelled"}),
    )
    chosen = {name: query[name] for name in ("solved", "status") if name in query}
    return [
        {"word": word, "count": counts[name], "on": chosen == filters, "query": urlencode({**rest, **filters})}
        for word, name, filters in choices
        if counts[name] or chosen == filters
    ]


def _chips(query: dict[str, str]) -> list[dict[str, str]]:
    found = []
    shown = {name: text for name, text in query.items() if name in WORDS and name not in ("solved", "status")}
    for name in RANGES:
        low, high = query.get(f"{name}__gte"), query.get(f"{name}__lte")
        if low or high:
            shown[name] = _between(low, high)
    for name, value in shown.items():
        gone = {name, "said_by"} if name == "said" else {name}
        rest = urlencode({k: v for k, v in query.items() if k.partition("__")[0] not in gone})
        found.append({"text": WORDS[name], "value": CAUSES.get(value, value) if name == "broken" else value,
                      "query": rest})  # fmt: skip
    if "agent" in query:
        rest = urlencode({k: v for k, v in query.items() if not k.startswith("agent")})
        between = _between(query.get("agent_reward__gte"), query.get("agent_reward__lte"))
        found.append({"text": query["agent"], "value": between, "query": rest})
    return found


def _between(low: str | None, high: str | None) -> str:
    def written(text: str) -> str:
        return number(float(text), 0 if float(text).is_integer() and float(text) > 1 else 2)

    if low and high:
        return f"{written(low)} to {written(high)}"
    return f"at least {written(low)}" if low else f"at most {written(high or '0')}"


def _link(query: dict[str, str], name: str, position: tuple[float | int, ...] | None) -> str:
    return urlencode({**query, name: "_".join(map(str, position))}) if position else ""


def _place(request: HttpRequest, ordering: telemetry.Ordering) -> tuple[tuple[float | int, ...] | None, bool]:
    """Read where the page begins: behind `after` or before `before`."""
    back = "before" in request.GET
    parts = request.GET.get("before" if back else "after", "").split("_")
    if len(parts) != 3 + (ordering.by != "draw"):
        return None, False
    try:
        own = [_figure(parts[0]) if ordering.by != "tokens" else _whole(parts[0])] if len(parts) == 4 else []
        return (*own, *(_whole(part) for part in parts[-3:])), back
    except ValueError:
        return None, False


def _may_label(request: HttpRequest, run: Any) -> bool:
    return bool(actor_of(request).may(Scope.RUNS_WRITE, run.project_id))
