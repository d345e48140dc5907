"""The device timeline and the use of devices, from closed busy intervals.

Agent is the fill, phase the texture, and a gap between two intervals is drawn as idle time: nothing is interpolated.
"""

from collections.abc import Iterable, Mapping, Sequence
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
TEXTURE = {
    "train": "p-train",
    "load": "p-load",
    "bind": "p-swap",
    "suspend": "p-swap",
    "resume": "p-swap",
    "sleep": "p-swap",
    "wake": "p-swap",
    "checkpoint": "p-sync",
    "sync": "p-sync",
}
GAP_AT_LEAST = 0.01
"""Gaps shorter than this share of the window are not offered for a click."""
_TICKS = (0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21_600, 86_400)


@dataclass(frozen=True, slots=True)
class DeviceBlock:
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
class DeviceLane:
    """One device. It may have had several leases in the window, one after the other."""

    device: str
    use: str
    y: float
    held: list[tuple[float, float]]
    """(x, width) of each lease."""
    blocks: list[DeviceBlock]
    gaps: list[IdleGap]
    busy: float | None
    bubble: float | None
    label: str = ""
    busy_width: float = 0.0
    note: str = ""
    """Why nothing holds the device, where nothing does."""


@dataclass(frozen=True, slots=True)
class NodeLane:
    name: str
    y: float
    rows: list[DeviceLane]
    text: str = ""


@dataclass(frozen=True, slots=True)
class Timeline:
    width: int
    height: float
    left: int
    right: int
    nodes: list[NodeLane]
    ticks: list[tuple[float, str]]
    seconds: dict[str, dict[str, float]] = field(default_factory=dict)
    """Policy ('' for none) -> phase -> device seconds inside the window."""
    held: float = 0.0
    idle: float = 0.0
    steps: list[tuple[float, str]] = field(default_factory=list)
    window: list[float] = field(default_factory=list)


def timeline(payload: Mapping[str, Any], hues: Mapping[str, int], titles: Mapping[str, str] | None = None) -> Timeline:
    """Lay the intervals of a window out in pixels. `hues` maps a policy to its hue, or `(run, policy)` written as one.

    `titles` are the words of the causes of idle time.
    """
    start, end = payload["window"]
    scale = _Scale(start, max(end, start + 1e-6))
    nodes: list[NodeLane] = []
    seconds: dict[str, dict[str, float]] = {}
    held = idle = 0.0
    y = float(TOP)
    by_node: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for lease in (*payload["devices"], *payload.get("idle_devices", ())):
        by_node.setdefault(lease["node"], {}).setdefault(str(lease["device_id"]), []).append(lease)
    sides = _Sides(payload["devices"], titles or {})
    for name, devices in sorted(by_node.items()):
        node = NodeLane(name, y, [], _node_text(devices))
        y += HEAD
        for _, leases in sorted(devices.items()):
            node.rows.append(_row(leases, scale, hues, y, sides))
            for lease in leases:
                if "intervals" in lease:
                    held_s, idle_s = _account(lease, scale, seconds)
                    held, idle = held + held_s, idle + idle_s
            y += ROW + GAP
        y += GAP
        nodes.append(node)
    steps = [(scale.x(s["t0"]), f"step {s['step']}") for s in payload.get("steps", ()) if s["t0"] >= start]
    return Timeline(
        WIDTH, y + 20, LEFT, RIGHT, nodes, _ticks(scale), seconds, held, idle, _apart(steps), [start, end]
    )  # fmt: skip


