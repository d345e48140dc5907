"""HTTP of the exchange: signed posts and reads of rollouts in words.

Invariants. No body is read before its member's signature of the request was checked, and nothing of a body is used that
is not the signed one. A post counts against the quota of the member that signed it, whatever is wrong with it, and
against nobody else's; so does the time in which it is read. Answers say what was refused, never what others published
to someone who is no member.
"""

import asyncio
import hmac
import math
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial

import msgspec
import structlog
from aiohttp import web

from flexmarl.contracts.shared_rollouts import (
    CLOCK_S,
    CONTENT,
    MAX_BATCH,
    MAX_BODY,
    MEMBER,
    SIGNATURE,
    TIME,
    Answer,
    Post,
    content_of,
    problem_of,
    signature,
)
from workers.exchange.storage import ExchangeStorage

log = structlog.get_logger(__name__)

AT_ONCE = 4
"""Requests of a member that are read at a time; its others wait."""
READ_S = 20.0
"""Time in which a request must be there."""
PATH = "/v1/rollouts"


class ExchangeServer:
    """The requests of members to one storage."""

    def __init__(self, storage: ExchangeStorage, clock: Callable[[], float] = time.time) -> None:
        self._storage, self._clock = storage, clock
        self._places = defaultdict[str, asyncio.Semaphore](partial(asyncio.Semaphore, AT_ONCE))

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
        member = await self._signer(request)
        async with self._places[member]:
            body = await _body(request)
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
        member = await self._signer(request)
        async with self._places[member]:
            await _body(request)
            after, task_set = request.query.get("after", "0"), request.query.get("task_set", "")
            if not (after.isascii() and after.isdecimal() and len(after) < 19):
                raise _refused(web.HTTPBadRequest, "bad_position", "after must be a whole number, such as 0")
            found = await asyncio.to_thread(
                self._storage.read, member, task_set, int(after), MAX_BATCH, MAX_BODY - 4096
            )
        answer = Answer(found, found[-1].no if found else int(after))
        return web.Response(body=msgspec.json.encode(answer), content_type="application/json")

    async def _signer(self, request: web.Request) -> str:
        """Return the member who signed a request. Raises HTTPUnauthorized where nobody that is known did."""
        member, at, content, signed = (request.headers.get(name, "") for name in (MEMBER, TIME, CONTENT, SIGNATURE))
        key = await asyncio.to_thread(self._storage.key_of, member)
        if key is None or not (at.isascii() and at.isdecimal() and abs(int(at[:12]) - self._clock()) <= CLOCK_S):
            raise _refused(web.HTTPUnauthorized, "not_signed", "no member signed this within the last five minutes")
        wanted = signature(key, request.method, request.raw_path, at, content)
        if not hmac.compare_digest(wanted.encode(), signed.encode("utf-8", "replace")):
            raise _refused(web.HTTPUnauthorized, "not_signed", "the signature is not that of the member's key")
        return member


async def _body(request: web.Request) -> bytes:
    """Return a request's body. Raises HTTPException where it does not come, or is not what was signed."""
    try:
        async with asyncio.timeout(READ_S):
            body = await request.read()
    except TimeoutError:
        late = f"the body was not there within {READ_S:g} s"
        raise _refused(web.HTTPRequestTimeout, "too_slow", late) from None
    if content_of(body) != request.headers[CONTENT]:
        raise _refused(web.HTTPUnauthorized, "not_signed", "the body is not the one that was signed")
    return body


def _refused(kind: type[web.HTTPException], code: str, detail: str, **headers: str) -> web.HTTPException:
    body = msgspec.json.encode({"code": code, "detail": detail}).decode()
    return kind(text=body, content_type="application/json", headers=headers)


def _throttled(again_s: float) -> web.HTTPException:
    text = "the member's quota of this minute is used up"
    return _refused(web.HTTPTooManyRequests, "quota", text, **{"Retry-After": str(math.ceil(again_s))})
