"""Who opened something that stays open, a web socket or a stream, and what they may do now.

Invariant: it ends with what it was opened by: a session that is signed out or has another password, and a token that is
revoked or expires, leave nothing open behind them.
"""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

from django.contrib.auth import get_user
from django.contrib.sessions.backends.db import SessionStore
from django.http import HttpRequest

from flexmarl.controlplane.accounts import rights
from flexmarl.controlplane.accounts.models import ApiToken
from flexmarl.controlplane.accounts.queries import current_actor
from flexmarl.controlplane.common.actor import Actor


@dataclass(frozen=True, slots=True)
class Caller:
    """A person or service account, and the credential they came with."""

    user_id: UUID | str | None
    token_id: UUID | str | None = None
    """The token; nothing that it opened may do more than it."""
    session_key: str = ""
    """Key of the browser's session; empty when a token was sent."""

    @property
    def names(self) -> frozenset[str]:
        """Under which changes of rights concern this caller."""
        return frozenset({str(self.user_id), rights.digest(self.session_key)})


NOBODY = Caller(None)


def caller_of(request: Any) -> Caller:
    """Return who sent an API request, by token or by session."""
    if isinstance(request.auth, ApiToken):
        return Caller(request.user.pk, request.auth.pk)
    return Caller(request.user.pk, None, request.session.session_key or "")


def actor_now(caller: Caller) -> Actor:
    """Build the actor of a caller as they are now; one who may do nothing when session, token or person is gone."""
    if caller.session_key and _user_of(caller.session_key) != caller.user_id:
        return current_actor(None)
    return current_actor(caller.user_id, caller.token_id)


def _user_of(session_key: str) -> object:
    """Return the user of a session as it is stored now, None when it ended or the password is another."""
    request = SimpleNamespace(session=SessionStore(session_key))
    return get_user(cast("HttpRequest", request)).pk
