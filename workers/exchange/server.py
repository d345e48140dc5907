"""HTTP of the exchange: signed posts and reads of rollouts in words.

Invariants. Nothing of a request is used before its member's signature of all of it was checked. A post counts against
the quota of the member that signed it, whatever is wrong with it, and against nobody else's. Answers say what was
refused, never what others published to someone who is no member.
"""

import asyncio
import hmac
import math
import time
from collections.abc import Callable

import msgspec
import structlog
from aiohttp import web

from flexmarl.contracts.shared_rollouts import (
    CLOCK_S,
    MAX_BATCH,
    MAX_BODY,
    MEMBER,
    SIGNATURE,
    TIME,
    Answer,
    Post,
    problem_of,
    signature,
)
from workers.exchange.storage import ExchangeStorage

log = structlog.get_logger(__name__)

AT_ONCE = 16
"""Requests that are read at a time; the others wait."""
READ_S = 20.0
"""Time in which a request must be there."""
PATH = "/v1/rollouts"


class ExchangeServer:
    """The requests of members to one storage."""

    def __init__(self, storage: ExchangeStorage, clock: Callable[[], float] = time.time) -> None:
        self._storage, self._clock = storage, clock
        self._places = asyncio.Semaphore(AT_ONCE)

    def application(self) -> web.Application:
        """Return what a server runs."""
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_post(PATH, self.post)
        app.router.add_get(PATH, self.read)
        app.router.add_get("/healthz", self.health)
        return app

    async def health(self, _: web.Request) -> web.Response:
        """Say that the process answers."""
        return web.json_response({"status": "ok"})

    async def post(self, request: web.Request) -> web.Response:
        """Take in rollouts of a member."""
        async with self._places:
            member, body = await self._signed(request)
            now = self._clock()
            try:
                post = msgspec.json.decode(body, type=Post)
                problem = next(filter(None, map(problem_of, post.rollouts)), "")
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                post, problem = None, str(error)[:200]
            if post is None or problem:
                again_s = await asyncio.to_thread(self._storage.refuse, member, len(body), now)
                raise _throttled(again_s) if again_s else _refused(web.HTTPUnprocessableEntity, "bad_rollout", problem)
            posted = await asyncio.to_thread(self._storage.post, member, post.task_set, post.rollouts, len(body), now)
        if posted.again_s:
            log.info("throttled", member=member, again_s=round(posted.again_s, 1))
            raise _throttled(posted.again_s)
        return web.json_response({"taken": posted.taken, "known": posted.known})

    async def read(self, request: web.Request) -> web.Response:
        """Hand out what others published behind a position."""
        async with self._places:
            member, _ = await self._signed(request)
            after, task_set = request.query.get("after", "0"), request.query.get("task_set", "")
            if not (after.isascii() and after.isdecimal() and len(after) < 19):
                raise _refused(web.HTTPBadRequest, "bad_position", "after must be a whole number, such as 0")
            found = await asyncio.to_thread(
                self._storage.read, member, task_set, int(after), MAX_BATCH, MAX_BODY - 4096
            )
        answer = Answer(found, found[-1].no if found else int(after))
        return web.Response(body=msgspec.json.encode(answer), content_type="application/json")

    async def _signed(self, request: web.Request) -> tuple[str, bytes]:
        """Return who signed a request, and its body. Raises HTTPUnauthorized where nobody that is known did."""
        member, at = request.headers.get(MEMBER, ""), request.headers.get(TIME, "")
        key = await asyncio.to_thread(self._storage.key_of, member)
        if key is None or not (at.isascii() and at.isdecimal() and abs(int(at[:12]) - self._clock()) <= CLOCK_S):
            raise _refused(web.HTTPUnauthorized, "not_signed", "no member signed this within the last five minutes")
        async with asyncio.timeout(READ_S):
            body = await request.read()
        wanted = signature(key, request.method, request.raw_path, at, body)
        if not hmac.compare_digest(wanted.encode(), request.headers.get(SIGNATURE, "").encode("utf-8", "replace")):
            raise _refused(web.HTTPUnauthorized, "not_signed", "the signature is not that of the member's key")
        return member, body


def _refused(kind: type[web.HTTPException], code: str, detail: str, **headers: str) -> web.HTTPException:
    body = msgspec.json.encode({"code": code, "detail": detail}).decode()
    return kind(text=body, content_type="application/json", headers=headers)


def _throttled(again_s: float) -> web.HTTPException:
    text = "the member's quota of this minute is used up"
    return _refused(web.HTTPTooManyRequests, "quota", text, **{"Retry-After": str(math.ceil(again_s))})
