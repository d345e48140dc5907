"""The change log of the hardware: audit rows about pools, quotas, nodes and devices, for all who read the cluster."""

from typing import Any

from django.db.models import QuerySet

from flexmarl.controlplane.common.models import AuditEntry
from flexmarl.controlplane.common.times import rfc3339

KINDS = ("node", "device", "pool")


def entries(kind: str | None = None, name: str | None = None) -> QuerySet[AuditEntry]:
    """Return the changes (of one object), newest first."""
    rows = AuditEntry.objects.filter(target_kind__in=KINDS).order_by("-id")
    if kind is not None:
        rows = rows.filter(target_kind=kind)
    return rows if name is None else rows.filter(target_id=name)


def row(entry: AuditEntry) -> dict[str, Any]:
    """Return a change as a plain value."""
    return {
        "id": str(entry.id),
        "at": rfc3339(entry.at),
        "actor": entry.actor_name,
        "action": entry.action,
        "target_kind": entry.target_kind,
        "target": entry.target_id,
        "before": entry.before,
        "after": entry.after,
        "detail": entry.detail,
    }


def latest(limit: int = 8, kind: str | None = None, name: str | None = None) -> list[dict[str, Any]]:
    """Return the newest changes."""
    return [row(entry) for entry in entries(kind, name)[:limit]]
