"""The drawings of the Load page: turns per policy, requests at engines, skew. Pure: points in, pixels out.

A part of the window that nobody told of is a gap in the line, never a zero; where engines told and no worker asked for
anything, nothing was asked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from webui.formats import duration, number

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, END = 352, 172, 28, 24, 10, 44
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
class Line:
    hue: int
    dash: str
    pieces: list[str]
    dots: list[tuple[float, float]]
    """Points without a neighbour."""
    label: str
    label_y: float


@dataclass(frozen=True, slots=True)
class Chart:
    lines: list[Line]
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    bound_y: float | None
    words: str
    right: int = WIDTH - END


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
    return Chart(drawn.lines, drawn.x_ticks, drawn.y_ticks, bound, f"skew up to {number(worst, 1)}, 1 is even")


def chart(
    curves: Sequence[Curve], load: Mapping[str, Any], unit: str = "", digits: int = 0, least: float = 1.0
) -> Chart | None:
    """Draw curves over the window of a load; None when nobody told anything in it."""
    values = [value for curve in curves for _, value in curve.points if value is not None]
    if not values:
        return None
    (since, until), top = load["window"], max(least, *values)
    lines: list[Line] = []
    used: list[float] = []
    for curve in curves:
        pieces, dots = _pieces(curve.points, since, until, top, GAP_PARTS * load["part_s"])
        last = next((value for _, value in reversed(curve.points) if value is not None), None)
        if last is None:
            continue
        y = _y(last, top)
        while any(abs(y - other) < LABEL_APART for other in used):
            y -= LABEL_APART
        used.append(y)
        label = f"{curve.label} {number(last, digits)}".strip()
        lines.append(Line(curve.hue, curve.dash, pieces, dots, label, round(y + 4, 1)))
    words = "; ".join(f"{curve.words}: {_said(curve.points, digits)}" for curve in curves)
    ticks = [(_x(since + part * (until - since), since, until), part) for part in (0.0, 0.5, 1.0)]
    return Chart(
        lines,
        [(x, f"−{duration((1 - part) * (until - since))}" if part < 1 else "now") for x, part in ticks]
        if load["live"]
        else [(x, f"−{duration((1 - part) * (until - since))}" if part < 1 else "end") for x, part in ticks],
        [(_y(value, top), number(value, digits)) for value in (0.0, top / 2, top)] if top != 1 else _one(top),
        None,
        words + (f", in {unit}" if unit else ""),
    )


def _one(top: float) -> list[tuple[float, str]]:
    return [(_y(0.0, top), "0"), (_y(1.0, top), "1")]


def _said(points: Points, digits: int) -> str:
    values = [value for _, value in points if value is not None]
    return f"last {number(values[-1], digits)}, max {number(max(values), digits)}" if values else "not reported"


def _pieces(
    points: Points, since: float, until: float, top: float, gap: float
) -> tuple[list[str], list[tuple[float, float]]]:
    """Cut a curve where nobody told anything; a point alone is a dot."""
    parts: list[list[tuple[float, float]]] = []
    before = None
    for at, value in points:
        if value is None:
            before = None
            continue
        place = (_x(at, since, until), _y(value, top))
        if before is None or at - before > gap:
            parts.append([])
        parts[-1].append(place)
        before = at
    lines = [" ".join(f"{x},{y}" for x, y in part) for part in parts if len(part) > 1]
    return lines, [part[0] for part in parts if len(part) == 1]


def _x(at: float, since: float, until: float) -> float:
    share = (at - since) / max(until - since, 1e-9)
    return round(LEFT + min(1.0, max(0.0, share)) * (WIDTH - LEFT - END), 1)


def _y(value: float, top: float) -> float:
    return round(HEIGHT - BOTTOM - value / max(top, 1e-9) * (HEIGHT - BOTTOM - TOP), 1)
