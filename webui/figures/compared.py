"""Charts and tables of runs beside each other. Pure: values in, values out.

A line is the mean over the runs of a variant, its band reaches from the lowest to the highest of them.
"""

import json
from collections.abc import Mapping
from typing import Any

from webui.figures.base import Figure, Table, layout, line, step_axis
from webui.formats import DASH, number, plural

HUES = 8
DASHES = ("solid", "6px 3px", "2px 3px")
"""Hues repeat after eight variants; the pattern tells them apart."""
Compared = Mapping[str, Any]
"""What `comparing.compare` returns."""


def charts(found: Compared) -> dict[str, dict[str, Any]]:
    """Return a chart for each facet, by the name that `place` gives."""
    return {place(facet["agent"]): _chart(found, facet).as_dict() for facet in found["facets"]}


def place(agent: str) -> str:
    """Return the name of the chart of an agent; empty: the team."""
    return f"facet-{agent or 'team'}"


def label(one: Mapping[str, Any]) -> str:
    """Name a variant: the baseline, or by the letter of its place."""
    return "Baseline" if one["baseline"] else f"Variant {one['no'] + 1}"


def hue(one: Mapping[str, Any]) -> int:
    """Return the hue of a variant, 1 to 8."""
    return int(one["no"]) % HUES + 1


def differences(found: Compared) -> list[dict[str, Any]]:
    """Return a row for each pointer in which variants differ, a cell for each variant."""
    return [
        {"pointer": pointer, "cells": [_said(one["values"].get(pointer)) for one in found["variants"]]}
        for pointer in found["pointers"]
    ]


def table(found: Compared, facet: Mapping[str, Any]) -> dict[str, Any]:
    """Return the final figures of a facet in words."""
    rows = []
    for one, row in zip(found["variants"], facet["figures"], strict=True):
        told = row["against"]
        rows.append(
            {
                "label": label(one),
                "baseline": one["baseline"],
                "hue": hue(one),
                "n": row["n"],
                "mean": DASH if row["mean"] is None else number(row["mean"], 3),
                "interval": _span(row["low"], row["high"]),
                "difference": DASH if told is None else f"{told['difference']:+.3g}",
                "bounds": "" if told is None else _span(told["low"], told["high"]),
                "p": DASH if told is None else _p(told["p_corrected"]),
                "significant": told is not None and told["significant"],
                "why": _untested(found, one, row),
            }
        )
    return {"agent": facet["agent"], "name": place(facet["agent"]), "rows": rows}


def _untested(found: Compared, one: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """Say why there is no test."""
    if one["baseline"] or row["against"] is not None:
        return ""
    if not any(other["baseline"] for other in found["variants"]):
        return "no baseline is chosen"
    return "a test needs two seeds on each side, and some spread"


def _chart(found: Compared, facet: Mapping[str, Any]) -> Figure:
    metric = found["metric"]
    data: list[dict[str, Any]] = []
    rows, legend, xs = [], [], []
    for one, curve in zip(found["variants"], facet["curves"], strict=True):
        if not curve["x"]:
            continue
        colour = f"a{hue(one)}"
        name = label(one)
        xs += curve["x"]
        if max(curve["n"]) > 1:
            edge = {"x": curve["x"], "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
            data.append({**edge, "y": curve["high"]})
            data.append({**edge, "y": curve["low"], "fill": "tonexty", "fillcolor": f"${colour}/0.16"})
        look = {"width": 2, "color": f"${colour}", "dash": DASHES[one["no"] // HUES % len(DASHES)]}
        template = "%{y:.4g}<extra>" + name + "</extra>"
        data.append(line(curve["x"], curve["mean"], look, name=name, hovertemplate=template))
        legend.append({"label": f"{name} ({plural(len(one['runs']), 'run')})", "swatch": colour})
        rows += [
            [name, *cells]
            for cells in zip(curve["x"], curve["mean"], curve["low"], curve["high"], curve["n"], strict=True)
        ]
    columns = Table(["variant", "step", "mean", "lowest", "highest", "runs"], rows)
    title = facet["agent"] or "Team"
    if not data:
        return Figure(place(facet["agent"]), title, "", columns, empty="None of the runs has this series.")
    summary = f"{metric['title']} of {plural(len(legend), 'variant')}; bands reach from the lowest to the highest run"
    return Figure(place(facet["agent"]), title, summary, columns, data, layout(xaxis=step_axis(xs)), legend)


def _said(value: Any) -> str:
    return DASH if value is None else value if isinstance(value, str) else json.dumps(value)


def _span(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{number(low, 3)} to {number(high, 3)}"


def _p(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"
