"""What a run holds and has held: devices now, device seconds so far; and the marks that charts carry.

Device time is the time of leases, whatever a device did in it: a held device is a device nobody else could use.
"""

from typing import Any

from django.utils import timezone

from flexmarl.controlplane.inventory.models import Lease
from flexmarl.controlplane.runs.models import Attempt, Checkpoint, Run


def held(run: Run) -> dict[str, Any]:
    """Return the device seconds a run has used, and the devices and pools it holds now."""
    now = timezone.now()
    leases = list(Lease.objects.select_related("device").filter(run_id=run.no).order_by("device_id"))
    current = [lease for lease in leases if lease.ended_at is None]
    return {
        "device_s": round(sum(((lease.ended_at or now) - lease.granted_at).total_seconds() for lease in leases), 1),
        "leases": len(leases),
        "devices": list(dict.fromkeys(lease.device_id for lease in current)),
        "pools": sorted({lease.device.pool for lease in current}),
    }


def marks(run: Run) -> dict[str, Any]:
    """Return the steps at which checkpoints were kept and at which attempts after the first began."""
    kept: dict[int, list[str]] = {}
    for step, label in Checkpoint.objects.filter(run_id=run.no).order_by("step", "label").values_list("step", "label"):
        kept.setdefault(step, []).append(label)
    begun = list(Attempt.objects.filter(run_id=run.no).order_by("no").values_list("no", "first_step", "verb"))
    return {
        "checkpoints": [{"step": step, "labels": labels} for step, labels in kept.items()],
        "attempts": [{"no": no, "step": step, "verb": verb} for no, step, verb in begun if no > 1],
        "attempt": begun[-1][0] if begun else None,
    }
