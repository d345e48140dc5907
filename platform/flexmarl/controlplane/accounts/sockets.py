"""How a web socket learns who opens it: a browser with its session, from a page of ours, or a script with a ticket.

A session travels by itself with whatever page opens the socket, so the page's origin is checked. A ticket does not:
whoever has one asked for it, so no origin is asked, and the session is not looked at.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs

from asgiref.typing import ASGI3Application
from channels.auth import AuthMiddlewareStack
from channels.db import database_sync_to_async
from channels.security.websocket import AllowedHostsOriginValidator

from flexmarl.controlplane.accounts.actions import take_ticket
from flexmarl.controlplane.accounts.callers import NOBODY, Caller


def caller_of(scope: Mapping[str, Any]) -> Caller:
    """Return who opened a socket."""
    if "caller" in scope:
        caller: Caller = scope["caller"]
        return caller
    session = scope.get("session")
    return Caller(getattr(scope.get("user"), "pk", None), None, (session and session.session_key) or "")


class TicketOrSession:
    """Puts `caller` into the scope of a socket that came with `?ticket=`."""

    def __init__(self, inner: ASGI3Application) -> None:
        self.inner: Any = inner
        self.with_session: Any = AllowedHostsOriginValidator(AuthMiddlewareStack(inner))

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> Any:
        """Use the ticket up, or hand over to the session."""
        given = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("ticket", [])
        if not given:
            return await self.with_session(scope, receive, send)
        address = (scope.get("client") or ("",))[0]
        caller = await database_sync_to_async(take_ticket)(given[0], address) if len(given) == 1 else None
        return await self.inner({**scope, "caller": caller or NOBODY}, receive, send)
