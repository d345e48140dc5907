"""The team graph: who hears whom, as boxes and arrows in a strip. The page writes into a box what its agent is now."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

BOX_W, BOX_H, STEP, LEFT, TOP = 132, 52, 168, 64, 30


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


@dataclass(frozen=True, slots=True)
class TeamGraph:
    width: int
    height: int
    boxes: list[Box]
    arrows: list[str]
    """SVG paths."""
    text: str


def team_graph(roles: Sequence[RoleNode], marks: Mapping[str, Mapping[str, Any]]) -> TeamGraph:
    """Lay roles out from left to right; arrows to the right run straight, arrows back run below."""
    place = {role.name: i for i, role in enumerate(roles)}
    boxes, arrows, words = [], [], []
    for role in roles:
        mark = marks.get(role.name, {"hue": 1, "monogram": role.name[:1].upper()})
        x = LEFT + place[role.name] * STEP
        boxes.append(Box(x, TOP, role.name, mark["hue"], mark["monogram"]))
        for heard in role.hears:
            arrows.append(_arrow(place[heard], place[role.name]))
            words.append(f"{role.name} hears {heard}")
    middle = TOP + BOX_H // 2
    arrows.append(f"M38 {middle}H{LEFT - 2}")
    end = LEFT + (len(roles) - 1) * STEP + BOX_W
    arrows.append(f"M{end} {middle}H{end + 20}")
    back = any(place[h] > place[r.name] for r in roles for h in r.hears)
    return TeamGraph(
        end + 44,
        TOP + BOX_H + (44 if back else 14),
        boxes,
        arrows,
        "; ".join(words) or ", ".join(role.name for role in roles),
    )


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
