"""Writes that every app's actions make: the audit row."""

from typing import Any

from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.models import AuditEntry


def record(
    actor: Actor, action: str, target_kind: str, target_id: object, target_name: str = "", **detail: Any
) -> AuditEntry:
    """Write an audit row. Call it inside the transaction of the change."""
    return AuditEntry.objects.create(
        actor_id=actor.user_id,
        actor_name=actor.name,
        request_id=actor.request_id,
        action=action,
        target_kind=target_kind,
        target_id=str(target_id),
        target_name=target_name,
        detail=detail,
    )
