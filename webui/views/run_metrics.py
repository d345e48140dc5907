"""The catalogue of a run's series: found by name, grouped, charts on demand. Its state is the address."""

import re
from collections.abc import Iterable
from typing import Any

from django.http import HttpRequest, HttpResponse, QueryDict

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.runs import queries as runs
from flexmarl.controlplane.telemetry import queries as telemetry
from webui.figures import axes, steps
from webui.views.base import page, show
from webui.views.overview import switches
from webui.views.run import run_frame

MOST_ROWS = 300
MOST_OPEN = 24
SPARK_POINTS = 40
OTHERS = 20
_LONGEST = 80


@page()
def metrics(request: HttpRequest, key: str) -> HttpResponse:
    """Show the catalogue of a run's series, and the charts that the address opens."""
    context = run_frame(request, key, "metrics")
    everything = telemetry.catalogue(context["found"])
    found, note = matching(everything, request.GET)
    shown = found[:MOST_ROWS]
    hues = {name: agent for agent in reversed(context["run"]["agents"]) for name in (agent["policy"], agent["role"])}
    wanted = opened(everything, request.GET.getlist("open"))
    rows = [_row(row, hues, wanted) for row in _with_sparks(context["found"], shown)]
    others = request.GET.getlist("with")[: telemetry.MAX_RUNS - 1]
    return show(
        request,
        "webui/run_metrics.html",
        {
            **context,
            **switches(request),
            "groups": grouped(rows),
            "found_count": len(found),
            "all_count": len(everything),
            "most": MOST_ROWS,
            "q": searched_text(request.GET),
            "note": note,
            "agent": request.GET.get("agent", ""),
            "agent_names": sorted({row["agent"] for row in everything if row["agent"]}),
            "opened": [_chart(row, hues) for row in everything if key_of(row) in wanted][:MOST_OPEN],
            "others": others,
            "candidates": [other for other in runs.runs(actor_of(request))[:OTHERS] if other.key not in (key, *others)],
            "room": len(others) < telemetry.MAX_RUNS - 1,
            "axes": axes.AXES,
        },
    )


def key_of(row: dict[str, Any]) -> str:
    """How the address names a series."""
    return f"{row['name']}|{row['agent']}|{row['stat']}"


def opened(rows: Iterable[dict[str, Any]], asked: Iterable[str]) -> set[str]:
    """Which series the address opens: one by its key, or all of a name."""
    wanted = set(asked)
    return {key_of(row) for row in rows if key_of(row) in wanted or row["name"] in wanted}


def searched_text(query: QueryDict) -> str:
    """What the address searches for, as the database and a page can hold it."""
    return query.get("q", "").replace("\x00", "").strip()[:_LONGEST]


def matching(rows: list[dict[str, Any]], query: QueryDict) -> tuple[list[dict[str, Any]], str]:
    """Keep the series that a search and an agent name; returns them with a remark when the search is no expression."""
    text, agent = searched_text(query), query.get("agent", "")
    kept = [row for row in rows if agent in ("", row["agent"])]
    if not text:
        return kept, ""
    haystack = {key_of(row): f"{row['name']} {row['agent']} {row['stat']} {row['title']}" for row in kept}
    if re.fullmatch(r"[\w/ .-]*", text):
        parts = text.lower().split()
        return [row for row in kept if all(part in haystack[key_of(row)].lower() for part in parts)], ""
    hits = telemetry.matching(list(haystack.values()), text)
    if hits is None:
        plain = [row for row in kept if text.lower() in haystack[key_of(row)].lower()]
        return plain, "Not a valid regular expression; searched as plain text."
    return [row for row in kept if haystack[key_of(row)] in hits], ""


def grouped(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Group series by the first part of their names, in the order of the names."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["name"].partition("/")[0], []).append(row)
    return [{"name": name, "rows": members} for name, members in groups.items()]


def _with_sparks(found: Any, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    names = list({row["name"]: None for row in rows})
    points = telemetry.data(found, names, max_points=SPARK_POINTS)["series"] if names else []
    curves = {key_of(series): series["y"] for series in points}
    return [{**row, "spark": steps.spark(curves.get(key_of(row), []), 96, 22)} for row in rows]


def _row(row: dict[str, Any], hues: dict[str, Any], wanted: set[str]) -> dict[str, Any]:
    key = key_of(row)
    return {**row, "key": key, "open": key in wanted, "mark": hues.get(row["agent"]), "chart": _chart(row, hues)}


def _chart(row: dict[str, Any], hues: dict[str, Any]) -> dict[str, Any]:
    """What a chart's box must know before its points are read."""
    mark = hues.get(row["agent"])
    return {
        "key": key_of(row),
        "name": row["name"],
        "agent": row["agent"],
        "stat": row["stat"],
        "title": row["title"],
        "unit": row["unit"],
        "meaning": row["meaning"],
        "hue": mark["hue"] if mark else 0,
        "monogram": mark["monogram"] if mark else "",
        "axes": " ".join(row["x"]),
    }
