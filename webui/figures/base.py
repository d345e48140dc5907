"""What every chart is made of. Pure: rows in, plain values out; no request, no clock, no colour values.

Colours are names of design tokens (`$q6`, `$a1`, `$q1/0.5`); the page replaces them when it draws, so that a change of
theme needs no new data. A figure always carries its text summary and its table: whoever cannot see the chart reads
the same facts.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import count
from typing import Any

Points = tuple[list[float], list[float]]
TICKS = 6
LEAST_BARS = 5
"""A chart of bars has room for this many, so that the first one is no wall."""


@dataclass(frozen=True, slots=True)
class Agent:
    """A role as charts draw it."""

    role: str
    policy: str
    hue: int
    monogram: str
    trainable: bool = True

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "Agent":
        """Build one from an agent of the API's run."""
        role = row["role"]
        return cls(role, row.get("policy") or role, row["hue"], row["monogram"], row.get("trainable", True))


@dataclass(frozen=True, slots=True)
class Table:
    """The facts of a chart as rows; also what its CSV holds."""

    columns: list[str]
    rows: list[list[Any]]


@dataclass(frozen=True, slots=True)
class Figure:
    """One chart: what to draw, and the same in words and as a table."""

    name: str
    title: str
    summary: str
    table: Table
    data: list[dict[str, Any]] = field(default_factory=list)
    layout: dict[str, Any] = field(default_factory=dict)
    legend: list[dict[str, Any]] = field(default_factory=list)
    empty: str = ""
    """Why there is nothing to draw yet, and when there will be."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; lists are those of the figure."""
        return {**{part.name: getattr(self, part.name) for part in fields(self)}, "table": asdict(self.table)}


class SeriesSet:
    """The series of a run by (name, agent, stat), with the six digits that a chart can show."""

    def __init__(self, rows: Iterable[Mapping[str, Any]], strength: float = 1.0) -> None:
        self.strength = strength
        """How strongly lines are smoothed: 0 not at all, 1 as usual."""
        self._by_key: dict[tuple[str, str, str], Points] = {
            (row["name"], row["agent"], row["stat"]): (list(row["x"]), [float(f"{y:.6g}") for y in row["y"]])
            for row in rows
        }

    def get(self, name: str, agent: str = "", stat: str = "mean") -> Points:
        """Return the points of one series; empty lists when it has none."""
        return self._by_key.get((name, agent, stat), ([], []))

    def soft(self, values: Sequence[float], most: float = 0.88) -> list[float]:
        """Smooth values as strongly as a person wants."""
        if self.strength <= 0:
            return list(values)
        return Smoothed.by(values, min(0.97, most * self.strength), per=25 / self.strength**2)

    def on(self, place: Callable[[float], float]) -> "SeriesSet":
        """Return the same series with every x put elsewhere."""
        moved = SeriesSet([], self.strength)
        moved._by_key = {key: ([place(x) for x in xs], ys) for key, (xs, ys) in self._by_key.items()}
        return moved

    def agents(self, name: str, stat: str = "mean") -> list[str]:
        """List the agents that have a series of this name."""
        return [key[1] for key in self._by_key if key[0] == name and key[2] == stat]


class Smoothed(list[float]):
    """An exponential moving average that knows its values and how much of the last point each one keeps."""

    of: Sequence[float] = ()
    keep: float = 0.0

    @classmethod
    def by(cls, values: Sequence[float], most: float = 0.88, per: float = 25) -> "Smoothed":
        """Average over about a `per`-th of the values, so that a short curve is not flattened."""
        keep = round(min(most, 1 - 1 / max(1.0, len(values) / per)), 4)
        out = cls()
        for value in values:
            out.append(value if not out else keep * out[-1] + (1 - keep) * value)
        out.of, out.keep = values, keep
        return out


def smooth(values: Sequence[float], most: float = 0.88, per: float = 25) -> list[float]:
    """Return the values smoothed by an exponential moving average."""
    return Smoothed.by(values, most, per)


def layout(**changes: Any) -> dict[str, Any]:
    """The chart template: transparent, hairline grid, no legend, no title, no mode bar."""
    axis = {"tickfont": {"size": 10.5, "color": "$axis"}, "zeroline": False, "automargin": True}
    base: dict[str, Any] = {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "Inter, system-ui, sans-serif", "size": 11, "color": "$t2"},
        "margin": {"l": 40, "r": 16, "t": 8, "b": 28},
        "showlegend": False,
        "hovermode": "x unified",
        "hoverlabel": {"bgcolor": "$s", "bordercolor": "$bd2", "font": {"size": 11, "color": "$t1"}},
        "bargap": 0.18,
        "xaxis": {
            **axis,
            "gridcolor": "rgba(0,0,0,0)",
            "linecolor": "$bd2",
            "tickcolor": "$bd2",
            "ticks": "outside",
            "ticklen": 4,
            "nticks": TICKS,
            "rangemode": "tozero",
        },
        "yaxis": {**axis, "gridcolor": "$grid", "linewidth": 0, "nticks": 5},
    }
    for key, value in changes.items():
        base[key] = {**base[key], **value} if isinstance(value, dict) and isinstance(base.get(key), dict) else value
    return base


