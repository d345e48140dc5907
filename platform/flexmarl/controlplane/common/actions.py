"""Writes that every app's actions make: the audit row."""

from collections.abc import Mapping
from typing import Any

from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.models import AuditEntry

HIDDEN = "(hidden)"
_SECRET_NAMES = ("password", "secret", "api_key", "pepper", "token_text", "credential")


def record(
    actor: Actor,
    action: str,
    target_kind: str,
    target_id: object,
    target_name: str = "",
    *,
    project: str = "",
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
    **detail: Any,
) -> AuditEntry:
    """Write an audit row. Call it inside the transaction of the change.

    `before` and `after` are what changed, as JSON values; members equal in both are left out. Name the project of the
    target when it has one: its admins may read the row.
    """
    was, now = changed(before, after)
    return AuditEntry.objects.create(
        actor_id=actor.user_id,
        actor_name=actor.name,
        request_id=actor.request_id,
        action=action,
        target_kind=target_kind,
        target_id=str(target_id),
        target_name=target_name[:200],
        project=project,
        detail=_hide(detail),
        before=None if was is None else _hide(was),
        after=None if now is None else _hide(now),
    )


def changed(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Keep the members that differ; all of the one side when the other is not there."""
    if before is None or after is None:
        return (None if before is None else dict(before)), (None if after is None else dict(after))
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return {n: before[n] for n in names if n in before}, {n: after[n] for n in names if n in after}


def _hide(node: Any) -> Any:
    """Replace the values of members that are named like secrets: a second lock behind the callers' care."""
    if isinstance(node, Mapping):
        return {name: HIDDEN if _is_secret(str(name)) else _hide(value) for name, value in node.items()}
    return [_hide(value) for value in node] if isinstance(node, list | tuple) else node


def _is_secret(name: str) -> bool:
    return any(part in name.lower() for part in _SECRET_NAMES)
