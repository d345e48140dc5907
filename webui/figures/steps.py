"""Small drawings that templates render as SVG: the step bar, sparklines, micro-batch blocks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from webui.figures.base import Agent, SeriesSet
from webui.formats import number

CELLS = 100
LEVELS = 6


@dataclass(frozen=True, slots=True)
class Cell:
    step: int
    """The step of the cell, or the first of those that it stands for."""
    level: int
    """Place in the ink ramp, 1 (lowest) to 6; 0 when the step has no value."""
    x: float
    """Left edge in percent of the bar."""
    width: float
    value: str
    last: int
    """The last of its steps."""


@dataclass(frozen=True, slots=True)
class StepBar:
    first: int
    last: int
    low: str
    high: str
    cells: list[Cell]
    marks: list[tuple[float, int]]
    """(x in percent, step number) under the bar."""
    kept: list[tuple[float, str]]
    """(x in percent, words) of checkpoints."""
    begun: list[tuple[float, str]]
    """(x in percent, words) of attempts after the first."""
    per_cell: int
    """Steps that a cell stands for; 1 where each step has its own."""


def step_bar(
    series: SeriesSet, name: str = "reward/team", cells: int = CELLS, marks: Mapping[str, Any] | None = None
) -> StepBar | None:
    """Lay the steps of a series out as cells coloured by it; where there are more, they share cells evenly."""
    xs, ys = series.get(name)
    if not xs:
        return None
    per = -(-(int(xs[-1]) - int(xs[0]) + 1) // cells)
    found = _shared(xs, ys, per)
    low, high = min(mean for *_, mean, _ in found), max(mean for *_, mean, _ in found)
    width = 100.0 / len(found)
    out = [
        Cell(first, _level(mean, low, high), round(i * width, 3), round(width * 0.88, 3), words, last)
        for i, (first, last, mean, words) in enumerate(found)
    ]
    kept, begun = _events(out, marks or {"checkpoints": [], "attempts": []})
    return StepBar(out[0].step, out[-1].last, number(low, 3), number(high, 3), out, _ticks(out), kept, begun, per)


def _shared(xs: Sequence[float], ys: Sequence[float], per: int) -> list[tuple[int, int, float, str]]:
    """Return (first step, last step, mean, words) of each cell of `per` steps; cells without a value are left out."""
    groups: dict[int, list[tuple[int, float]]] = {}
    for x, y in zip(xs, ys, strict=True):
        groups.setdefault((int(x) - int(xs[0])) // per, []).append((int(x), y))
    found = []
    for group in groups.values():
        values = [y for _, y in group]
        mean = sum(values) / len(values)
        words = number(mean, 3)
        if len(group) > 1:
            words = f"mean {words}, {number(min(values), 3)} to {number(max(values), 3)}"
        found.append((group[0][0], group[-1][0], mean, words))
    return found


def _ticks(cells: list[Cell]) -> list[tuple[float, int]]:
    every = next((n for n in (1, 2, 5, 10, 20, 25, 50) if len(cells) / n <= 8), 100)
    named = [c for i, c in enumerate(cells) if (c.step if c.step == c.last else i) % every == 0]
    return [(round(c.x + c.width / 2, 3), c.step) for c in named if c.x < 92 and c is not cells[-1]]


def _events(cells: list[Cell], known: Mapping[str, Any]) -> tuple[list[tuple[float, str]], list[tuple[float, str]]]:
    """Place checkpoints in the middle of their cells and later attempts at the left edge of their first one."""
    place = {step: cell for cell in cells for step in range(cell.step, cell.last + 1)}
    kept = [
        (round(place[one["step"]].x + place[one["step"]].width / 2, 3), f"checkpoint {', '.join(one['labels'])}")
        for one in known["checkpoints"]
        if one["step"] in place
    ]
    begun = [
        (place[one["step"] + 1].x, f"attempt {one['no']}") for one in known["attempts"] if one["step"] + 1 in place
    ]
    return kept, begun


def zoom(asked: str, last: int, cells: int = CELLS) -> dict[str, Any]:
    """Which steps the bar shows: all of them (`asked` is `all`), or a hundred from the one that is asked for.

    Returns the range and where the neighbouring ranges begin; every step lies in one of them.
    """
    newest = max(1, last - cells + 1)
    if asked == "all" and last > cells:
        return {"all": True, "first": 1, "last": last, "earlier": "", "later": "", "more": True, "newest": True}
    first = min(newest, max(1, int(asked))) if asked.isdigit() else newest
    return {
        "all": False,
        "first": first,
        "last": min(last, first + cells - 1),
        "earlier": max(1, first - cells) if first > 1 else "",
        "later": min(newest, first + cells) if first < newest else "",
        "more": last > cells,
        "newest": first == newest,
    }


def _level(value: float, low: float, high: float) -> int:
    return 1 + min(LEVELS - 1, int((value - low) / (high - low) * LEVELS)) if high > low else LEVELS // 2


@dataclass(frozen=True, slots=True)
class Spark:
    """Points of a sparkline in a box of `width` x `height`."""

    width: int
    height: int
    line: str
    area: str
    end_x: float
    end_y: float


def spark(values: Sequence[float], width: int = 88, height: int = 24, keep: int = 60) -> Spark | None:
    """Draw the last values of a series as a small line that ends in a dot; one value is the dot. None without any."""
    if len(values) < 2:
        return Spark(width, height, "", "", width - 4, height / 2) if values else None
    size = -(-len(values) // keep)
    if size > 1:
        values = [sum(values[i : i + size]) / len(values[i : i + size]) for i in range(0, len(values), size)]
    low, high = min(values), max(values)
    scale = (high - low) or 1.0
    points = [
        (2 + i * (width - 6) / (len(values) - 1), height - 3 - (value - low) / scale * (height - 6))
        for i, value in enumerate(values)
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    area = f"2,{height} {line} {width - 4},{height}"
    return Spark(width, height, line, area, round(points[-1][0], 1), round(points[-1][1], 1))


@dataclass(frozen=True, slots=True)
class MicroBatchLane:
    policy: str
    hue: int
    monogram: str
    blocks: list[str]
    """One word per expected micro-batch: acc, cut or wait."""
    state: str
    text: str


def micro_batches(progress: Mapping[str, Any], agents: list[Agent], limit: int = 64) -> list[MicroBatchLane]:
    """Lay the micro-batches of the running step out per policy."""
    by_policy = {agent.policy: agent for agent in reversed(agents)}
    rows = []
    order = {name: place for place, name in enumerate(dict.fromkeys(agent.policy for agent in agents))}
    for entry in sorted(progress.get("micro_batches") or (), key=lambda e: order.get(e["policy"], len(order))):
        agent = by_policy.get(entry["policy"])
        expected = max(entry.get("expected", 0), entry.get("cut", 0))
        done, cut = entry.get("accumulated", 0), entry.get("cut", 0)
        blocks = ["acc" if i < done else "cut" if i < cut else "wait" for i in range(min(expected, limit))]
        published = entry.get("state") == "published"
        version = (progress.get("agents") or {}).get(agent.role if agent else "", {}).get("version")
        rows.append(
            MicroBatchLane(
                entry["policy"],
                agent.hue if agent else 1,
                agent.monogram if agent else entry["policy"][:1].upper(),
                blocks,
                entry.get("state", "waiting"),
                f"v{version}" if published and version is not None else f"{done} of {expected}",
            )
        )
    return rows
