"""Contents that nodes with a token send: passed on, piece by piece, to a node that keeps them for all.

Invariants: the cluster key stays here. A node sends contents of runs whose trainers have its devices, and no others; a
path is made here of numbers and digests alone. A body is never held: a piece of it is read when the one before has gone
on. A node has `AT_ONCE` on their way; a caller that falls silent in the middle gives its place back, and what broke off
is nothing to the keeper, which checks every byte itself.
"""

import asyncio
import re
import time
import urllib.parse
from collections import defaultdict
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any

import aiohttp
import psycopg
from django.conf import settings

from flexmarl.controlplane.common.problems import ProblemError
from flexmarl.controlplane.inventory.models import NodeToken
from flexmarl.controlplane.inventory.node_door import AWAY, NOT_ITS_OWN, UNREADABLE, NodeAnswer, refused
from flexmarl.controlplane.inventory.node_work import NodeWork
from flexmarl.store import node_operations
from flexmarl.store.control import nodes
from flexmarl.store.node_operations import NodeCaller

CONTENTS = "/nodes/contents/"
LARGEST_BYTES = 32 * 2**20
"""Of one request: a chunk has at most 8 MiB, a manifest of terabytes less than this."""
AT_ONCE = 8
SILENT_S = 30.0
AVOIDED_S = 60.0
"""A node that failed to store something is chosen again after so long, or where there is no other."""
ANSWER_S = 60.0
"""A keeper may hash and flush a whole content before it answers."""
_PATH = re.compile(r"(?P<run>[0-9]{1,18})/(?P<digest>[0-9a-f]{64})(?P<what>/folder|/chunks/[0-9a-f]{64})?")
_ASKED = {
    "policy": re.compile(r"[a-z0-9][a-z0-9_-]{0,59}"),
    "keep": re.compile(r"version|state|base|folder|delta|step-[0-9]{1,9}"),
    "delta": re.compile(r"[0-9a-f]{64}"),
    "step": re.compile(r"[0-9]{1,9}"),
}
_JSON = "application/json"
_TOLD = {200, 409, 413, 422, 503, 507}
"""Answers of a receiving node that are for the sender. Any other is a fault between it and this process."""


class _Left(Exception):
    """The caller has gone, or says nothing, in the middle of a body."""


class NodeUploads:
    """Answers `PUT /nodes/contents/...`. Belongs to one event loop."""

    def __init__(self, work: NodeWork) -> None:
        self._work = work
        self._places: dict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(AT_ONCE))
        self._failed: dict[str, float] = {}
        """Node that failed to store something -> when, on the monotonic clock."""

    async def answer(self, token: NodeToken, scope: dict[str, Any], receive: Any) -> NodeAnswer | None:
        """Return what is said to a caller; None when it has gone."""
        told = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
        if not re.fullmatch(rb"[0-9]{1,18}", told):
            return refused(HTTPStatus.LENGTH_REQUIRED, "length_required", "Content-Length says how long the body is")
        if int(told) > LARGEST_BYTES:
            return refused(413, "too_large", f"a body has at most {LARGEST_BYTES} bytes")
        body = _Body(receive, int(told))
        try:
            async with self._places[token.node]:
                answer = await self._sent(token, scope, body)
                async for _ in body.pieces():  # who is still sending would not hear the answer
                    pass
                return answer
        except _Left:
            return None

    async def _sent(self, token: NodeToken, scope: dict[str, Any], body: "_Body") -> NodeAnswer:
        query = urllib.parse.parse_qs(scope["query_string"].decode("latin-1"))
        asked = {name: query[name][-1] for name in _ASKED if name in query}
        path = _PATH.fullmatch(scope["path"].removeprefix(CONTENTS))
        if path is None:
            return refused(404, "unknown_content", "a path is RUN/DIGEST, RUN/DIGEST/chunks/NAME or RUN/DIGEST/folder")
        wrong = next((name for name, value in asked.items() if not _ASKED[name].fullmatch(value)), None)
        if wrong:
            return refused(
                UNREADABLE, "unreadable", f"{wrong}: {asked[wrong][:80]!r} must match {_ASKED[wrong].pattern}"
            )
        named, avoided = query.get("keeper", [""])[-1], self._avoided()
        try:
            chosen = await self._work.done(token.node, _keeper, token, int(path["run"]), named, avoided)
        except ProblemError as full:
            return refused(AWAY, full.code, str(full))
        if isinstance(chosen, NodeAnswer):
            return chosen
        node, address = chosen
        url = f"http://{address}/v1/uploads/{path['run']}/{path['digest']}{path['what'] or ''}"
        answer = await _passed_on(f"{url}?{urllib.parse.urlencode(asked)}", body)
        if answer.status not in _TOLD:
            text = f"{node}, which is to store it, answers {answer.status}: read the log of its node agent"
            answer = refused(AWAY, "receiver_failed", text)
        if answer.status == AWAY:
            self._failed[node] = time.monotonic()
        return answer

    def _avoided(self) -> set[str]:
        horizon = time.monotonic() - AVOIDED_S
        self._failed = {node: failed for node, failed in self._failed.items() if failed > horizon}
        return set(self._failed)


def _keeper(
    conn: psycopg.Connection, token: NodeToken, run_id: int, named: str, avoided: set[str]
) -> tuple[str, str] | NodeAnswer:
    """Return the node that stores what is sent, with its endpoint: the named one where a name is given."""
    try:
        if not node_operations.trains(conn, NodeCaller(token.node, token.pool), run_id):
            text = f"no trainer of run {run_id} has devices of {token.node}"
            return refused(NOT_ITS_OWN, "not_its_own", text)
        living = nodes.keepers(conn, run_id)
    except psycopg.OperationalError as away:
        return refused(AWAY, "database_away", str(away))
    living.sort(key=lambda one: one[0] in avoided)  # stable: the order is kept among the others
    found = next((one for one in living if named in {"", one[0]}), None)
    if found is not None:
        return found
    whose = f"{named} is" if named else "no node with the installation's secrets is"
    return refused(AWAY, "keeper_gone", f"{whose} there to keep what {token.node} sends")


async def _passed_on(url: str, body: "_Body") -> NodeAnswer:
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=SILENT_S, sock_read=ANSWER_S)
    headers = {
        "Authorization": f"Bearer {settings.CLUSTER_KEY}",
        "Content-Length": str(body.left),
        "Content-Type": "application/octet-stream",
    }
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.put(url, data=body.pieces(), headers=headers) as answer,
        ):
            return NodeAnswer(answer.status, await answer.read(), _JSON)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        if body.broken:
            raise _Left from error
        return refused(AWAY, "keeper_gone", f"the node that keeps it does not answer: {error}")


class _Body:
    """A request's body, of which nothing is held."""

    def __init__(self, receive: Any, length: int) -> None:
        self._receive = receive
        self.left = length
        self.broken = False

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield what has not come yet, as it comes. Raises _Left where it ends before its told length."""
        while self.left:
            self.broken = True
            try:
                async with asyncio.timeout(SILENT_S):
                    message = await self._receive()
            except TimeoutError as silent:
                raise _Left from silent
            if message["type"] == "http.disconnect":
                raise _Left
            piece = message.get("body", b"")[: self.left]
            self.left -= len(piece)
            if self.left and not message.get("more_body"):
                raise _Left
            self.broken = False
            yield piece
