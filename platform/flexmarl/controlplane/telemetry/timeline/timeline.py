"""What devices did in a window: closed busy intervals, why they were idle, and the shares of the window made of them.

One definition everywhere (`bubble`): `busy_share` is the union of a device's closed intervals over the part of the
window in which the run held it; `bubble_share` is the rest, split by cause. Intervals still open do not count, so the
newest second reads low.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.runs.models import Run
from flexmarl.controlplane.telemetry.timeline import bubble
from flexmarl.controlplane.telemetry.timeline.bubble import DeviceBubble
from flexmarl.controlplane.telemetry.timeline.spans import length
from flexmarl.controlplane.telemetry.timeline.windows import DEFAULT_WINDOW_S, Window, window_of
from flexmarl.store.reads import activity
from flexmarl.store.reads.activity import LeaseHistory
from flexmarl.store.telemetry import intervals
from flexmarl.store.telemetry.intervals import DeviceInterval

_RESOLUTION = 1 / 2000
"""Share of the window below which gaps between like intervals are not drawn."""


@dataclass(slots=True)
class Drawn:
    """A run of like intervals with no visible gap."""

    t0: float
    t1: float
    phase: str
    policy: str


def timeline(
    run: Run, window_s: float | None = DEFAULT_WINDOW_S, *, step: int | None = None, until: float | None = None
) -> dict[str, Any]:
    """Return the devices of a run with what they did, and did not do, in a window of its life."""
    window = window_of(run, window_s, step=step, until=until)
    devices, found, _ = bubble.read(run, window)
    steps = activity.steps_between(store_connection(), run.no, window.since, window.until)
    return {
        "devices": device_rows(devices, found, window),
        "window": [window.since, window.until],
        "steps": [{"step": n, "t0": t0, "t1": t1} for n, t0, t1 in steps],
        "bubble": {**bubble.account(devices, window), "devices": []},
        "seq": run.state.seq,
    }


def device_rows(
    devices: Sequence[DeviceBubble], found: Sequence[DeviceInterval], window: Window
) -> list[dict[str, Any]]:
    """Describe each lease inside the window; neighbours that no chart could tell apart are joined."""
    by_lease: dict[int, list[DeviceInterval]] = {}
    for interval in found:
        by_lease.setdefault(interval.lease_id, []).append(interval)
    return [_row(one, by_lease.get(one.lease.lease_id, []), window) for one in devices]


def _row(one: DeviceBubble, own: list[DeviceInterval], window: Window) -> dict[str, Any]:
    lease, gap = one.lease, window.seconds * _RESOLUTION
    causes = [
        [low, high, cause.value] for cause, spans in one.causes.items() for low, high in spans if high - low >= gap
    ]
    busy = length(one.busy) / one.held_s
    return {
        "device_id": lease.device_id,
        "node": lease.node,
        "kind": lease.kind,
        "pool": lease.pool,
        "use": lease.use,
        "run_no": lease.run_id,
        "lease_id": lease.lease_id,
        "lease_state": lease.state,
        "held_since": lease.since,
        "held_until": lease.until,
        "intervals": [[d.t0, d.t1, d.phase, d.policy] for d in coalesce(own, gap)],
        "idle": sorted(causes),
        "busy_share": round(busy, 4),
        "bubble_share": round(1.0 - busy, 4),
        "tokens": sum(interval.tokens for interval in own),
    }


def union(own: list[DeviceInterval], start: float, end: float) -> float:
    """Return the seconds of [start, end] that at least one interval covers."""
    covered, reached = 0.0, start
    for interval in sorted(own, key=lambda i: i.t0):
        low, high = max(interval.t0, reached), min(interval.t1, end)
        if high > low:
            covered += high - low
            reached = high
    return covered


def coalesce(own: list[DeviceInterval], gap: float) -> list[Drawn]:
    """Join like neighbours that no chart could tell apart; `own` is ordered by time."""
    drawn: list[Drawn] = []
    for interval in own:
        last = drawn[-1] if drawn else None
        if last and (last.phase, last.policy) == (interval.phase, interval.policy) and interval.t0 - last.t1 <= gap:
            last.t1 = max(last.t1, interval.t1)
        else:
            drawn.append(Drawn(interval.t0, interval.t1, interval.phase, interval.policy))
    return drawn


def utilisation(run: Run, leases: LeaseHistory, window_s: float = DEFAULT_WINDOW_S) -> dict[str, Any]:
    """Return the busy and bubble shares of the devices of a window, without saying why they were idle.

    `leases` are all of the run's, and the clock by which the window ends.
    """
    window = window_of(run, window_s, now=leases.now)
    found = intervals.between(store_connection(), run.no, window.since, window.until)
    rows = device_rows(bubble.split(leases.spans, found, [], [], window), found, window)
    return {"devices": [{name: row[name] for name in _SHARES} for row in rows], "window": [window.since, window.until]}


_SHARES = ("device_id", "use", "lease_id", "busy_share", "bubble_share", "tokens")
