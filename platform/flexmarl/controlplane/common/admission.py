"""How many requests of one process work at once, and what becomes of those that find no place.

A request that works holds a thread and, while it reads, a connection of its pool. More of them than connections would
wait inside the pool and fail there; here they wait on the event loop, where waiting costs nothing (`lines`). Too many
of them, or a wait longer than patience, are answered with 503 and `Retry-After`. Pages, the API and health have lines
of their own, as they have pools of their own: none waits for another. A request whose client has gone keeps its place
until its thread is free. Static files and the liveness check need no connection and never wait; a stream waits only
until it begins, and then reads through the pool of streams.

A read that waits while the very same read of the same caller waits already shares its answer. That read has not begun
yet, so what it reads is no older than what either asked for.
"""

import asyncio
import hashlib
from collections.abc import Hashable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, cast

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.conf import settings
from django.core.handlers.asgi import ASGIHandler
from django.db import close_old_connections
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse

from flexmarl.controlplane.common import database, middleware, problems
from flexmarl.controlplane.common.database import Purpose
from flexmarl.controlplane.common.lines import AdmissionQueue, work_in
from flexmarl.controlplane.common.problems import Busy, ProblemError, RateLimited

REQUESTS = (Purpose.PAGES, Purpose.API, Purpose.REMOTE, Purpose.NODES, Purpose.HEALTH)
_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="color-scheme" content="light dark">
<meta name="viewport" content="width=device-width"><title>Busy – FlexMARL</title>
<main><h1>The platform is busy</h1>
<p>This web process has more requests than it can answer now. Your runs are not affected.</p>
<p><a href="">Try again</a></p></main></html>
"""


class AdmittingHandler(ASGIHandler):
    """Django's handler: requests begin in the order they came, as many at once as there are connections for.

    No middleware could do this: one that cannot work on the event loop takes all around it into its thread. Here the
    body has been read, so a slow sender takes no place either.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lines = {one: AdmissionQueue(_places(one)) for one in REQUESTS}
        self._front = ThreadSensitiveContext()
        """Where what Django does before and after an answer runs: a moment's work."""
        self._waiting: dict[Hashable, _Outcome] = {}
        """Reads that wait, and what will become of them."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve a request. No thread is started for it here, as Django's own handler does."""
        work_in(self._front)
        await self.handle(scope, receive, send)

    async def run_get_response(self, request: HttpRequest) -> HttpResponseBase:
        """Answer a request when it has a place, with connections of its purpose."""
        if request.path.startswith(settings.STATIC_URL) or request.path == "/healthz":
            work_in(ThreadSensitiveContext())
            return await self._answer(request)
        purpose = database.purpose_of(request.path)
        database.purpose.set(purpose)
        try:
            return await self._in_line(self._lines[purpose], request)
        except (Busy, RateLimited) as problem:
            return _refusal(request, problem)

    async def _in_line(self, line: AdmissionQueue, request: HttpRequest) -> HttpResponseBase:
        """Answer a request in its turn, or with the answer of its like that waits already."""
        read = _read_of(request)
        while line.full and (like := self._waiting.get(read)) is not None:
            await asyncio.wait([like])
            found = like.result()
            if isinstance(found, ProblemError):
                raise found
            if found is not None:
                return found.again(request)
        outcome: _Outcome = asyncio.get_running_loop().create_future()
        if line.full and read is not None:
            self._waiting[read] = outcome
        try:
            async with line.place(_caller_of(request)):
                self._begins(read, outcome)
                response = await self._worked(request)
            outcome.set_result(_Answer.of(request, response))
            return response
        except (Busy, RateLimited) as problem:
            outcome.set_result(problem)
            raise
        finally:
            self._begins(read, outcome)
            if not outcome.done():
                outcome.set_result(None)

    def _begins(self, read: Hashable, outcome: "_Outcome") -> None:
        """Let who comes from now on ask for themselves: what is read now may be old when they ask."""
        if self._waiting.get(read) is outcome:
            del self._waiting[read]

    async def _worked(self, request: HttpRequest) -> HttpResponseBase:
        """Answer a request; one that is given up ends here only when its thread is free."""
        try:
            response = await self._answer(request)
        finally:
            # Behind whatever the thread is at, and before the place: neither who has gone nor who reads slowly holds
            # a connection.
            await sync_to_async(close_old_connections)()
        if response.streaming:
            database.purpose.set(Purpose.LIVE)
        return response

    async def _answer(self, request: HttpRequest) -> HttpResponseBase:
        return await super().run_get_response(request)


def _places(purpose: Purpose) -> int:
    return int(settings.DATABASE_LIMITS[purpose].connections)


def _refusal(request: HttpRequest, problem: ProblemError) -> HttpResponseBase:
    middleware.begin(request)
    response = HttpResponse(_PAGE, status=problem.status, headers=problem.headers)
    if request.path.startswith(("/api/", "/v1/")):
        body = problems.render(problem, middleware.request_id_of(request)).body
        kind = "application/problem+json"
        response = JsonResponse(body, status=problem.status, headers=problem.headers, content_type=kind)
    return middleware.end(request, response)


@dataclass(frozen=True, slots=True)
class _Answer:
    """A whole answer that found nothing wrong, to be given again to requests that are alike."""

    response: HttpResponse
    route: Any

    @classmethod
    def of(cls, request: HttpRequest, response: HttpResponseBase) -> "_Answer | None":
        if isinstance(response, HttpResponse) and response.status_code < HTTPStatus.BAD_REQUEST:
            return cls(response, request.resolver_match)
        return None  # a stream, or a problem, which names the request that met it

    def again(self, request: HttpRequest) -> HttpResponse:
        """Give it to another request, which is counted and logged as any."""
        middleware.begin(request)
        request.resolver_match = self.route
        given = self.response
        again = HttpResponse(given.content, status=given.status_code, reason=given.reason_phrase, headers=given.headers)
        again.cookies.update(given.cookies)
        return cast("HttpResponse", middleware.end(request, again))


_Outcome = asyncio.Future[_Answer | ProblemError | None]
"""None when the read was given up, or is answered by a stream or with a problem of its own."""
_READS = frozenset({"GET", "HEAD"})
_OF_ONE_REQUEST = frozenset({b"x-request-id", b"traceparent", b"tracestate"})
"""Headers that differ from request to request and that no answer depends on, but for the request's id."""
_CREDENTIALS = (b"authorization", b"x-api-key", b"cookie")


def _read_of(request: HttpRequest) -> Hashable:
    """Return what makes reads alike: all that was sent, and from where. None when it is no read."""
    headers = [pair for pair in request.scope["headers"] if pair[0] not in _OF_ONE_REQUEST]  # type: ignore[attr-defined]
    if request.method not in _READS or any(name in {b"content-length", b"transfer-encoding"} for name, _ in headers):
        return None
    return request.method, request.scheme, request.get_full_path(), request.META.get("REMOTE_ADDR"), tuple(headers)


def _caller_of(request: HttpRequest) -> Hashable:
    """Return who asks, as far as it can be told without a look into the database: credentials and address."""
    headers = request.scope["headers"]  # type: ignore[attr-defined]
    shown = repr([value for name, value in headers if name in _CREDENTIALS])
    return request.META.get("REMOTE_ADDR"), hashlib.sha256(shown.encode()).digest()
