"""The audit trail as others read it: rows in reach, filters, and lines of a table.

Who holds `audit:read` everywhere reads all rows; who holds it in projects reads the rows of these.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from channels.db import database_sync_to_async
from django.db.models import QuerySet

from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.models import AuditEntry
from flexmarl.controlplane.common.reach import in_reach
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.common.times import rfc3339

COLUMNS = (
    "at", "actor", "action", "target_kind", "target_id", "target_name", "project", "request_id", "before", "after",
    "detail", "id",
)  # fmt: skip
_CHUNK = 1000
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def entries(actor: Actor) -> QuerySet[AuditEntry]:
    """Rows a caller may read, newest first."""
    return in_reach(AuditEntry.objects.order_by("-id"), actor, Scope.AUDIT_READ, "project")


def row(entry: AuditEntry) -> dict[str, Any]:
    """Return an audit row as plain values."""
    return {
        "id": str(entry.id),
        "at": rfc3339(entry.at),
        "actor": entry.actor_name,
        "actor_id": str(entry.actor_id) if entry.actor_id else None,
        "action": entry.action,
        "target_kind": entry.target_kind,
        "target_id": entry.target_id,
        "target_name": entry.target_name,
        "project": entry.project or None,
        "request_id": entry.request_id,
        "before": entry.before,
        "after": entry.after,
        "detail": entry.detail,
    }


def actions_known(actor: Actor) -> list[str]:
    """Actions that occur among the rows in reach, for choosing one."""
    return list(entries(actor).order_by("action").values_list("action", flat=True).distinct())


def differences(entry: AuditEntry) -> list[dict[str, Any]]:
    """Each member that changed, with what it was and is; absent on a side where there was nothing."""
    before, after = entry.before or {}, entry.after or {}
    return [
        {
            "name": name,
            "before": before.get(name),
            "after": after.get(name),
            "was": name in before,
            "now": name in after,
        }
        for name in {**before, **after}
    ]


def chunks(rows: QuerySet[AuditEntry], line: Callable[[dict[str, Any]], str]) -> Iterator[str]:
    """Write all rows as lines, a thousand at a time: neither database nor memory holds more."""
    last = None
    while True:
        part = rows.order_by("-id") if last is None else rows.order_by("-id").filter(id__lt=last)
        found = list(part[:_CHUNK])
        if found:
            yield "".join(line(row(entry)) for entry in found)
        if len(found) < _CHUNK:
            return
        last = found[-1].id


async def from_thread(parts: Iterator[str]) -> AsyncIterator[str]:
    """Draw parts in a thread, for a server that runs on an event loop."""

    def draw() -> str | None:
        return next(parts, None)

    take = database_sync_to_async(draw)
    while (part := await take()) is not None:
        yield part


def cell(text: str) -> str:
    """Make a value safe for a spreadsheet: one that looks like a formula is read as text."""
    return f"'{text}" if text.startswith(_FORMULA) else text
