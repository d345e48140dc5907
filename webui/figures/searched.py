"""Charts of a sweep: its trials over parallel axes, and the best so far. Pure: values in, values out."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from webui.figures.base import Figure, Table, layout, line, whole_ticks
from webui.formats import number

Sweep = Mapping[str, Any]
"""What `sweeps.sweep_detail` returns."""
SHOWN_PARTS = 2
"""Last parts of a pointer that name an axis."""


def charts(sweep: Sweep) -> dict[str, dict[str, Any]]:
    """Return all charts of a sweep by name."""
    return {figure.name: figure.as_dict() for figure in (parallel(sweep), best_so_far(sweep))}


def parallel(sweep: Sweep) -> Figure:
    """Draw each trial as a line over one axis for each parameter and one for the objective; the best is strong."""
    plan, trials = sweep["plan"], [one for one in sweep["tried"] if one["objective"] is not None]
    pointers = [one["pointer"] for one in plan["parameters"]]
    rows = [[one["number"], *(said(one["values"].get(p)) for p in pointers), one["objective"]] for one in trials]
    told = Table(["trial", *pointers, plan["metric"]], rows)
    if not trials:
        return Figure("parallel", "Trials", "", told, empty="It appears when a trial has its first value.")
    objectives = [one["objective"] for one in trials]
    axes = [*({"name": _short(one["pointer"]), "of": one} for one in plan["parameters"])]
    low, high = min(objectives), max(objectives)
    names = [axis["name"] for axis in axes] + [plan["metric"]]
    places = list(range(len(names)))
    data = []
    for one in sorted(trials, key=lambda one: one["number"] == sweep["best"]):
        ys = [_share(axis["of"], one["values"][axis["of"]["pointer"]]) for axis in axes]
        ys.append(0.5 if high == low else (one["objective"] - low) / (high - low))
        best = one["number"] == sweep["best"]
        words = [said(one["values"][p]) for p in pointers] + [number(one["objective"], 3)]
        data.append(
            line(
                places,
                ys,
                {"width": 3 if best else 1.2, "color": "$q6" if best else "$q3"},
                opacity=1 if best else 0.6,
                customdata=words,
                hovertemplate="%{customdata}<extra>trial " + str(one["number"]) + "</extra>",
            )
        )
    ends = [_ends(axis["of"]) for axis in axes] + [(number(low, 3), number(high, 3))]
    notes = [
        {"x": x, "y": y, "text": text, "showarrow": False, "yshift": shift, "font": {"size": 10.5, "color": "$t3"}}
        for x, pair in enumerate(ends)
        for y, text, shift in ((0, pair[0], -10), (1, pair[1], 10))
    ]
    shapes = [
        {"type": "line", "x0": x, "x1": x, "y0": 0, "y1": 1, "line": {"color": "$bd2", "width": 1}} for x in places
    ]
    drawn = layout(
        hovermode="closest",
        margin={"l": 24, "r": 24, "t": 20, "b": 40},
        xaxis={"tickvals": places, "ticktext": names, "range": [-0.3, len(names) - 0.7], "rangemode": "normal"},
        yaxis={"range": [-0.12, 1.12], "showticklabels": False, "gridcolor": "rgba(0,0,0,0)"},
        shapes=shapes,
        annotations=notes,
    )
    best_one = next(one for one in trials if one["number"] == sweep["best"])
    summary = f"Trial {best_one['number']} of {len(trials)} is the best, with {number(best_one['objective'], 3)}"
    return Figure("parallel", "Trials", summary, told, data, drawn)


def best_so_far(sweep: Sweep) -> Figure:
    """Draw the objective of each trial as a mark, and the best of those up to it as a line."""
    sign = 1 if sweep["goal"] == "maximize" else -1
    good = [one for one in sweep["tried"] if one["objective"] is not None and one["state"] != "failed"]
    xs, ys = [one["number"] for one in good], [one["objective"] for one in good]
    best: list[float] = []
    for value in ys:
        best.append(value if not best or sign * value > sign * best[-1] else best[-1])
    table = Table(["trial", "objective", "best so far"], [list(row) for row in zip(xs, ys, best, strict=True)])
    if not good:
        return Figure("best", "Best so far", "", table, empty="It appears when a trial has its first value.")
    marks = {"x": xs, "y": ys, "mode": "markers", "name": "trial", "marker": {"size": 7, "color": "$q3"}}
    over = line(xs, best, {"width": 2, "color": "$q6", "shape": "hv"}, name="best so far")
    axis = {"range": [0.5, max(xs) + 0.5], "rangemode": "normal", **whole_ticks(0.5, max(xs) + 0.5)}
    legend = [{"label": "best so far", "swatch": "q6"}, {"label": "trial", "swatch": "q3"}]
    summary = f"The best of {sweep['metric']} is {number(best[-1], 3)}"
    return Figure("best", "Best so far", summary, table, [marks, over], layout(xaxis=axis), legend)


def said(value: Any) -> str:
    """Write a value of the specification."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value)


def _short(pointer: str) -> str:
    return " / ".join(pointer.split("/")[-SHOWN_PARTS:])


def _share(parameter: Mapping[str, Any], value: Any) -> float:
    """Return where a value lies between the ends of its axis."""
    if parameter["type"] == "choice":
        values: Sequence[Any] = parameter["values"]
        return values.index(value) / max(1, len(values) - 1)
    low, high = parameter["low"], parameter["high"]
    if parameter["log"]:
        low, high, value = math.log(low), math.log(high), math.log(value)
    return float((value - low) / (high - low))


def _ends(parameter: Mapping[str, Any]) -> tuple[str, str]:
    if parameter["type"] == "choice":
        return said(parameter["values"][0]), said(parameter["values"][-1])
    return said(parameter["low"]), said(parameter["high"])
