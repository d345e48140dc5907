"""A limit on requests per minute and caller, told in RateLimit fields. A cache that is away limits nobody.

Each class of requests has its own limit and is counted apart: ingesting does not use up what reading needs. A view
names its class in `rate_class`; callers without a token or session are always `anonymous`.
"""

import time
from typing import Any

import structlog
from django.conf import settings
from django.core.cache import cache
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from flexmarl.controlplane.common.problems import RateLimited

log = structlog.get_logger(__name__)
_WINDOW_S = 60
SECRET = "secret"
"""The class of requests that check a password."""


class CallerRate(BaseThrottle):
    """Counts requests of a token, a session's user or an address in one-minute windows."""

    def allow_request(self, request: Request, view: Any) -> bool:
        """Count the request. Raises RateLimited with Retry-After when the window is full."""
        kind = rate_class(request, view)
        limit = settings.API_RATES[kind]
        count, ends_in_s = counted(kind, _caller(request, kind))
        reset = str(ends_in_s)
        headers = {
            "RateLimit-Limit": str(limit),
            "RateLimit-Remaining": str(max(0, limit - count)),
            "RateLimit-Reset": reset,
        }
        request._request.rate_limit_headers = headers  # type: ignore[attr-defined]
        if count > limit:
            raise RateLimited(
                f"At most {limit} requests a minute of the class {kind}; the window ends in {reset} s.",
                headers={**headers, "Retry-After": reset},
            )
        return True


def counted(kind: str, caller: str) -> tuple[int, int]:
    """Count a request; return how many the caller made in this window, and in how many seconds that ends."""
    now = time.time()
    window = int(now // _WINDOW_S)
    return _count(f"rate:{kind}:{caller}:{window}"), int((window + 1) * _WINDOW_S - now) + 1


def rate_class(request: Request, view: Any) -> str:
    """Name the class that a request is counted in."""
    known = request.auth is not None or request.user.is_authenticated
    return getattr(view, "rate_class", "ordinary") if known else "anonymous"


def _caller(request: Request, kind: str) -> str:
    """Name who is counted. Those who check a password are people: with more tokens nobody guesses faster."""
    if request.auth is not None and kind != SECRET:
        return f"token:{request.auth.pk}"
    if request.user.is_authenticated:
        return f"user:{request.user.pk}"
    return f"address:{request.META.get('REMOTE_ADDR', '')}"


def _count(key: str) -> int:
    try:
        try:
            return int(cache.incr(key))
        except ValueError:  # the first of its window, unless another was faster
            return 1 if cache.add(key, 1, timeout=2 * _WINDOW_S) else int(cache.incr(key))
    except Exception as error:  # whatever the cache's client raises: a limit must not take the API down with it
        log.warning("rate_not_counted", error=str(error))
        return 0
