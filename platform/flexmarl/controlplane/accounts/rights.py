"""Tells open sockets and streams that somebody's rights changed, so that they look again at once.

A hint like all others: who may listen is looked up again each minute anyway. It names a person, or a session by a
digest, for the key of a session is a secret. Rows that are changed past the models (`update`) are announced by hand.
"""

import hashlib
from collections.abc import Callable
from typing import Any

from django.contrib.sessions.models import Session
from django.db import transaction
from django.db.models.signals import post_delete, post_save

from flexmarl.controlplane.accounts.models import ApiToken, Membership, User
from flexmarl.controlplane.common import live

_SEEN_ONLY = frozenset({"last_login", "last_used_at"})
"""Columns that say nothing about what somebody may do."""


def changed(user_id: object) -> None:
    """Announce after the transaction around that a person's rights may have changed."""
    transaction.on_commit(lambda: live.announce_rights(str(user_id)))


def digest(session_key: str) -> str:
    """Return the name under which the end of a session is announced."""
    return hashlib.sha256(session_key.encode()).hexdigest()


def connect() -> None:
    """Listen to the models; called once, when the app is ready."""
    post_save.connect(_on_user, User, dispatch_uid="rights")
    post_delete.connect(_on_session, Session, dispatch_uid="rights")
    for owner, model in (("user_id", Membership), ("owner_id", ApiToken)):
        for signal in (post_save, post_delete):
            signal.connect(_ON[owner], model, dispatch_uid=f"rights-{owner}")


def _on_user(instance: User, created: bool, update_fields: Any = None, **_: Any) -> None:
    if not created and not (update_fields and _SEEN_ONLY.issuperset(update_fields)):
        changed(instance.pk)


def _on_session(instance: Session, **_: Any) -> None:
    name = digest(instance.session_key)
    transaction.on_commit(lambda: live.announce_rights(name))


def _on_membership(instance: Membership, **_: Any) -> None:
    changed(instance.user_id)


def _on_token(instance: ApiToken, **_: Any) -> None:
    changed(instance.owner_id)


_ON: dict[str, Callable[..., None]] = {"user_id": _on_membership, "owner_id": _on_token}
