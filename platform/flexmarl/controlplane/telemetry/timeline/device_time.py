"""What a run holds and has held: devices now, device seconds so far; and the marks that charts carry.

Device time is the time of leases, whatever a device did in it: a held device is a device nobody else could use.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.runs.models import Checkpoint, Run
from flexmarl.store.reads import activity
from flexmarl.store.reads.activity import LeaseHistory


def leases(run: Run) -> LeaseHistory:
    """Read all leases that a run has had, by node and device, and the clock."""
    return activity.leases_of(store_connection(), run.no)


def held(leases: LeaseHistory) -> dict[str, Any]:
    """Return the device seconds a run has used, and the devices and pools it holds now."""
    spans = leases.spans
    current = [one for one in spans if one.until is None]
    return {
        "device_s": round(sum((leases.now if one.until is None else one.until) - one.since for one in spans), 1),
        "leases": len(spans),
        "devices": sorted({one.device_id for one in current}),
        "pools": sorted({one.pool for one in current}),
    }


def engines_over_time(leases: LeaseHistory, parts: int) -> list[int]:
    """Return how many engines a run held at the ends of so many equal parts of its time until now, or its end.

    An engine of several devices counts once. Empty before the first lease.
    """
    if not leases.spans:
        return []
    ends = [leases.now if one.until is None else one.until for one in leases.spans]
    began, ended = min(one.since for one in leases.spans), max(ends)
    times = [began + no * (ended - began) / parts for no in range(1, parts + 1)]
    engines = [(one.since, end, one.served) for one, end in zip(leases.spans, ends, strict=True) if one.use == "engine"]
    return [len({served for since, end, served in engines if since < at <= end}) for at in times]


def marks(run: Run, attempts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the steps at which checkpoints were kept and at which attempts (`runs.attempts`) after the first began."""
    kept: dict[int, list[str]] = {}
    for step, label in Checkpoint.objects.filter(run_id=run.no).order_by("step", "label").values_list("step", "label"):
        kept.setdefault(step, []).append(label)
    return {
        "checkpoints": [{"step": step, "labels": labels} for step, labels in kept.items()],
        "attempts": [
            {"no": one["no"], "step": one["first_step"], "verb": one["verb"]} for one in attempts if one["no"] > 1
        ],
    }
