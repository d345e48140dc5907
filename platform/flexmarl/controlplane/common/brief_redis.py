"""Redis clients of the control plane that no server can hold up: every call ends within `BROKER_TIMEOUT_S`.

What the server holds are hints and counts, and every caller treats one that is away as empty. After a call that was not
answered in time the next ones fail at once for `PAUSE_S`, so that a server that hangs costs a request one time limit
and not one for each call. Nothing is tried again here: the pushes that matter are repeated by those who sent them.
"""

import time
from typing import Any, ClassVar

import redis
from django.core.cache.backends.redis import RedisCache, RedisCacheClient
from django.utils.functional import cached_property
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from flexmarl.contracts.commands import BROKER_TIMEOUT_S

PAUSE_S = 2.0


class Breaker:
    """Remembers for a short while that the server did not answer."""

    def __init__(self, pause_s: float = PAUSE_S) -> None:
        self._pause_s = pause_s
        self._closed_at = 0.0

    @property
    def open(self) -> bool:
        """Whether a call would most likely wait in vain."""
        return time.monotonic() < self._closed_at

    def trip(self) -> None:
        """Note a call that was not answered."""
        self._closed_at = time.monotonic() + self._pause_s


SERVER = Breaker()
"""What this process knows of the broker's server."""


class BriefClient(redis.Redis):
    """A client that does not wait again for a server that has just not answered."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Carry out a command. Raises redis.ConnectionError at once while the server counts as away."""
        if SERVER.open:
            raise redis.ConnectionError("the server did not answer recently")
        try:
            return super().execute_command(*args, **options)  # type: ignore[no-untyped-call] # no types in redis
        except (redis.ConnectionError, redis.TimeoutError):
            SERVER.trip()
            raise


class BriefCacheClient(RedisCacheClient):
    """Django's client of the cache with ours below it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._client = BriefClient


class BriefCache(RedisCache):
    """Django's cache over a server that may hang.

    Django makes one for each request: they share a client, whose connections stay.
    """

    _clients: ClassVar[dict[tuple[str, ...], BriefCacheClient]] = {}
    _servers: list[str]
    _options: dict[str, Any]

    @cached_property
    def _cache(self) -> BriefCacheClient:
        servers = tuple(self._servers)
        if servers not in self._clients:
            self._clients.setdefault(servers, BriefCacheClient(self._servers, **self._options))
        return self._clients[servers]


def limits() -> dict[str, Any]:
    """Return the options of a connection that ends every wait."""
    return {
        "socket_timeout": BROKER_TIMEOUT_S,
        "socket_connect_timeout": BROKER_TIMEOUT_S,
        "retry": Retry(NoBackoff(), 0),
    }


def limits_of_layers() -> dict[str, Any]:
    """Return the same for connections of an event loop."""
    return {**limits(), "retry": AsyncRetry(NoBackoff(), 0)}


def client_of(url: str) -> redis.Redis:
    """Return a client for a thread of its own: each call waits its time limit, whatever the last one met."""
    return redis.Redis.from_url(url, **limits())
