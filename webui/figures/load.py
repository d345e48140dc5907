"""The drawings of the Load page: turns per policy, requests at engines, skew. Pure: points in, pixels out.

A part of the window that nobody told of is a gap in the line, never a zero; where engines told and no worker asked for
anything, nothing was asked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from webui.formats import duration, number

WIDTH, HEIGHT, BOTTOM, TOP = 352, 172, 24, 10
LETTER, AXIS_GAP, END_GAP = 6.6, 6, 4
"""Pixels: widest figure or letter of a label, from an axis label to the axis, from a curve to its end label."""
GAP_PARTS = 2.5
"""Parts of the window without a point before a line breaks."""
LABEL_APART = 11
DASHES = ("", "", "", "6 3", "2 3", "8 3 2 3", "4 2", "1 3")

Points = Sequence[tuple[float, float | None]]


@dataclass(frozen=True, slots=True)
class Curve:
    """What is to be drawn; hue 0 is ink."""

    words: str
    points: Points
    hue: int = 0
    label: str = ""
    dash: str = ""


@dataclass(frozen=True, slots=True)
class LoadLine:
    hue: int
    dash: str
    pieces: list[str]
    dots: list[tuple[float, float]]
    """Points without a neighbour."""
    label: str
    label_y: float


@dataclass(frozen=True, slots=True)
class Chart:
    lines: list[LoadLine]
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    bound_y: float | None
    words: str
    left: float
    right: float
    """Edges of the plot: beside them is room for the longest label."""


def demand(load: Mapping[str, Any], agents: Mapping[str, Mapping[str, Any]]) -> Chart | None:
    """Draw the turns without a reply of each policy."""
    told = sorted({point["at"] for point in load["queues"]} | {point["at"] for point in load["asked"]})
    asked = {(point["policy"], point["at"]): point["waiting"] + point["in_flight"] for point in load["asked"]}
    curves = []
    for place, policy in enumerate(load["policies"]):
        name = policy["policy"]
        agent = agents.get(name, {})
        points = [(at, asked.get((name, at), 0.0)) for at in told]
        dash = DASHES[place % len(DASHES)]
        curves.append(Curve(name, points, agent.get("hue", 0), agent.get("monogram", name[:1].upper()), dash))
    return chart(curves, load, "turns")


def requests(load: Mapping[str, Any]) -> Chart | None:
    """Draw what runs at all engines together, and what waits there."""
    running = [(point["at"], point["running"]) for point in load["queues"]]
    waiting = [(point["at"], point["waiting"]) for point in load["queues"]]
    return chart([Curve("running", running, label="run"), Curve("waiting", waiting, label="wait", dash="2 3")], load)


def skew(load: Mapping[str, Any]) -> Chart | None:
    """Draw the longest queue of an engine over the mean one; 1 is even."""
    points = [(point["at"], point["skew"]) for point in load["queues"]]
    drawn = chart([Curve("skew", points, label="")], load, digits=1, least=2.0)
    if drawn is None or not drawn.lines:
        return None
    worst = max(value for _, value in points if value is not None)
    bound = _y(1.0, max(2.0, worst))
    return replace(drawn, bound_y=bound, words=f"skew up to {number(worst, 1)}, 1 is even")


def chart(
    curves: Sequence[Curve], load: Mapping[str, Any], unit: str = "", digits: int = 0, least: float = 1.0
) -> Chart | None:
    """Draw curves over the window of a load; None when nobody told anything in it."""
    values = [value for curve in curves for _, value in curve.points if value is not None]
    if not values:
        return None
    top = max(least, *values)
    y_ticks = [(_y(value, top), number(value, digits)) for value in (0.0, top / 2, top)] if top != 1 else _one(top)
    ends = [_end(curve, digits) for curve in curves]
    left = 2 * AXIS_GAP + LETTER * max(len(text) for _, text in y_ticks)
    right = WIDTH - END_GAP - LETTER * max(len(label) for _, label in ends)
    since, until = load["window"]
    span = _Span(since, until, left, right)
    lines: list[LoadLine] = []
    used: list[float] = []
    for curve, (last, label) in zip(curves, ends, strict=True):
        if last is None:
            continue
        pieces, dots = _pieces(curve.points, span, top, GAP_PARTS * load["part_s"])
        y = _y(last, top)
        while any(abs(y - other) < LABEL_APART for other in used):
            y -= LABEL_APART
        used.append(y)
        lines.append(LoadLine(curve.hue, curve.dash, pieces, dots, label, round(y + 4, 1)))
    words = "; ".join(f"{curve.words}: {_said(curve.points, digits)}" for curve in curves)
    return Chart(
        lines,
        span.ticks("now" if load["live"] else "end"),
        y_ticks,
        None,
        words + (f", in {unit}" if unit else ""),
        round(left, 1),
        round(right, 1),
    )


@dataclass(frozen=True, slots=True)
class _Span:
    """Seconds of the window and the pixels that show them."""

    since: float
    until: float
    left: float
    right: float

    def x(self, at: float) -> float:
        share = (at - self.since) / max(self.until - self.since, 1e-9)
        return round(self.left + min(1.0, max(0.0, share)) * (self.right - self.left), 1)

    def ticks(self, last: str) -> list[tuple[float, str]]:
        whole = self.until - self.since
        before = [(self.x(self.since + part * whole), f"−{duration((1 - part) * whole)}") for part in (0.0, 0.5)]
        return [*before, (self.x(self.until), last)]


def _end(curve: Curve, digits: int) -> tuple[float | None, str]:
    """The last value of a curve and the label at its end; None and "" when nobody told any."""
    last = next((value for _, value in reversed(curve.points) if value is not None), None)
    return last, "" if last is None else f"{curve.label} {number(last, digits)}".strip()


def _one(top: float) -> list[tuple[float, str]]:
    return [(_y(0.0, top), "0"), (_y(1.0, top), "1")]


def _said(points: Points, digits: int) -> str:
    values = [value for _, value in points if value is not None]
    return f"last {number(values[-1], digits)}, max {number(max(values), digits)}" if values else "not reported"


def _pieces(points: Points, span: _Span, top: float, gap: float) -> tuple[list[str], list[tuple[float, float]]]:
    """Cut a curve where nobody told anything; a point alone is a dot."""
    parts: list[list[tuple[float, float]]] = []
    before = None
    for at, value in points:
        if value is None:
            before = None
            continue
        place = (span.x(at), _y(value, top))
        if before is None or at - before > gap:
            parts.append([])
        parts[-1].append(place)
        before = at
    lines = [" ".join(f"{x},{y}" for x, y in part) for part in parts if len(part) > 1]
    return lines, [part[0] for part in parts if len(part) == 1]


def _y(value: float, top: float) -> float:
    return round(HEIGHT - BOTTOM - value / max(top, 1e-9) * (HEIGHT - BOTTOM - TOP), 1)
