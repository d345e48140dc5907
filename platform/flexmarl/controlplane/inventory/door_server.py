"""What nodes with a token ask for many times a second or all the time, in front of Django: none of it is a page.

`POST /nodes/operations/<name>` does what `node_door.operate` does, `PUT /nodes/contents/...` what `node_uploads` says,
`GET /nodes/news` streams `node_news`, and nothing else happens: no session, no cookie, no middleware. A body is read
from those alone who may ask, and takes no place while it comes. A token that held is believed for a moment
(`admission`), so a revocation holds for all within that time. What many nodes repeat by the clock is done for all of
them at once (`gathering`).
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs

import psycopg
import structlog
from django.db import OperationalError
from psycopg_pool import PoolTimeout

from flexmarl.controlplane.common import measuring
from flexmarl.controlplane.common.database import NODE_OPERATIONS
from flexmarl.controlplane.common.problems import ProblemError
from flexmarl.controlplane.inventory import node_door, node_news
from flexmarl.controlplane.inventory.admission import Admission
from flexmarl.controlplane.inventory.gathering import Gathering
from flexmarl.controlplane.inventory.models import NodeToken
from flexmarl.controlplane.inventory.news_board import NewsBoard
from flexmarl.controlplane.inventory.node_door import AWAY, UNREADABLE, NodeAnswer, refused
from flexmarl.controlplane.inventory.node_uploads import CONTENTS, NodeUploads
from flexmarl.controlplane.inventory.node_work import NodeWork
from flexmarl.store.node_operations import OPERATIONS, NodeCaller, NodeOperation

log = structlog.get_logger(__name__)
NEWS = "/nodes/news"
Header = tuple[bytes, bytes]


class DoorServer:
    """The application behind the requests of nodes. Belongs to one event loop."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._work = NodeWork()
        self._uploads = NodeUploads(self._work)
        self._admission = Admission(self._work)
        self._board = NewsBoard(self._work, self._admission)
        self._together = {
            name: Gathering(self._work, name, partial(_operated, one)) for name, one in OPERATIONS.items() if one.many
        }
        """Operations that are done for many nodes at once."""

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Answer a node, or hand over."""
        began = time.perf_counter()
        if scope["type"] == "http" and scope["path"].startswith(NODE_OPERATIONS):
            answer = await self._operation(scope, receive)
            if answer is not None:
                await _answered(scope, "node-operation", answer, send, began)
        elif scope["type"] == "http" and scope["path"].startswith(CONTENTS):
            answer = await self._upload(scope, receive)
            if answer is not None:
                await _answered(scope, "node-upload", answer, send, began)
        elif scope["type"] == "http" and scope["path"] == NEWS:
            await self._news(scope, receive, send, began)
        else:
            await self._inner(scope, receive, send)

    async def _operation(self, scope: dict[str, Any], receive: Any) -> NodeAnswer | None:
        """Return what is said to a caller; None when it has gone before it had asked."""
        if scope["method"] != "POST":
            return refused(HTTPStatus.METHOD_NOT_ALLOWED, "method_not_allowed", "operations are asked for by POST")
        token = await self._admitted(scope)
        if isinstance(token, NodeAnswer):
            return token
        body = await _body(receive)
        if body is None:
            return None
        if len(body) > node_door.LARGEST_BYTES:
            return refused(413, "too_large", f"a call has at most {node_door.LARGEST_BYTES} bytes")
        try:
            name = scope["path"].removeprefix(NODE_OPERATIONS)
            if name in self._together:
                return await self._together[name].done((token, body))
            return await self._work.done(token.node, node_door.operate, token, name, body)
        except ProblemError as full:
            return refused(AWAY, full.code, str(full))
        except (OperationalError, psycopg.OperationalError, PoolTimeout) as away:
            return refused(AWAY, "database_away", str(away))

    async def _upload(self, scope: dict[str, Any], receive: Any) -> NodeAnswer | None:
        """Return what is said to a caller that sends a content; None when it has gone."""
        if scope["method"] != "PUT":
            return refused(HTTPStatus.METHOD_NOT_ALLOWED, "method_not_allowed", "contents are sent by PUT")
        token = await self._admitted(scope)
        return token if isinstance(token, NodeAnswer) else await self._uploads.answer(token, scope, receive)

    async def _admitted(self, scope: dict[str, Any]) -> NodeToken | NodeAnswer:
        """Return the token that a request names, as it was lately, or why there is none."""
        return await self._admission.admitted(_header(scope))

    async def _news(self, scope: dict[str, Any], receive: Any, send: Any, began: float) -> None:
        """Stream news until the caller goes, or they end."""
        role = parse_qs(scope["query_string"].decode("latin-1")).get("role", [""])[-1]
        answer: NodeToken | NodeAnswer
        if scope["method"] != "GET":
            answer = refused(HTTPStatus.METHOD_NOT_ALLOWED, "method_not_allowed", "news are read by GET")
        elif role not in node_news.ROLES:
            text = f"role: {role!r}; it must be one of {', '.join(node_news.ROLES)}"
            answer = refused(UNREADABLE, "unreadable", text)
        else:
            answer = await self._admitted(scope)
        if isinstance(answer, NodeAnswer):
            await _answered(scope, "node-news", answer, send, began)
            return
        caller = NodeCaller(answer.node, answer.pool)
        lines = node_news.lines(self._board, self._work, caller, role, _header(scope))
        streaming = asyncio.ensure_future(_streamed(lines, send))
        leaving = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({streaming, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            streaming.cancel()
            with suppress(asyncio.CancelledError):
                await streaming


def _operated(
    one: NodeOperation, conn: psycopg.Connection, asked: Sequence[tuple[NodeToken, bytes]]
) -> list[NodeAnswer]:
    return node_door.operate_together(conn, one, asked)


async def _answered(scope: dict[str, Any], route: str, answer: NodeAnswer, send: Any, began: float) -> None:
    """Send an answer, and count and log it as any."""
    seconds = time.perf_counter() - began
    method = scope["method"] if scope["method"] in measuring.METHODS else "other"
    measuring.PROCESS.observe(method, route, answer.status, seconds)
    write = log.debug if answer.status < HTTPStatus.BAD_REQUEST else log.info
    write("request", method=method, path=scope["path"], status=answer.status, ms=round(seconds * 1000, 1))
    length = str(len(answer.body)).encode()
    await send(_start(answer.status, (b"content-type", answer.kind.encode()), (b"content-length", length)))
    await send({"type": "http.response.body", "body": answer.body})


def _header(scope: dict[str, Any]) -> str:
    """Return the Authorization header of a request."""
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == b"authorization"), "")


def _start(status: int, *headers: Header) -> dict[str, Any]:
    return {
        "type": "http.response.start",
        "status": int(status),
        "headers": [*headers, (b"cache-control", b"no-store")],
    }


async def _body(receive: Any) -> bytes | None:
    """Read a request's body, and little more than is allowed at most; None when the caller has gone."""
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > node_door.LARGEST_BYTES or not message.get("more_body"):
            return b"".join(pieces)


async def _streamed(lines: AsyncIterator[bytes], send: Any) -> None:
    await send(_start(200, (b"content-type", b"application/x-ndjson"), (b"x-accel-buffering", b"no")))
    async for line in lines:
        await send({"type": "http.response.body", "body": line, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _gone(receive: Any) -> None:
    """Return when the caller has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
