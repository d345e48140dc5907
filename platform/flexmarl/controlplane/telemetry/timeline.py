"""What a run's devices did in a window: closed busy intervals, and the shares of the window made of them.

One definition everywhere: `busy_share` is the union of a device's closed intervals over the part of the window in
which the run held it; `bubble_share` is the rest. Intervals still open do not count, so the newest second reads low.
"""

from dataclasses import dataclass
from typing import Any

from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.inventory.models import Lease
from flexmarl.controlplane.runs.models import Run
from flexmarl.store import intervals, runs

DEFAULT_WINDOW_S = 300.0
MAX_WINDOW_S = 7 * 86_400.0
_RESOLUTION = 1 / 2000
"""Share of the window below which gaps between like intervals are not drawn."""


@dataclass(slots=True)
class Drawn:
    """A run of like intervals with no visible gap."""

    t0: float
    t1: float
    phase: str
    policy: str


def timeline(run: Run, window_s: float = DEFAULT_WINDOW_S) -> dict[str, Any]:
    """Return the devices of a run with what they did in the last `window_s` seconds of its life."""
    conn = store_connection()
    finished = run.state.finished_at
    until = finished.timestamp() if finished else runs.database_now(conn)
    since = until - window_s
    found: dict[int, list[intervals.DeviceInterval]] = {}
    for interval in intervals.between(conn, run.no, since, until):
        found.setdefault(interval.lease_id, []).append(interval)
    leases = Lease.objects.select_related("device").filter(run_id=run.no).order_by("id")
    rows = [_row(lease, found.get(lease.id, []), since, until) for lease in leases]
    return {"devices": [row for row in rows if row is not None], "window": [since, until], "seq": run.state.seq}


def _row(lease: Lease, own: list[intervals.DeviceInterval], since: float, until: float) -> dict[str, Any] | None:
    """Describe one lease's device, None when the run did not hold it inside the window."""
    start = max(since, lease.granted_at.timestamp())
    end = min(until, lease.ended_at.timestamp()) if lease.ended_at else until
    if end <= start:
        return None
    busy = union(own, start, end) / (end - start)
    return {
        "device_id": lease.device_id,
        "node": lease.device.node_id,
        "kind": lease.device.kind,
        "use": lease.use,
        "lease_id": lease.id,
        "lease_state": lease.state,
        "held_since": lease.granted_at.timestamp(),
        "held_until": lease.ended_at.timestamp() if lease.ended_at else None,
        "intervals": [[d.t0, d.t1, d.phase, d.policy] for d in coalesce(own, (until - since) * _RESOLUTION)],
        "busy_share": round(busy, 4),
        "bubble_share": round(1.0 - busy, 4),
        "tokens": sum(interval.tokens for interval in own),
    }


def union(own: list[intervals.DeviceInterval], start: float, end: float) -> float:
    """Return the seconds of [start, end] that at least one interval covers."""
    covered, reached = 0.0, start
    for interval in sorted(own, key=lambda i: i.t0):
        low, high = max(interval.t0, reached), min(interval.t1, end)
        if high > low:
            covered += high - low
            reached = high
    return covered


def coalesce(own: list[intervals.DeviceInterval], gap: float) -> list[Drawn]:
    """Join like neighbours that no chart could tell apart; `own` is ordered by time."""
    drawn: list[Drawn] = []
    for interval in own:
        last = drawn[-1] if drawn else None
        if last and (last.phase, last.policy) == (interval.phase, interval.policy) and interval.t0 - last.t1 <= gap:
            last.t1 = max(last.t1, interval.t1)
        else:
            drawn.append(Drawn(interval.t0, interval.t1, interval.phase, interval.policy))
    return drawn


def utilisation(run: Run, window_s: float = DEFAULT_WINDOW_S) -> list[dict[str, Any]]:
    """Return the shares per device without the intervals."""
    return [
        {name: value for name, value in row.items() if name != "intervals"}
        for row in timeline(run, window_s)["devices"]
    ]
