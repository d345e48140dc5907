"""Statements of a request end with it: when the client of a read goes away, what the database does for it is cancelled.

Only reads (GET, HEAD) are cancelled: a write goes to its end, so that a repetition under its Idempotency-Key finds its
answer. The wrapper sees the connection's own messages, so streams are covered as well as whole answers.
"""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from flexmarl.controlplane.common import database
from flexmarl.controlplane.common.database import RequestConnections

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Any, Receive, Send], Awaitable[None]]
READS = frozenset({"GET", "HEAD"})
AGAIN_S = 0.25
"""A statement that begins just behind a cancellation is met by the next one."""
_cancellers = ThreadPoolExecutor(4, "sql-cancel")


class CancelOnDisconnect:
    """Wraps an ASGI application."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve a request, and cancel its statements when its client has gone before the answer was whole."""
        if scope["type"] != "http" or scope["method"] not in READS:
            await self._app(scope, receive, send)
            return
        work, answered, cancelling = RequestConnections(), False, None

        async def watched() -> Any:
            nonlocal cancelling
            message = await receive()
            if message["type"] == "http.disconnect" and not answered and cancelling is None:
                cancelling = asyncio.ensure_future(_cancel(work))
            return message

        async def sent(message: Any) -> None:
            nonlocal answered
            answered = answered or (message["type"] == "http.response.body" and not message.get("more_body"))
            await send(message)

        token = database.work.set(work)
        try:
            await self._app(scope, watched, sent)
        finally:
            database.work.reset(token)
            if cancelling is not None:
                cancelling.cancel()


async def _cancel(work: RequestConnections) -> None:
    """Cancel until the request has ended."""
    loop = asyncio.get_running_loop()
    while True:
        await loop.run_in_executor(_cancellers, work.cancel)
        await asyncio.sleep(AGAIN_S)
