"""Lane pairs of the pipeline: per policy what is generated above what is trained. Pure: rows in, pixels out.

Blocks that would be narrower than a pixel are joined with their neighbour (`count` says how many), so a drawing never
has more than about two thousand blocks however long its window is. Only what is dashed is expected; all else happened.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from webui.figures.devices import clock
from webui.formats import duration

WIDTH, LEFT, RIGHT = 1166, 124, 8
TOP, ROWS, ROW, ROW_GAP, TRAIN = 34, 5, 8, 2.5, 24
LANE = ROWS * (ROW + ROW_GAP) + 12 + TRAIN + 22
JOIN_BELOW = 1.5
MANY = 240
"""Micro-batches of a policy in one window above which they are gathered."""
NUMBER_FROM = 11.0
AHEAD = 0.16
"""Share of the drawing that lies behind `now` while a run is live."""
_TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 86_400)


@dataclass(frozen=True, slots=True)
class Bar:
    x: float
    y: float
    width: float
    ready: bool
    expected: bool
    title: str


@dataclass(frozen=True, slots=True)
class TrainBlock:
    x: float
    width: float
    kind: str
    """done, claimed, step, expected."""
    label: str
    title: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class Wait:
    x: float
    width: float
    text: str
    middle: float
    box: float


@dataclass(frozen=True, slots=True)
class Flag:
    x: float
    text: str


@dataclass(slots=True)
class Lane:
    policy: str
    hue: int
    monogram: str
    state: str
    y: float
    train_y: float
    bars: list[Bar] = field(default_factory=list)
    threads: list[str] = field(default_factory=list)
    blocks: list[TrainBlock] = field(default_factory=list)
    flags: list[Flag] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Drawing:
    width: int
    height: float
    left: int
    right: int
    lanes: list[Lane]
    ticks: list[tuple[float, str]]
    steps: list[tuple[float, float, str]]
    """(from, width, words) of each finished step inside the window."""
    now_x: float | None
    words: str


@dataclass(frozen=True, slots=True)
class TimeScale:
    start: float
    end: float

    def x(self, at: float) -> float:
        """Pixel of a moment, clipped to the drawing."""
        share = (min(max(at, self.start), self.end) - self.start) / (self.end - self.start)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 2)


def draw(payload: Mapping[str, Any], agents: Mapping[str, Mapping[str, Any]]) -> Drawing:
    """Lay a pipeline's window out. `agents` maps a policy to one of its agents."""
    since, until = payload["window"]
    ahead = (until - since) * AHEAD / (1 - AHEAD) if payload["live"] else 0.0
    scale = TimeScale(since, max(until + ahead, since + 1e-3))
    lanes = []
    y = float(TOP)
    for row in payload["policies"]:
        agent = agents.get(row["policy"], {})
        lane = Lane(
            row["policy"], agent.get("hue", 0), agent.get("monogram", row["policy"][:1].upper()), _state(row, payload),
            y, y + ROWS * (ROW + ROW_GAP) + 12,
        )  # fmt: skip
        _rollout(lane, row, scale, until, live=payload["live"])
        _train(lane, row, scale, until)
        lanes.append(lane)
        y += LANE
    steps = [
        (scale.x(s["t0"]), round(scale.x(s["t1"]) - scale.x(s["t0"]), 2), f"step {s['step']}") for s in payload["steps"]
    ]
    return Drawing(
        WIDTH, y + 12, LEFT, RIGHT, lanes, _ticks(scale), _apart(steps),
        scale.x(until) if payload["live"] else None, _words(payload),
    )  # fmt: skip


def _apart(steps: Sequence[tuple[float, float, str]]) -> list[tuple[float, float, str]]:
    """Keep the newest steps whose words have room."""
    out: list[tuple[float, float, str]] = []
    for step in reversed(steps):
        if step[1] > 1 and (not out or out[-1][0] - step[0] > 58):
            out.append(step)
    return out[::-1]


def _state(row: Mapping[str, Any], payload: Mapping[str, Any]) -> str:
    """Write how far a policy is with the newest step."""
    if row["stepped_held"] is not None and row["expected"]:
        return f"v{row['stepped_held']} stepped, held"
    passed = next((p for p in payload["passed"]["rows"] if p["policy"] == row["policy"]), None)
    if passed is None or not passed["of"]:
        return ""
    return f"v{passed['serving']}, {passed['gradient']} of {passed['of']}"


