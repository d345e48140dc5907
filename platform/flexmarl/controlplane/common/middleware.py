"""Gives every request an id and binds it to the logs. The id is in the response, in audit rows and in problems."""

import re
import time
from collections.abc import Awaitable, Callable
from typing import cast

import structlog
from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest, HttpResponseBase
from django.utils.decorators import sync_and_async_middleware

from flexmarl.controlplane.common import measuring
from flexmarl.controlplane.common.database import NODE_OPERATIONS
from flexmarl.controlplane.common.ids import uuid7

log = structlog.get_logger(__name__)
_ACCEPTED = re.compile(r"[A-Za-z0-9._-]{1,64}")
API_VERSION = "1"
Handler = Callable[[HttpRequest], HttpResponseBase] | Callable[[HttpRequest], Awaitable[HttpResponseBase]]


@sync_and_async_middleware
def request_id(get_response: Handler) -> Handler:
    """Take the caller's X-Request-ID when it is well-formed, else make one."""
    if iscoroutinefunction(get_response):

        async def handle_async(request: HttpRequest) -> HttpResponseBase:
            begin(request)
            return end(request, await cast("Awaitable[HttpResponseBase]", get_response(request)))

        return handle_async

    def handle(request: HttpRequest) -> HttpResponseBase:
        begin(request)
        return end(request, cast("HttpResponseBase", get_response(request)))

    return handle


def request_id_of(request: object) -> str:
    """Return the id of a request (Django's or REST framework's)."""
    return getattr(getattr(request, "_request", request), "request_id", "")


def begin(request: HttpRequest) -> None:
    """Give a request its id, and note when it came."""
    given = request.headers.get("X-Request-ID", "")
    identity = given if _ACCEPTED.fullmatch(given) else str(uuid7())
    request.request_id = identity  # type: ignore[attr-defined]
    request.began = time.perf_counter()  # type: ignore[attr-defined]
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(request_id=identity)


def end(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
    """Count and log what was answered, and name it in the answer."""
    seconds = time.perf_counter() - request.began  # type: ignore[attr-defined]
    measuring.count(request, response.status_code, seconds)
    _log(request, response.status_code, seconds)
    response["X-Request-ID"] = request_id_of(request)
    if request.path.startswith("/api/"):
        response["API-Version"] = API_VERSION
    return response


def _log(request: HttpRequest, status: int, seconds: float) -> None:
    """Write one line for whatever changes something or is refused; reads only when debugging."""
    often = request.method in {"GET", "HEAD", "OPTIONS"} or request.path.startswith(NODE_OPERATIONS)
    quiet = status < 400 and often
    write = log.debug if quiet else log.info
    write("request", method=request.method, path=request.path, status=status, ms=round(seconds * 1000, 1))