def _apart(marks: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """Keep marks that have room for their words."""
    out: list[tuple[float, str]] = []
    for x, text in marks:
        if not out or x - out[-1][0] > 64:
            out.append((x, text))
    return out


def _node_text(devices: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    leases = [lease for rows in devices.values() for lease in rows]
    pools = sorted({lease["pool"] for lease in leases if lease.get("pool")})
    runs = sorted({lease["run_key"] for lease in leases if lease.get("run_key")})
    more = f" and {len(runs) - 2} more" if len(runs) > 2 else ""
    parts = [f"pool {', '.join(pools)}"] if pools else []
    return ", ".join([*parts, *([f"runs {', '.join(runs[:2])}{more}"] if runs else [])])


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


def _row(
    leases: Sequence[Mapping[str, Any]], scale: _Scale, hues: Mapping[str, int], y: float, sides: "_Sides"
) -> DeviceLane:
    first = leases[0]
    blocks: list[DeviceBlock] = []
    gaps: list[IdleGap] = []
    held: list[tuple[float, float]] = []
    busy_s = held_s = 0.0
    for lease in (one for one in leases if "intervals" in one):
        inside = _inside(lease, scale)
        blocks += [_block(i, scale, hues, lease) for i in inside]
        since, until = _held(lease, scale)
        held.append((scale.x(since), round(scale.x(until) - scale.x(since), 2)))
        gaps += _gaps(inside, (since, until), scale, lease, sides)
        held_s += until - since
        busy_s += (lease.get("busy_share") or 0.0) * (until - since)
    busy = busy_s / held_s if held_s > 0 else None
    uses = list(dict.fromkeys(lease["use"] for lease in leases if lease.get("use")))
    state = "" if held else {"ready": "free"}.get(first.get("state", ""), first.get("state", ""))
    return DeviceLane(
        str(first["device_id"]), ", ".join(uses), y, held, blocks, gaps, busy, None if busy is None else 1 - busy,
        _label({**first, "use": uses[0] if len(uses) == 1 else ""}), round(BUSY_BAR * (busy or 0.0), 2), state,
    )  # fmt: skip


def _block(
    one: tuple[float, float, str, str], scale: _Scale, hues: Mapping[str, int], lease: Mapping[str, Any]
) -> DeviceBlock:
    t0, t1, phase, policy = one
    left = scale.x(t0)
    run = lease.get("run_key", "")
    words = f"{policy or 'no policy'}, {phase}, {duration(t1 - t0)}{f', {run}' if run else ''}"
    hue = hues.get(f"{lease.get('run_no')}/{policy}", hues.get(policy, 0))
    return DeviceBlock(left, round(max(1.0, scale.x(t1) - left), 2), hue, phase, TEXTURE.get(phase, ""), words)


class _Sides:
    """What a device waited for in a gap, and what the other devices of its run did meanwhile."""

    def __init__(self, devices: Sequence[Mapping[str, Any]], titles: Mapping[str, str]) -> None:
        self._devices, self._titles = devices, titles

    def words(self, lease: Mapping[str, Any], low: float, high: float) -> str:
        """Say both sides in two sentences at most; empty when nothing is known of either."""
        own = _longest((_overlap(i, low, high), i[2]) for i in lease.get("idle", ()))
        said = [f"{self._titles.get(cause, cause)} {duration(s)}" for cause, s in own[:2] if s > 0]
        others = [
            (one, _longest((_overlap(i, low, high), f"{i[3]} {i[2]}".strip()) for i in one["intervals"]))
            for one in self._devices
            if one.get("run_no") == lease.get("run_no") and one["device_id"] != lease["device_id"]
        ]
        busy = [
            f"{one['device_id']} did {work[0][0]} for {duration(work[0][1])}"
            for one, work in others
            if work and work[0][1] > 0.05 * (high - low)
        ]
        meanwhile = f"Meanwhile {'; '.join(busy[:3])}." if busy else ""
        return " ".join(part for part in (f"{', '.join(said)}." if said else "", meanwhile) if part)


def _overlap(one: Sequence[Any], low: float, high: float) -> float:
    begin, end = float(one[0]), float(one[1])
    return max(0.0, min(end, high) - max(begin, low))


def _longest(parts: Iterable[tuple[float, str]]) -> list[tuple[str, float]]:
    total: dict[str, float] = {}
    for seconds, name in parts:
        total[name] = total.get(name, 0.0) + seconds
    return sorted(total.items(), key=lambda item: -item[1])


def _label(device: Mapping[str, Any]) -> str:
    """A device's name without its node's, which stands above, and what it hosts."""
    name = str(device["device_id"]).removeprefix(f"{device['node']}.")
    return f"{name} {device.get('use', '')}".strip()


def _gaps(
    inside: Sequence[tuple[float, float, str, str]],
    held: tuple[float, float],
    scale: _Scale,
    lease: Mapping[str, Any],
    sides: _Sides,
) -> list[IdleGap]:
    least = (scale.end - scale.start) * GAP_AT_LEAST
    gaps, at, before = [], held[0], ""
    for t0, t1, phase, policy in [*inside, (held[1], held[1], "", "")]:
        if t0 - at >= least:
            words = sides.words(lease, at, t0) or _gap_words(lease.get("use", ""), before, f"{policy} {phase}".strip())
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