def _rollout(lane: Lane, row: Mapping[str, Any], scale: TimeScale, until: float, *, live: bool) -> None:
    """Pack what is generated into thin rows, and join each ready edge with its block below."""
    spans = _gathered([b for b in row["blocks"] if b["ready"] > scale.start])
    free = [float("-inf")] * ROWS
    for started, ready, block in sorted(spans, key=lambda s: (s[0], s[1])):
        at = next((i for i, end in enumerate(free) if end <= started), min(range(ROWS), key=lambda i: free[i]))
        free[at] = ready
        left, right = scale.x(started), scale.x(ready)
        y = round(lane.y + at * (ROW + ROW_GAP), 2)
        what = f"{block['count']} micro-batches" if block.get("count") else f"micro-batch {block['number']}"
        title = f"{what}: {block['groups']} groups in {duration(ready - started)}"
        lane.bars.append(Bar(left, y, round(max(1.0, right - left), 2), True, False, title))
        if block["claimed"] is not None and block["claimed"] < scale.end:
            to = scale.x(block["claimed"]) + 1.2
            low, top = round(y + ROW, 2), lane.train_y
            lane.threads.append(
                f"M{right - 1:.1f} {low}C{right - 1:.1f} {top - 8:.1f} {to:.1f} {top - 12:.1f} {to:.1f} {top}"
            )
    if not live or not row["expected"]:
        return
    begun = min(row["open_since"], default=None)
    usual = median([ready - started for started, ready, _ in spans]) if spans else 0.0
    for i in range(min(row["expected"], ROWS)):
        y = round(lane.y + i * (ROW + ROW_GAP), 2)
        if begun is not None:
            left = scale.x(begun)
            lane.bars.append(Bar(left, y, round(max(1.0, scale.x(until) - left), 2), False, False, "being generated"))
        right = scale.x(max(until, (begun or until) + usual) + i * 0.02 * (scale.end - until))
        if right > scale.x(until) + 2:
            now_x = scale.x(until)
            lane.bars.append(Bar(now_x, y, round(right - now_x, 2), False, True, "estimated from the median"))


