"""Speaks with a server in this process: an ASGI application is called as a web server calls it, without a socket.

Invariant: the application runs only while it is asked something, in the thread that asks; one loop for all of it.
"""

import asyncio
import contextlib
import json
from collections.abc import Coroutine, Mapping
from typing import Any

from .shapes import ProgramFault

ASGI = {"version": "3.0", "spec_version": "2.3"}
PEER = ("127.0.0.1", 50_000)
SERVER = ("127.0.0.1", 8000)
HEADERS = [(b"host", b"127.0.0.1:8000")]


class SessionClosed(ProgramFault):
    """The application has ended a session."""


class ApplicationCall:
    """One connection or request: what the application is sent, and what it sends."""

    def __init__(self, app: Any, scope: Mapping[str, Any]) -> None:
        self._sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.task = asyncio.ensure_future(app({"asgi": ASGI, **scope}, self._sent.get, self._said.put))

    def send(self, message: Mapping[str, Any]) -> None:
        """Have the application receive a message."""
        self._sent.put_nowait(dict(message))

    async def next(self) -> dict[str, Any] | None:
        """Return what the application says next; None: it is done. Raises what it raised."""
        said = asyncio.ensure_future(self._said.get())
        await asyncio.wait({said, self.task}, return_when=asyncio.FIRST_COMPLETED)
        if said.done():
            return said.result()
        said.cancel()
        if not self._said.empty():
            return self._said.get_nowait()
        self.task.result()
        return None

    async def end(self) -> None:
        """Wait until the application is done; what it raises then matters to nobody."""
        with contextlib.suppress(Exception):
            await self.task


class LocalServer:
    """An application that has begun, with at most one session at a time."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._loop = asyncio.new_event_loop()
        self._state: dict[str, Any] = {}
        """What the application's own start lays down for what it is asked later."""
        self._life: ApplicationCall | None = None
        self._socket: ApplicationCall | None = None

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run until something is done."""
        return self._loop.run_until_complete(work)

    def begin(self) -> None:
        """Have the application begin. Raises ProgramFault with what it says where it cannot."""
        self.run(self._begun())

    async def _begun(self) -> None:
        life = ApplicationCall(self._app, {"type": "lifespan", "state": self._state})
        life.send({"type": "lifespan.startup"})
        try:
            said = await life.next()
        except Exception:  # as servers have it: an application without a life of its own says so by an error
            return
        if said is not None and said["type"] == "lifespan.startup.failed":
            raise ProgramFault(f"its server did not begin: {said.get('message', '')}"[:500])
        self._life = life

    def get(self, path: str) -> Any:
        """Return the JSON at a path. Raises ProgramFault for any other answer."""
        return self.run(self._got(path))

    async def _got(self, path: str) -> Any:
        asked = ApplicationCall(self._app, {**self._scope("http", path), "method": "GET", "scheme": "http"})
        asked.send({"type": "http.request", "body": b"", "more_body": False})
        status, body = 0, b""
        while (said := await asked.next()) is not None:
            status = said.get("status", status)
            body += said.get("body", b"")
        if status != 200:
            raise ProgramFault(f"its server answered {status} at {path}")
        return json.loads(body)

    def connect(self, path: str) -> None:
        """Open the one websocket. Raises SessionClosed where the application takes none there."""
        self.run(self._connected(path))

    async def _connected(self, path: str) -> None:
        opened = ApplicationCall(self._app, {**self._scope("websocket", path), "scheme": "ws", "subprotocols": []})
        opened.send({"type": "websocket.connect"})
        said = await opened.next()
        if said is None or said["type"] != "websocket.accept":
            raise SessionClosed(f"its server takes no session at {path}")
        self._socket = opened

    def exchange(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Send an object over the websocket and return the object that answers. Raises SessionClosed."""
        answer: dict[str, Any] = self.run(self._exchanged(message))
        return answer

    async def _exchanged(self, message: Mapping[str, Any]) -> dict[str, Any]:
        if self._socket is None:
            raise SessionClosed("its server has no session")
        self._socket.send({"type": "websocket.receive", "text": json.dumps(message)})
        said = await self._socket.next()
        if said is None or said["type"] != "websocket.send":
            raise SessionClosed("its server closed the session")
        answer = json.loads(said.get("text") or said.get("bytes") or b"")
        if not isinstance(answer, dict):
            raise ProgramFault("garbage: its server's answer is no JSON object")
        return answer

    def hang_up(self) -> None:
        """End the session, as a client that goes away does."""
        opened, self._socket = self._socket, None
        if opened is not None:
            opened.send({"type": "websocket.disconnect", "code": 1000})
            self.run(opened.end())

    def end(self) -> None:
        """Have the application end."""
        self.hang_up()
        if self._life is not None:
            self._life.send({"type": "lifespan.shutdown"})
            self.run(self._life.end())
        self._loop.close()

    def _scope(self, kind: str, path: str) -> dict[str, Any]:
        return {
            "type": kind, "http_version": "1.1", "path": path, "raw_path": path.encode(), "query_string": b"",
            "root_path": "", "headers": HEADERS, "client": PEER, "server": SERVER, "state": self._state.copy(),
        }  # fmt: skip
