"""The whole hardware in two light statements: enough to count, to find and to order, however much of it there is.

Pages read it of everything, and whole rows (`queries`) only of what they show.
"""

from dataclasses import dataclass
from typing import Any

from django.db.models import Exists, OuterRef
from django.utils import timezone

from flexmarl.controlplane.inventory.models import Device, Lease, Node
from flexmarl.controlplane.inventory.queries import ENDED, GONE, SILENT_AFTER


@dataclass(frozen=True, slots=True)
class NodeGlance:
    name: str
    ready: bool
    """It lives, and may be given work."""


def nodes() -> list[NodeGlance]:
    """All nodes by name."""
    living = timezone.now() - SILENT_AFTER
    rows = Node.objects.exclude(state=GONE).order_by("name").values_list("name", "state", "heartbeat_at")
    return [NodeGlance(name, state == "ready" and heard >= living) for name, state, heard in rows]


def devices() -> list[dict[str, Any]]:
    """All devices, as `queries.devices` orders them, with the members that pools are counted by.

    `lease` is True where one holds the device, None where none does; `out` is whether it can serve nobody.
    """
    held = Exists(Lease.objects.filter(device=OuterRef("pk")).exclude(state=ENDED))
    rows = Device.objects.exclude(node__state=GONE).values_list(
        "id", "node_id", "pool", "kind", "state", "node__state", "node__heartbeat_at", held
    )
    living = timezone.now() - SILENT_AFTER
    found = []
    for device, node, pool, kind, state, node_state, heard, leased in rows:
        silent = heard < living
        ready = state == "ready" and node_state == "ready" and not silent
        found.append(
            {
                "id": device, "node": node, "pool": pool, "kind": kind, "state": state, "out": not ready,
                "node_state": "silent" if silent else node_state, "free": ready and not leased,
                "lease": True if leased else None,
            }
        )  # fmt: skip
    return found