def _gathered(blocks: Sequence[Mapping[str, Any]]) -> list[tuple[float, float, Mapping[str, Any]]]:
    """List (started, ready, block); above `MANY`, neighbours are drawn as one bar without threads."""
    size = -(-len(blocks) // MANY)
    if size <= 1:
        return [(b["started"], b["ready"], b) for b in blocks]
    out: list[tuple[float, float, Mapping[str, Any]]] = []
    for i in range(0, len(blocks), size):
        part = blocks[i : i + size]
        whole = {"count": len(part), "groups": sum(b["groups"] for b in part), "claimed": None}
        out.append((min(b["started"] for b in part), max(b["ready"] for b in part), whole))
    return out


def _train(lane: Lane, row: Mapping[str, Any], scale: TimeScale, until: float) -> None:
    """Draw what the trainer did: micro-batches by number, optimizer steps, publications, and the gaps with a word."""
    blocks: list[TrainBlock] = []
    lengths = []
    for block in row["blocks"]:
        if block["claimed"] is None or (block["done"] or until) < scale.start or block["claimed"] > scale.end:
            continue
        end = block["done"] or until
        lengths.append(end - block["claimed"])
        left, width = scale.x(block["claimed"]), scale.x(end) - scale.x(block["claimed"])
        kind = "claimed" if block["done"] is None else "done"
        title = f"micro-batch {block['number']}, {block['rows']} samples, {duration(end - block['claimed'])}"
        blocks.append(TrainBlock(left, round(max(1.0, width - 1), 2), kind, str(block["number"]), title))
    for step in row["optimizer_steps"]:
        end = step["t1"] or until
        if end >= scale.start and step["t0"] <= scale.end:
            left = scale.x(step["t0"])
            title = f"optimizer step to v{step['version']}, {duration(end - step['t0'])}"
            blocks.append(TrainBlock(left, round(max(2.0, scale.x(end) - left), 2), "step", "", title))
    lane.blocks = _joined(sorted(blocks, key=lambda b: b.x))
    _expected(lane, row, scale, until, median(lengths) if lengths else 0.0)
    flags = [
        Flag(min(scale.x(p["at"]), WIDTH - 17.0), f"v{p['version']}")
        for p in row["publications"]
        if p["at"] <= scale.end
    ]
    for flag in reversed(flags):
        if all(abs(flag.x - other.x) > 34 for other in lane.flags):
            lane.flags.append(flag)
    for wait in row["waits"]:
        left, right = scale.x(wait["t0"]), scale.x(wait["t1"])
        text = f"{wait['title'][:1].lower()}{wait['title'][1:]} {duration(wait['seconds'])}"
        box = 6.1 * len(text) + 12
        if right - left > box + 8:
            lane.waits.append(Wait(left, round(right - left, 2), text, round((left + right) / 2, 2), round(box, 2)))


def _expected(lane: Lane, row: Mapping[str, Any], scale: TimeScale, until: float, usual: float) -> None:
    left = scale.x(until) + 3
    width = max(8.0, scale.x(min(scale.end, until + usual)) - scale.x(until)) if usual else 14.0
    claimed = [b["number"] for b in row["blocks"] if b["claimed"] is not None and b["claimed"] > scale.start]
    ready = [b for b in row["blocks"] if b["claimed"] is None]
    first = (claimed[-1] if claimed and row["expected"] else 0) + 1
    for i in range(len(ready) + row["expected"]):
        if left + width > WIDTH - RIGHT:
            break
        label = str(ready[i]["number"] if i < len(ready) else first + i)
        lane.blocks.append(TrainBlock(left, round(width - 2, 2), "expected", label, "expected"))
        left = round(left + width, 2)


def _joined(blocks: Sequence[TrainBlock]) -> list[TrainBlock]:
    """Join neighbours that are too narrow to be told apart."""
    out: list[TrainBlock] = []
    for block in blocks:
        last = out[-1] if out else None
        narrow = block.width < JOIN_BELOW and last is not None and last.kind == block.kind
        if last is not None and narrow and block.x - (last.x + last.width) < 1:
            width = round(max(last.width, block.x + block.width - last.x), 2)
            count = last.count + block.count
            out[-1] = TrainBlock(last.x, width, last.kind, "", f"{count} blocks", count)
        else:
            shown = block.label if block.width >= NUMBER_FROM + (1.5 if len(block.label) > 1 else 0) else ""
            out.append(TrainBlock(block.x, block.width, block.kind, shown, block.title))
    return out


def _ticks(scale: TimeScale) -> list[tuple[float, str]]:
    span = scale.end - scale.start
    step = next((t for t in _TICKS if span / t <= 7), _TICKS[-1])
    first = -(-scale.start // step) * step
    count = int((scale.end - first) / step) + 1 if first <= scale.end else 0
    moments = [first + i * step for i in range(count)]
    fine = step < 1
    return [(scale.x(at), f"{clock(at)}{f'.{int(at * 10) % 10}' if fine else ''}") for at in moments]


def _words(payload: Mapping[str, Any]) -> str:
    parts = []
    for row in payload["policies"]:
        done = sum(1 for b in row["blocks"] if b["done"] is not None)
        parts.append(f"{row['policy']}: {done} micro-batches trained, {len(row['publications'])} versions published")
    return ". ".join(parts) or "No micro-batch in this window"


@dataclass(frozen=True, slots=True)
class StripBar:
    step: int
    x: float
    width: float
    height: float
    shown: bool
    title: str


def strip(payload: Mapping[str, Any]) -> list[StripBar]:
    """Lay the newest steps out as bars whose height is their time; those in the window are marked."""
    rows = payload["strip"]
    if not rows:
        return []
    longest = max(row["seconds"] for row in rows) or 1.0
    inside = {s["step"] for s in payload["steps"]}
    width = 100 / len(rows)
    return [
        StripBar(
            row["step"], round(i * width, 3), round(width * 0.8, 3), round(max(3.0, 20 * row["seconds"] / longest), 2),
            row["step"] in inside, f"step {row['step']}, {duration(row['seconds'])}",
        )
        for i, row in enumerate(rows)
    ]  # fmt: skip
