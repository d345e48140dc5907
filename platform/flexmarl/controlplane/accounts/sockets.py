"""Who opens a web socket: a browser with its session, from a page of ours, or a script with a ticket.

A session travels by itself with whatever page opens the socket, so the page's origin is checked. A ticket does not:
whoever has one asked for it, so no origin is asked, and the session is not looked at.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import parse_qs
from uuid import UUID

from asgiref.typing import ASGI3Application
from channels.auth import AuthMiddlewareStack
from channels.db import database_sync_to_async
from channels.security.websocket import AllowedHostsOriginValidator
from django.contrib.auth import get_user
from django.contrib.sessions.backends.db import SessionStore
from django.http import HttpRequest

from flexmarl.controlplane.accounts import rights
from flexmarl.controlplane.accounts.actions import take_ticket
from flexmarl.controlplane.accounts.queries import current_actor
from flexmarl.controlplane.common.actor import Actor

NOBODY = (None, None)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who opened a socket, and by what."""

    user_id: UUID | str | None
    token_id: UUID | str | None = None
    """The token of the ticket; the socket may do no more than it."""
    session_key: str = ""

    @property
    def names(self) -> frozenset[str]:
        """Under which changes of rights concern this caller."""
        return frozenset({str(self.user_id), rights.digest(self.session_key)})


def caller_of(scope: Mapping[str, Any]) -> Caller:
    """Return who opened a socket."""
    if "caller" in scope:
        return Caller(*scope["caller"])
    session = scope.get("session")
    return Caller(getattr(scope.get("user"), "pk", None), None, (session and session.session_key) or "")


def actor_now(caller: Caller) -> Actor:
    """Build the actor of a caller as they are now; one who may do nothing when session, token or person is gone."""
    if caller.session_key and _user_of(caller.session_key) != caller.user_id:
        return current_actor(None)
    return current_actor(caller.user_id, caller.token_id)


def _user_of(session_key: str) -> object:
    """Return the user of a session as it is stored now, None when it ended or the password is another."""
    request = SimpleNamespace(session=SessionStore(session_key))
    return get_user(cast("HttpRequest", request)).pk


class TicketOrSession:
    """Puts `caller`, a pair (user id, token id), into the scope of a socket that came with `?ticket=`."""

    def __init__(self, inner: ASGI3Application) -> None:
        self.inner: Any = inner
        self.with_session: Any = AllowedHostsOriginValidator(AuthMiddlewareStack(inner))

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> Any:
        """Use the ticket up, or hand over to the session."""
        given = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("ticket", [])
        if not given:
            return await self.with_session(scope, receive, send)
        caller = await database_sync_to_async(take_ticket)(given[0]) if len(given) == 1 else None
        return await self.inner({**scope, "caller": caller or NOBODY}, receive, send)
