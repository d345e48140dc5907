"""How many requests of one process work at once, and how many may wait.

A request that works holds a thread and, while it reads, a connection of the pool. More of them than connections would
wait inside the pool and fail there; here they wait in line on the event loop, first come, first served, where waiting
costs nothing. A line longer than its bound, or a wait longer than patience, is answered with 503 and `Retry-After`.
Static files and the liveness check need no connection and never wait; a stream waits only until it begins.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import cast

import structlog
from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.utils.decorators import sync_and_async_middleware

from flexmarl.controlplane.common import problems
from flexmarl.controlplane.common.middleware import Handler, request_id_of
from flexmarl.controlplane.common.problems import Busy

log = structlog.get_logger(__name__)
SPARE = 4
"""Connections of the pool that are left to sockets and streams."""
MAX_WAITING = 400
PATIENCE_S = 10.0
RETRY_AFTER_S = 2
_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="color-scheme" content="light dark">
<meta name="viewport" content="width=device-width"><title>Busy – FlexMARL</title>
<main><h1>The platform is busy</h1>
<p>More is asked of this web process than it can answer now. Your runs are not affected.</p>
<p><a href="">Try again</a></p></main></html>
"""


class Line:
    """Places for those who work and a queue of those who wait. Belongs to one event loop."""

    def __init__(self, places: int, max_waiting: int = MAX_WAITING, patience_s: float = PATIENCE_S) -> None:
        self._places = asyncio.Semaphore(places)
        self._max_waiting, self._patience_s = max_waiting, patience_s
        self.waiting = 0

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Hold a place. Raises Busy when the line is full or does not move."""
        if self.waiting >= self._max_waiting:
            raise Busy(f"{self.waiting} requests wait already.")
        self.waiting += 1
        try:
            async with asyncio.timeout(self._patience_s):
                await self._places.acquire()
        except TimeoutError:
            raise Busy(f"No request of {self.waiting} could begin within {self._patience_s:g} s.") from None
        finally:
            self.waiting -= 1
        try:
            yield
        finally:
            self._places.release()


@sync_and_async_middleware
def in_line(get_response: Handler) -> Handler:
    """Let requests begin in the order they came, as many at once as there are connections for."""
    if not iscoroutinefunction(get_response):
        return get_response  # a thread per request: the server's own pool of threads is the bound
    line = Line(_places())
    answer = cast("Callable[[HttpRequest], Awaitable[HttpResponseBase]]", get_response)

    async def handle(request: HttpRequest) -> HttpResponseBase:
        if request.path.startswith(settings.STATIC_URL) or request.path == "/healthz":
            return await answer(request)
        try:
            async with line.place():
                return await answer(request)
        except Busy as problem:
            return _refusal(request, problem)

    return handle


def _places() -> int:
    pool = settings.DATABASES["default"].get("OPTIONS", {}).get("pool") or {}
    return max(1, int(pool.get("max_size", 16)) - SPARE)


def _refusal(request: HttpRequest, problem: Busy) -> HttpResponseBase:
    log.warning("request_refused", path=request.path, reason=problem.detail)
    headers = {"Retry-After": str(RETRY_AFTER_S)}
    if not request.path.startswith(("/api/", "/v1/")):
        return HttpResponse(_PAGE, status=problem.status, headers=headers)
    rendered = problems.render(problem, request_id_of(request))
    return JsonResponse(rendered.body, status=rendered.status, headers=headers, content_type="application/problem+json")
