"""What connections are for, and the requests whose statements can be cancelled.

Invariants. Each purpose has a pool of its own, so that none starves another: a page answers while every connection of
the API waits, and health while both do. Each has its own longest statement. A connection belongs to the request that
took it from the pool until it is given back; `RequestConnections` cancels only between these two moments, so that no
statement of another request is ever hit.
"""

import threading
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import psycopg
import structlog
from psycopg.pq import TransactionStatus
from psycopg_pool import PoolTimeout

from flexmarl.controlplane.common.problems import Busy, DatabaseUnavailable, ProblemError, QueryTimeout

log = structlog.get_logger(__name__)
CANCEL_S = 2.0
"""How long the server may take to accept a cancellation."""


class Purpose(StrEnum):
    PAGES = "pages"
    API = "api"
    HEALTH = "health"
    REMOTE = "remote"
    """Requests that wait for an engine or a node."""
    NODES = "nodes"
    """Operations of nodes that have a token."""
    LIVE = "live"
    """Web sockets and streams."""
    BACKGROUND = "background"
    """Commands and processes that answer no requests."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds of one purpose."""

    connections: int
    wait_s: float
    """How long a thread waits for a connection."""
    statement_s: float
    """The longest statement; 0 sets no bound."""


NODE_OPERATIONS = "/nodes/operations/"
"""What every path of an operation begins with."""
purpose: ContextVar[Purpose | None] = ContextVar("database_purpose", default=None)
"""Of the request at hand; without one, that of the process."""
_of_process = Purpose.BACKGROUND


def purpose_of_process(chosen: Purpose) -> None:
    """Say what connections of this process are for outside of requests."""
    global _of_process  # noqa: PLW0603 # one value per process, set once before it serves
    _of_process = chosen


def current_purpose() -> Purpose:
    """Return what a connection that is opened now is for."""
    return purpose.get() or _of_process


def purpose_of(path: str) -> Purpose:
    """Return what connections of a request are for."""
    if path in {"/healthz", "/readyz"}:
        return Purpose.HEALTH
    remote = ("/checkpoints/" in path and path.endswith("/archive")) or (
        "/datasets/" in path and path.endswith("/score")
    )
    if path.startswith(NODE_OPERATIONS):
        return Purpose.NODES
    if path.startswith(("/v1/", "/nodes/state/")) or remote:
        return Purpose.REMOTE
    return Purpose.API if path.startswith(("/api/", "/metrics")) else Purpose.PAGES


class RequestConnections:
    """The connections of one request, as whoever cancels it sees them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: list[psycopg.Connection[Any]] = []
        self.cancelled = False

    def taken(self, connection: psycopg.Connection[Any]) -> None:
        """Note a connection that the request works with."""
        with self._lock:
            self._open.append(connection)

    def given_back(self, connection: psycopg.Connection[Any]) -> None:
        """Forget a connection. Waits for a cancellation that is on its way, so that it cannot hit the next user."""
        with self._lock:
            self._open = [one for one in self._open if one is not connection]

    def cancel(self) -> None:
        """Cancel the statements that run now."""
        self.cancelled = True
        with self._lock:
            for connection in self._open:
                if not connection.closed and connection.info.transaction_status == TransactionStatus.ACTIVE:
                    _cancel(connection)


work: ContextVar[RequestConnections | None] = ContextVar("database_work", default=None)
"""Of the request at hand; None where nothing is to be cancelled."""


def _cancel(connection: psycopg.Connection[Any]) -> None:
    try:
        connection.cancel_safe(timeout=CANCEL_S)
    except psycopg.Error as error:  # the server is away or slow: the statement's own bound ends it
        log.warning("cancel_failed", error=str(error))


def problem_of(error: BaseException) -> ProblemError:
    """Return what a caller is told of a failure of the database."""
    match error if isinstance(error, psycopg.Error) else error.__cause__:
        case PoolTimeout():
            return Busy("All database connections for such requests are in use.", headers={"Retry-After": "2"})
        case psycopg.errors.QueryCanceled():
            return QueryTimeout(
                "A statement reached its time limit and was stopped; nothing was changed. Ask for less (a filter, a"
                " smaller limit, a shorter range), or try again later.",
                headers={"Retry-After": "10"},
            )
        case _:
            return DatabaseUnavailable(
                "Either nothing or everything was changed: repeat the request with the same Idempotency-Key.",
                headers={"Retry-After": "2"},
            )
