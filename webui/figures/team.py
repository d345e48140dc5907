"""The team graph: who hears whom, as boxes and arrows. Pages write into a box what its agent is now.

Roles that are asked at once stand below each other, later ones to the right.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from flexmarl.contracts.specification.environment_base import Stages

BOX_W, BOX_H, STEP, DOWN, LEFT, TOP = 156, 52, 192, 76, 64, 30


class RoleNode(Protocol):
    """What the graph needs of a role: `flexmarl.contracts.environments.RoleFacts` has it."""

    @property
    def name(self) -> str: ...
    @property
    def hears(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class Box:
    x: int
    y: int
    role: str
    hue: int
    monogram: str
    words: str = ""
    """What its agent is."""


class Arrow(NamedTuple):
    path: str
    """Of SVG."""
    both: bool = False
    """Whether each hears the other."""
    target: str = ""
    """The role that hears; empty for the answer."""


@dataclass(frozen=True, slots=True)
class TeamGraph:
    width: int
    height: int
    middle: int
    """Height at which the task enters and the answer leaves."""
    boxes: list[Box]
    arrows: list[Arrow]
    text: str


class _Place(NamedTuple):
    column: int
    row: int
    x: int
    y: int

    @property
    def middle(self) -> int:
        return self.y + BOX_H // 2


def team_graph(
    roles: Sequence[RoleNode],
    marks: Mapping[str, Mapping[str, Any]],
    stages: Stages = (),
    words: Mapping[str, str] | None = None,
) -> TeamGraph:
    """Lay roles out from left to right; in a single row arrows back run below. `words` stand in the boxes."""
    names = [role.name for role in roles]
    columns = _columns(names, stages)
    most = max(map(len, columns))
    middle = TOP + ((most - 1) * DOWN + BOX_H) // 2
    places = {
        name: _Place(column, row, LEFT + column * STEP, middle - BOX_H // 2 + (2 * row - len(own) + 1) * DOWN // 2)
        for column, own in enumerate(columns)
        for row, name in enumerate(own)
    }
    marked = {name: marks.get(name, {"hue": 1, "monogram": name[:1].upper()}) for name in names}
    boxes = [
        Box(place.x, place.y, name, marked[name]["hue"], marked[name]["monogram"], (words or {}).get(name, ""))
        for name, place in places.items()
    ]
    heard = [(other, role.name) for role in roles for other in role.hears]
    end = LEFT + (len(columns) - 1) * STEP + BOX_W
    arrows = _in_a_row(heard, places) if most == 1 else _in_columns(heard, places)
    arrows += [Arrow(f"M38 {middle}L{LEFT - 2} {places[name].middle}", target=name) for name in columns[0]]
    last = [name for name in names if name in (stages[-1] if stages else columns[-1])]
    around = any(places[name].column < len(columns) - 1 for name in last)
    back = most == 1 and any(places[other].x > places[name].x for other, name in heard)
    height = TOP + (most - 1) * DOWN + BOX_H + (44 if back or around else 14)
    arrows += [Arrow(_answer(places[name], end, middle, height - 10)) for name in last]
    text = "; ".join(f"{name} hears {other}" for other, name in heard) or ", ".join(names)
    return TeamGraph(end + 44, height, middle, boxes, arrows, text)


def _answer(place: _Place, end: int, middle: int, low: int) -> str:
    """Lead from who answers to the end, below the boxes where there are some on the way."""
    if place.x + BOX_W == end:
        return f"M{end} {place.middle}L{end + 20} {middle}"
    x, away = place.x + BOX_W // 2, end + 32
    below = f"V{low - 8}Q{x} {low} {x + 8} {low}H{away - 8}Q{away} {low} {away} {low - 8}V{middle + 10}"
    return f"M{x} {place.y + BOX_H}{below}"


def _columns(names: Sequence[str], stages: Stages) -> list[list[str]]:
    """Return the roles by when they are first asked; one after the other where it is not stated."""
    left, columns = list(names), []
    for stage in stages:
        if new := [name for name in left if name in stage]:
            columns.append(new)
            left = [name for name in left if name not in new]
    return columns + [[name] for name in left]


def _in_a_row(heard: Sequence[tuple[str, str]], places: Mapping[str, _Place]) -> list[Arrow]:
    return [Arrow(_arrow(places[source].column, places[target].column), target=target) for source, target in heard]


def _in_columns(heard: Sequence[tuple[str, str]], places: Mapping[str, _Place]) -> list[Arrow]:
    """Draw each pair once, from left to right or from above."""
    arrows = []
    for source, target in heard:
        both = (target, source) in heard
        first, second = places[source], places[target]
        if both and (second.column, second.row) < (first.column, first.row):
            continue
        path = _beside(first, second) if first.column == second.column else _across(first, second)
        arrows.append(Arrow(path, both, target))
    return arrows


def _beside(first: _Place, second: _Place) -> str:
    """Join two boxes of a column: neighbours straight, others around those between, on the left."""
    upper, lower = (first, second) if first.row < second.row else (second, first)
    apart = lower.row - upper.row
    x, y0, y1 = upper.x + BOX_W // 2, upper.y + BOX_H + 3, lower.y - 3
    if apart > 1:
        far = upper.x - 6 * apart
        x, y0, y1 = upper.x - 2, upper.middle - 8, lower.middle + 8
        return f"M{x} {y0}H{far}V{y1}H{x}" if first is upper else f"M{x} {y1}H{far}V{y0}H{x}"
    return f"M{x} {y0}V{y1}" if first is upper else f"M{x} {y1}V{y0}"


def _across(first: _Place, second: _Place) -> str:
    """Join boxes of two columns, side to side."""
    if first.column < second.column:
        return f"M{first.x + BOX_W + 3} {first.middle}L{second.x - 3} {second.middle}"
    return f"M{first.x - 3} {first.middle}L{second.x + BOX_W + 3} {second.middle}"


def _arrow(source: int, target: int) -> str:
    middle, low = TOP + BOX_H // 2, TOP + BOX_H
    if target == source + 1:
        return f"M{LEFT + source * STEP + BOX_W} {middle}H{LEFT + target * STEP - 2}"
    if target > source:
        return _bow(LEFT + source * STEP + BOX_W // 2, LEFT + target * STEP + BOX_W // 2, TOP, TOP - 22)
    x0, x1 = LEFT + source * STEP + BOX_W // 2 - 12, LEFT + target * STEP + BOX_W // 2 + 12
    return _bow(x0, x1, low, low + 26)


def _bow(x0: int, x1: int, edge: int, far: int) -> str:
    bend = 8 if x1 > x0 else -8
    turn = 8 if far > edge else -8
    tip = edge + (3 if far > edge else -3)
    return f"M{x0} {edge}V{far - turn}Q{x0} {far} {x0 + bend} {far}H{x1 - bend}Q{x1} {far} {x1} {far - turn}V{tip}"
