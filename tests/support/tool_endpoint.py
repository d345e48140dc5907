"""A server of tools behind a URL, in this process: streamable HTTP, spoken well or as badly as it is told.

Written without the SDK of the protocol, so that it can do what no SDK would.
"""

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from flexmarl.contracts.specification.tools import McpUrl
from workers.external_access import ExternalAccess
from workers.rollout.tool_urls import UrlToolPool

CUT = 100
"""Characters of a result that agents read here."""
MANY = 2**16

Answer = Callable[["ToolEndpoint", web.Request, Any, dict[str, Any]], Awaitable[web.StreamResponse]]


def tool(name: str, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": sorted(properties)}
    return {"name": name, "description": f"The tool {name}.", "inputSchema": schema}


def text(said: str, failed: bool = False) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": said}], "isError": failed}


class ToolEndpoint:
    """Answers as JSON, or with `streams` as events. `answers` holds what is done instead for a method, or a tool."""

    def __init__(self, key: str = "", *, streams: bool = False, keeps_sessions: bool = True) -> None:
        self.key, self.streams, self.keeps_sessions = key, streams, keeps_sessions
        self.version = "2025-06-18"
        self.listed = [tool("add", a={"type": "integer"}, b={"type": "integer"}), tool("count"), tool("has a blank")]
        self.answers: dict[str, Answer] = {}
        self.sessions: dict[str, int] = {}
        """Calls of `count` in those that are open."""
        self.begun = self.ended = 0
        self.asked: list[tuple[str, dict[str, str]]] = []
        """Method and headers of each message."""
        self.said: list[dict[str, Any]] = []
        """What was posted."""
        self.wake = asyncio.Event()
        self.url = ""
        self._numbers = itertools.count(1)
        self._runner: web.AppRunner | None = None

    @property
    def host(self) -> str:
        return self.url.removeprefix("http://").partition("/")[0]

    async def __aenter__(self) -> "ToolEndpoint":
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/mcp", self._serve)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/mcp"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        self.wake.set()
        await self._runner.cleanup()

    def pool(self, access: ExternalAccess | None = None, **settings: Any) -> UrlToolPool:
        """Return who asks this server for a run, where nobody else has."""

        async def pin(tools: str) -> str:
            return tools

        spec = McpUrl(url=self.url, **settings)
        return UrlToolPool(spec, access or ExternalAccess(frozenset({self.host})), pin, CUT)

    def called(self, method: str) -> int:
        return sum(one == method for one, _ in self.asked)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization", "") != (f"Bearer {self.key}" if self.key else ""):
            return web.Response(status=401, text=f"{request.headers.get('Authorization')} is none of ours")
        session = request.headers.get("Mcp-Session-Id", "")
        if request.method == "DELETE":
            self.asked.append(("DELETE", dict(request.headers)))
            if "DELETE" in self.answers:
                return await self.answers["DELETE"](self, request, None, {})
            self.ended += session in self.sessions
            self.sessions.pop(session, None)
            return web.Response()
        said = json.loads(await request.read())
        self.said.append(said)
        method = said.get("method", "answer")
        self.asked.append((method, dict(request.headers)))
        if self.keeps_sessions and method != "initialize" and session not in self.sessions:
            return web.json_response({"jsonrpc": "2.0", "id": None, "error": {"message": "no session"}}, status=404)
        params = said.get("params", {})
        named = self.answers.get(method) or self.answers.get(params.get("name", ""))
        if named is not None:
            return await named(self, request, said.get("id"), params)
        if "id" not in said or "method" not in said:
            return web.Response(status=202)
        return await self._answered(request, said, session)

    async def _answered(self, request: web.Request, said: dict[str, Any], session: str) -> web.StreamResponse:
        method, given, headers = said["method"], said.get("params", {}), {}
        if method == "initialize":
            about = {"name": "tools", "version": "1.0"}
            result: dict[str, Any] = {
                "protocolVersion": self.version,
                "capabilities": {"tools": {}},
                "serverInfo": about,
            }
            if self.keeps_sessions:
                self.begun += 1
                name = f"session-{next(self._numbers)}"
                self.sessions[name] = 0
                headers["Mcp-Session-Id"] = name
        elif method == "tools/list":
            page = int(given.get("cursor", 0))
            more = {"nextCursor": str(page + 1)} if page + 1 < len(self.listed) else {}
            result = {"tools": self.listed[page : page + 1], **more}
        elif method == "tools/call" and given["name"] == "count":
            self.sessions[session] += 1
            result = text(str(self.sessions[session]))
        elif method == "tools/call":
            numbers = given["arguments"]
            if not all(isinstance(numbers.get(one), int) for one in "ab"):
                error = {"code": -32602, "message": "a and b are integers"}
                return await self.send(request, {"id": said["id"], "error": error})
            result = text(str(numbers["a"] + numbers["b"]))
        else:
            result = {}
        return await self.send(request, {"id": said["id"], "result": result}, headers)

    async def send(
        self, request: web.Request, said: Any, headers: dict[str, str] | None = None, status: int = 200
    ) -> web.StreamResponse:
        """Answer in the form that this server has."""
        written = json.dumps({"jsonrpc": "2.0", **said} if isinstance(said, dict) else said)
        if not self.streams:
            return web.Response(text=written, content_type="application/json", headers=headers, status=status)
        lines = [": hello", "event: message", "id: 1", f"data: {written}"]
        return await self.stream(request, ("\r\n".join(lines) + "\r\n\r\n").encode(), headers=headers)

    async def stream(
        self, request: web.Request, *pieces: bytes, headers: dict[str, str] | None = None
    ) -> web.StreamResponse:
        """Answer with these pieces of a stream of events."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", **(headers or {})})
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
        return response


def says(result: Any) -> Answer:
    """Return a result."""

    async def answer(own: ToolEndpoint, request: web.Request, id_: Any, given: Any) -> web.StreamResponse:
        return await own.send(request, {"id": id_, "result": result})

    return answer


def sends(body: str | bytes, status: int = 200, kind: str = "application/json", **headers: str) -> Answer:
    """Return a body as it is."""

    async def answer(own: ToolEndpoint, request: web.Request, id_: Any, given: Any) -> web.StreamResponse:
        written = body.encode() if isinstance(body, str) else body
        return web.Response(body=written, status=status, headers={"Content-Type": kind, **headers})

    return answer


async def hang(own: ToolEndpoint, request: web.Request, id_: Any, given: Any) -> web.StreamResponse:
    await own.wake.wait()
    return web.Response()


async def drop(own: ToolEndpoint, request: web.Request, id_: Any, given: Any) -> web.StreamResponse:
    """Close the connection without a word."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def drop_in_stream(own: ToolEndpoint, request: web.Request, id_: Any, given: Any) -> web.StreamResponse:
    """Close the connection in the middle of an event."""
    await own.stream(request, b'data: {"jsonrpc"')
    return await drop(own, request, id_, given)


async def end_stream(own: ToolEndpoint, request: web.Request, id_: Any, given: Any) -> web.StreamResponse:
    return await own.stream(request, b'data: {"jsonrpc": "2.0", "method": "notifications/message"}\n\n')


async def flood(own: ToolEndpoint, request: web.Request, id_: Any, given: Any) -> web.StreamResponse:
    return await own.stream(request, *[b'data: {"method": "notifications/message"}\n\n' * 2000] * 200)


async def endless_event(own: ToolEndpoint, request: web.Request, id_: Any, given: Any) -> web.StreamResponse:
    return await own.stream(request, b"data: ", *[b"x" * MANY] * 64)


async def endless_lines(own: ToolEndpoint, request: web.Request, id_: Any, given: Any) -> web.StreamResponse:
    return await own.stream(request, *[b"data: x\n" * 2**13] * 64)


async def forget(own: ToolEndpoint, request: web.Request, id_: Any, given: Any) -> web.StreamResponse:
    """Lose every session, as a server does that was started again."""
    own.sessions.clear()
    return web.json_response({"jsonrpc": "2.0", "id": None, "error": {"message": "no session"}}, status=404)


async def ask_back(own: ToolEndpoint, request: web.Request, id_: Any, given: Any) -> web.StreamResponse:
    """Ask for the folders of the client, and whether it is there, before the answer."""
    asked = [
        {"jsonrpc": "2.0", "id": "mine", "method": "roots/list"},
        {"jsonrpc": "2.0", "id": "there", "method": "ping"},
        {"jsonrpc": "2.0", "id": id_, "result": text("done")},
    ]
    return await own.stream(request, *(f"data: {json.dumps(one)}\n\n".encode() for one in asked))


async def refuse(own: ToolEndpoint, request: web.Request, id_: Any, given: Any) -> web.StreamResponse:
    """Say with a status that arguments are wrong."""
    said = {"jsonrpc": "2.0", "id": id_, "error": {"code": -32602, "message": "zone is missing"}}
    return web.json_response(said, status=400)


async def tell_key(own: ToolEndpoint, request: web.Request, id_: Any, given: Any) -> web.StreamResponse:
    """Repeat what proves who asks."""
    return await own.send(request, {"id": id_, "result": text(request.headers["Authorization"])})
