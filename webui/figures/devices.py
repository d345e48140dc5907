"""The device timeline and the use of devices, from closed busy intervals.

Agent is the fill, phase the texture, and a gap between two intervals is drawn as idle time: nothing is interpolated.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from webui.formats import duration

WIDTH, LEFT, RIGHT = 1166, 116, 92
ROW, GAP, HEAD = 19, 6, 20
TOP = 26
BUSY_BAR = 36
BUSY = frozenset({"rollout", "train", "step", "eval"})
"""Phases that count as work; loading, binding and saving are held but not busy."""
TEXTURE = {"train": "p-train", "load": "p-load", "bind": "p-swap", "checkpoint": "p-sync", "sync": "p-sync"}
GAP_AT_LEAST = 0.01
"""Gaps shorter than this share of the window are not offered for a click."""
_TICKS = (0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21_600, 86_400)


@dataclass(frozen=True, slots=True)
class Block:
    x: float
    width: float
    hue: int
    phase: str
    texture: str
    title: str


@dataclass(frozen=True, slots=True)
class IdleGap:
    x: float
    width: float
    seconds: float
    start: str
    end: str
    text: str


@dataclass(frozen=True, slots=True)
class Row:
    device: str
    use: str
    y: float
    held_x: float
    held_width: float
    blocks: list[Block]
    gaps: list[IdleGap]
    busy: float | None
    bubble: float | None
    label: str = ""
    busy_width: float = 0.0


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    y: float
    rows: list[Row]


@dataclass(frozen=True, slots=True)
class Timeline:
    width: int
    height: float
    left: int
    right: int
    nodes: list[Node]
    ticks: list[tuple[float, str]]
    seconds: dict[str, dict[str, float]] = field(default_factory=dict)
    """Policy ('' for none) -> phase -> device seconds inside the window."""
    held: float = 0.0
    idle: float = 0.0


def timeline(payload: Mapping[str, Any], hues: Mapping[str, int]) -> Timeline:
    """Lay the intervals of a window out in pixels. `hues` maps a policy to its hue."""
    start, end = payload["window"]
    scale = _Scale(start, max(end, start + 1e-6))
    nodes: list[Node] = []
    seconds: dict[str, dict[str, float]] = {}
    held = idle = 0.0
    y = float(TOP)
    by_node: dict[str, list[Mapping[str, Any]]] = {}
    for device in payload["devices"]:
        by_node.setdefault(device["node"], []).append(device)
    for name, devices in sorted(by_node.items()):
        node = Node(name, y, [])
        y += HEAD
        for device in sorted(devices, key=lambda d: str(d["device_id"])):
            node.rows.append(_row(device, scale, hues, y))
            held_s, idle_s = _account(device, scale, seconds)
            held, idle = held + held_s, idle + idle_s
            y += ROW + GAP
        y += GAP
        nodes.append(node)
    return Timeline(WIDTH, y + 20, LEFT, RIGHT, nodes, _ticks(scale), seconds, held, idle)


@dataclass(frozen=True, slots=True)
class _Scale:
    start: float
    end: float

    def x(self, at: float) -> float:
        """Pixel of a moment, clipped to the window."""
        share = (min(max(at, self.start), self.end) - self.start) / (self.end - self.start)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 2)


def _inside(device: Mapping[str, Any], scale: _Scale) -> list[tuple[float, float, str, str]]:
    found = [(max(i[0], scale.start), min(i[1], scale.end), i[2], i[3]) for i in device["intervals"]]
    return sorted(i for i in found if i[1] > i[0])


def _held(device: Mapping[str, Any], scale: _Scale) -> tuple[float, float]:
    """The part of the window in which the run held the device."""
    until = device.get("held_until")
    return max(scale.start, device["held_since"]), min(scale.end, until) if until else scale.end


def _row(device: Mapping[str, Any], scale: _Scale, hues: Mapping[str, int], y: float) -> Row:
    inside = _inside(device, scale)
    blocks = []
    for t0, t1, phase, policy in inside:
        left = scale.x(t0)
        words = f"{policy or 'no policy'}, {phase}, {duration(t1 - t0)}"
        width = max(1.0, scale.x(t1) - left)
        blocks.append(Block(left, round(width, 2), hues.get(policy, 0), phase, TEXTURE.get(phase, ""), words))
    since, until = _held(device, scale)
    held_x = scale.x(since)
    return Row(
        str(device["device_id"]),
        device.get("use", ""),
        y,
        held_x,
        round(scale.x(until) - held_x, 2),
        blocks,
        _gaps(inside, (since, until), scale, device.get("use", "")),
        device.get("busy_share"),
        device.get("bubble_share"),
        _label(device),
        round(BUSY_BAR * (device.get("busy_share") or 0.0), 2),
    )


def _label(device: Mapping[str, Any]) -> str:
    """A device's name without its node's, which stands above, and what it hosts."""
    name = str(device["device_id"]).removeprefix(f"{device['node']}.")
    return f"{name} {device.get('use', '')}".strip()


def _gaps(
    inside: Sequence[tuple[float, float, str, str]], held: tuple[float, float], scale: _Scale, use: str
) -> list[IdleGap]:
    least = (scale.end - scale.start) * GAP_AT_LEAST
    gaps, at, before = [], held[0], ""
    for t0, t1, phase, policy in [*inside, (held[1], held[1], "", "")]:
        if t0 - at >= least:
            words = _gap_words(use, before, f"{policy} {phase}".strip())
            left = scale.x(at)
            gaps.append(IdleGap(left, round(scale.x(t0) - left, 2), t0 - at, clock(at), clock(t0), words))
        at, before = max(at, t1), f"{policy} {phase}".strip() or before
    return gaps


def _gap_words(use: str, before: str, after: str) -> str:
    held = {"trainer": "The trainer waited for micro-batches", "engine": "The engine had no request"}.get(use, "Idle")
    parts = [p for p in (f"after {before}" if before else "", f"before {after}" if after else "") if p]
    return f"{held}{', ' if parts else ''}{' and '.join(parts)}."


def _account(device: Mapping[str, Any], scale: _Scale, seconds: dict[str, dict[str, float]]) -> tuple[float, float]:
    """Add a device's seconds per policy and phase; returns (held, idle) seconds."""
    since, until = _held(device, scale)
    held, covered, at = max(0.0, until - since), 0.0, since
    for t0, t1, phase, policy in _inside(device, scale):
        phases = seconds.setdefault(policy, {})
        phases[phase] = phases.get(phase, 0.0) + t1 - t0
        covered += max(0.0, min(t1, until) - max(t0, at))
        at = max(at, t1)
    return held, max(0.0, held - covered)


def _ticks(scale: _Scale) -> list[tuple[float, str]]:
    span = scale.end - scale.start
    step = next((t for t in _TICKS if span / t <= 7), _TICKS[-1])
    first = -(-scale.start // step) * step
    count = int((scale.end - first) / step) + 1 if first <= scale.end else 0
    return [(scale.x(first + i * step), clock(first + i * step)) for i in range(count)]


def clock(at: float) -> str:
    """Write a moment as hours, minutes and seconds, UTC."""
    return f"{datetime.fromtimestamp(at, UTC):%H:%M:%S}"


def shares(payload: Mapping[str, Any]) -> dict[str, float | None]:
    """Mean busy and bubble share over the devices of a window."""
    busy = [d["busy_share"] for d in payload["devices"] if d.get("busy_share") is not None]
    bubble = [d["bubble_share"] for d in payload["devices"] if d.get("bubble_share") is not None]
    return {
        "busy": sum(busy) / len(busy) if busy else None,
        "bubble": sum(bubble) / len(bubble) if bubble else None,
    }
