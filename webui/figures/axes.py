"""Where the points of a chart lie. Figures are made by step; this puts them on the axis a person chose.

The team has no version: on that axis only charts of agents move, and the others stay by step and say so.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from webui.figures.base import Figure, Points, Table, mark, whole_ticks

AXES = (("step", "Step"), ("time", "Time"), ("samples", "Samples"), ("version", "Version"))
SMOOTHING = (("0", "Off"), ("1", "Normal"), ("2", "Strong"))
_UNITS = ((2 * 86_400, 86_400, "days"), (2 * 3600, 3600, "h"), (120, 60, "min"), (0, 1, "s"))
"""From this many seconds on, elapsed time is written in units of this many seconds."""
_MOVED = frozenset({"team_reward", "group_signal", "step_time", "tokens", "samples"})
"""Figures whose x is a step."""
MOST_MARKS = 12


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis with the places of known steps, ascending; between two of them a step lies in proportion."""

    name: str = "step"
    word: str = "step"
    steps: list[float] = field(default_factory=list)
    places: list[float] = field(default_factory=list)

    def place(self, step: float) -> float:
        """Return the x of a step."""
        if not self.steps:
            return step
        i = bisect_left(self.steps, step)
        if i < len(self.steps) and self.steps[i] == step:
            return self.places[i]
        low, high = (0, 1) if i == 0 else (i - 1, i)
        if high >= len(self.steps):
            low, high = max(0, len(self.steps) - 2), len(self.steps) - 1
        if low == high or self.steps[high] == self.steps[low]:
            return self.places[low]
        share = (step - self.steps[low]) / (self.steps[high] - self.steps[low])
        return self.places[low] + share * (self.places[high] - self.places[low])

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for the page, which finds the step of a point with them."""
        return {"name": self.name, "word": self.word, "steps": self.steps, "places": self.places}


def axis_of(name: str, by_step: Points, by_axis: Points, started_at: float | None) -> Axis:
    """Make an axis from one series read on it and by step, with the same points. Time counts from the run's start."""
    if name not in ("time", "samples") or not by_step[0] or len(by_step[0]) != len(by_axis[0]):
        return Axis(name, "version" if name == "version" else "step")
    if name == "samples":
        return Axis(name, "samples", by_step[0], by_axis[0])
    scale, word, since = elapsed(by_axis[0], started_at)
    return Axis(name, word, by_step[0], [(x - since) / scale for x in by_axis[0]])


def elapsed(times: Sequence[float], started_at: float | None) -> tuple[float, str, float]:
    """Choose (seconds per unit, its words, moment of 0) for moments of a run."""
    since = min(started_at if started_at is not None else times[0], times[0])
    size, unit = next((size, unit) for limit, size, unit in _UNITS if times[-1] - since >= limit)
    return size, f"time since the start, {unit}", since


def moved(figure: Figure, axis: Axis) -> Figure:
    """Put a figure made by step on an axis; its table keeps the step and gains the place."""
    if figure.name not in _MOVED or not axis.steps or figure.empty:
        return figure
    rows = [[row[0], round(axis.place(float(row[0])), 4), *row[1:]] for row in figure.table.rows]
    columns = [figure.table.columns[0], axis.word, *figure.table.columns[1:]]
    layout = dict(figure.layout)
    layout["xaxis"] = _moved_axis(layout.get("xaxis", {}), axis)
    layout["shapes"] = [_moved(shape, axis, ("x0", "x1")) for shape in layout.get("shapes", [])]
    layout["annotations"] = [_moved(note, axis, ("x",)) for note in layout.get("annotations", [])]
    data = [{**trace, "x": [axis.place(float(x)) for x in trace["x"]]} for trace in figure.data]
    return replace(figure, data=data, layout=layout, table=Table(columns, rows))


def _moved_axis(known: Mapping[str, Any], axis: Axis) -> dict[str, Any]:
    """Put an axis elsewhere. Samples are counted as steps are, time is not; one step alone says nothing of a width."""
    moved = {key: value for key, value in known.items() if key not in ("range", "tick0", "dtick")}
    if len(axis.steps) > 1 and "range" in known:
        moved["range"] = [axis.place(x) for x in known["range"]]
    if axis.name == "samples" and "dtick" in known:
        moved |= whole_ticks(*moved.get("range", (axis.places[0], axis.places[-1])))
    return moved


def _moved(part: Mapping[str, Any], axis: Axis, names: Sequence[str]) -> dict[str, Any]:
    if part.get("xref") == "paper":
        return dict(part)
    return {**part, **{name: axis.place(part[name]) for name in names if name in part}}


def marked(figure: Figure, marks: Mapping[str, Any]) -> Figure:
    """Add where attempts began; on the reward also where checkpoints were kept."""
    if figure.name not in _MOVED or figure.empty:
        return figure
    layout = dict(figure.layout)
    shapes, notes = list(layout.get("shapes", [])), list(layout.get("annotations", []))
    drawn = [x for trace in figure.data for x in trace["x"]]
    for attempt in marks["attempts"][-MOST_MARKS:]:
        if not min(drawn) <= attempt["step"] + 0.5 <= max(drawn):
            continue
        shape, note = mark(attempt["step"] + 0.5, f"attempt {attempt['no']}")
        shapes.append(shape)
        if figure.name == "team_reward":
            notes.append(note)
    if figure.name == "team_reward":
        notes += [_kept(kept) for kept in marks["checkpoints"][-MOST_MARKS:]]
    return replace(figure, layout={**layout, "shapes": shapes, "annotations": notes})


def _kept(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "x": checkpoint["step"],
        "y": 0,
        "yref": "paper",
        "yanchor": "bottom",
        "text": "▾",
        "hovertext": f"checkpoint {', '.join(checkpoint['labels'])}, step {checkpoint['step']}",
        "showarrow": False,
        "font": {"size": 11, "color": "$t3"},
    }