def end_label(x: float, y: float, text: str, *, strong: bool = False, shift: int = 0) -> dict[str, Any]:
    """Print a last value at the end of its line."""
    return {
        "x": x,
        "y": y,
        "xanchor": "left",
        "xshift": 5,
        "yshift": shift,
        "text": text,
        "showarrow": False,
        "font": {"size": 11, "color": "$t1" if strong else "$t3", "weight": 600 if strong else 400},
    }


def mark(x: float, text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Draw a dotted vertical line with a word: returns the shape and the annotation."""
    line = {"color": "$bd2", "width": 1, "dash": "dot"}
    shape = {"type": "line", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1, "line": line}
    note = {
        "x": x,
        "y": 1,
        "yref": "paper",
        "yanchor": "top",
        "xanchor": "left",
        "xshift": 4,
        "text": text,
        "showarrow": False,
        "font": {"size": 10.5, "color": "$t3"},
    }
    return shape, note


def room(xs: Sequence[float], share: float = 0.08) -> list[float]:
    """Range of a step axis with free space at the right for the end labels; a lone point stands off the edge."""
    first, last = (min(xs), max(xs)) if xs else (0.0, 1.0)
    return [first - (0.5 if first == last else 0.0), last + max(1.0, (last - first) * share)]


def step_axis(xs: Sequence[float], share: float = 0.08) -> dict[str, Any]:
    """Axis of lines over steps: whole steps have ticks, parts of one have none."""
    low, high = room(xs, share)
    return {"range": [low, high], "rangemode": "normal", **whole_ticks(low, high)}


def bar_axis(xs: Sequence[float]) -> dict[str, Any]:
    """Axis of bars over steps: as `step_axis`, with room for some bars more while a run is young."""
    first, last = xs[0], max(xs[-1], xs[0] + LEAST_BARS - 1)
    young = {"range": [first - 0.6, last + 0.6]} if last > xs[-1] else {}
    return {"rangemode": "normal", **young, **whole_ticks(first - 0.5, last + 0.5)}


def whole_ticks(low: float, high: float) -> dict[str, Any]:
    """Ticks of an axis that counts: 1, 2, 2.5 or 5 times a power of ten apart, about as many as other axes have."""
    sizes = (size * 10**power // 10 for power in count() for size in (10, 20, 25, 50) if size * 10**power % 10 == 0)
    return {"tick0": 0, "dtick": next(size for size in sizes if size * TICKS >= high - low)}


def line(xs: Sequence[float], ys: Sequence[float], look: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Draw a line through points; one point alone, which no line shows, gets a mark."""
    drawn = {"x": list(xs), "y": ys, "mode": "lines", "line": dict(look), **more}
    if len(xs) == 1:
        drawn |= {"mode": "lines+markers", "marker": {"size": 6, "color": look["color"]}}
    return drawn


def dash(hue_index: int, agents: int, *, alike: bool = False) -> str:
    """Line pattern of the n-th agent: hue alone is enough for three agents, from the fourth on lines differ in dash.

    Where lines lie on each other (`alike`) all but the first are dashed, so that the one below shows in the gaps.
    """
    if alike:
        return ("solid", "6px 6px", "2px 6px", "10px 6px 2px 6px")[hue_index % 4]
    patterns = ("solid", "solid", "solid", "6px 3px", "2px 3px", "8px 3px 2px 3px", "4px 2px", "1px 3px")
    return patterns[hue_index % 8] if agents > 3 else "solid"


def lie_together(curves: Sequence[Sequence[float]]) -> bool:
    """Say whether two of some curves cannot be told apart: mostly closer than a hundredth of the scale."""
    scale = max((max(map(abs, curve), default=0.0) for curve in curves), default=0.0) or 1.0
    return any(
        len(one) == len(other) > 0
        and sum(abs(a - b) < 0.01 * scale for a, b in zip(one, other, strict=True)) > 0.8 * len(one)
        for i, one in enumerate(curves)
        for other in curves[:i]
    )
