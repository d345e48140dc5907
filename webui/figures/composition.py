"""Many devices in one drawing: what share of leased device time each phase took, and how unequal the devices were.

Pure: rows in, pixels out. Above `LANES` rows a timeline is no picture any more.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LANES = 64
BINS = 120
WIDTH, LEFT, RIGHT, TOP, HEIGHT, BAND = 1166, 60, 12, 20, 150, 90
PARTS = (
    ("rollout", "rollout", "k1"),
    ("train", "train", "k2"),
    ("other", "load, bind, save", "q2"),
    ("idle", "idle", "idle"),
)
_PART = {"rollout": "rollout", "eval": "rollout", "train": "train", "step": "train"}


@dataclass(frozen=True, slots=True)
class Composition:
    width: int
    height: int
    bars: list[tuple[float, float, float, float, str]]
    """(x, y, width, height, part) of each stacked bar."""
    band: str
    """Polygon between the 10th and the 90th percentile of the devices' busy shares."""
    middle: str
    top: float
    bottom: float
    words: str


def composition(payload: Mapping[str, Any]) -> Composition:
    """Cut the window into bins and add up what the devices did in each."""
    start, end = payload["window"]
    step = max(end - start, 1e-6) / BINS
    spent = [dict.fromkeys((name for name, _, _ in PARTS), 0.0) for _ in range(BINS)]
    shares: list[list[float]] = [[] for _ in range(BINS)]
    for lease in payload["devices"]:
        since, until = max(start, lease["held_since"]), min(end, lease["held_until"] or end)
        held = _binned([(since, until)], start, step)
        parts: dict[str, list[tuple[float, float]]] = {}
        for t0, t1, phase, _ in lease["intervals"]:
            parts.setdefault(_PART.get(phase, "other"), []).append((t0, t1))
        busy = [0.0] * BINS
        for part, spans in parts.items():
            for i, seconds in enumerate(_binned(spans, start, step)):
                seconds = min(seconds, max(0.0, held[i] - busy[i]))  # noqa: PLW2901 - overlaps count once
                spent[i][part] += seconds
                busy[i] += seconds
        for i in range(BINS):
            spent[i]["idle"] += max(0.0, held[i] - busy[i])
            if held[i] > step / 2:
                shares[i].append(busy[i] / held[i])
    return _drawn(spent, shares, len({lease["device_id"] for lease in payload["devices"]}))


def _binned(spans: list[tuple[float, float]], start: float, step: float) -> list[float]:
    out = [0.0] * BINS
    for t0, t1 in spans:
        first, last = max(0, int((t0 - start) / step)), min(BINS - 1, int((t1 - start) / step))
        for i in range(first, last + 1):
            out[i] += max(0.0, min(t1, start + (i + 1) * step) - max(t0, start + i * step))
    return out


def _drawn(spent: list[dict[str, float]], shares: list[list[float]], devices: int) -> Composition:
    width = (WIDTH - LEFT - RIGHT) / BINS
    bars = []
    for i, parts in enumerate(spent):
        total, y = sum(parts.values()), float(TOP + HEIGHT)
        for name, _, _ in PARTS:
            height = HEIGHT * parts[name] / total if total > 0 else 0.0
            if height > 0.05:
                y -= height
                bars.append((round(LEFT + i * width, 2), round(y, 2), round(width + 0.3, 2), round(height, 2), name))
    top = TOP + HEIGHT + 34
    points = [(LEFT + (i + 0.5) * width, sorted(row)) for i, row in enumerate(shares) if row]
    upper = [f"{x:.1f},{_y(_at(row, 0.9), top)}" for x, row in points]
    lower = [f"{x:.1f},{_y(_at(row, 0.1), top)}" for x, row in reversed(points)]
    middle = " ".join(f"{x:.1f},{_y(_at(row, 0.5), top)}" for x, row in points)
    whole = {name: sum(parts[name] for parts in spent) for name, _, _ in PARTS}
    held = sum(whole.values()) or 1.0
    words = ", ".join(f"{word} {100 * whole[name] / held:.0f} %" for name, word, _ in PARTS)
    return Composition(
        WIDTH, top + BAND + 28, bars, " ".join(upper + lower), middle, top, top + BAND,
        f"{devices} devices: {words} of leased device time",
    )  # fmt: skip


def _at(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _y(busy: float, top: float) -> float:
    return round(top + BAND * (1 - min(1.0, busy)), 1)
