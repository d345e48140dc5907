"""Operations of the store over HTTP, in the place of a pool of connections.

Invariants: an operation is one POST; its answer is the reply, or the refusal that the store raised. A control plane
that does not answer raises OperationalError, as a database does that is away, so whoever waits one out waits the other
out as well: what was asked may have been done or not, as a statement whose connection broke. A token that holds no more
raises NotAdmitted, which nobody waits out, and lets nobody else wait for long.
"""

import contextlib
import http.client
import threading
import time
from collections.abc import Iterator
from typing import Any, cast

import msgspec
import psycopg
import structlog

from flexmarl.store import node_wire, schema
from flexmarl.store.errors import SchemaMismatch
from flexmarl.store.node_operations import Carrier, NodeOperation
from workers.door.address import DoorAddress
from workers.errors import NotAdmitted, SettingsError

log = structlog.get_logger(__name__)

IDLE_S = 3.0
"""Shorter than servers and proxies keep a connection that nobody uses."""
OPERATIONS = "/nodes/operations/"
_BROKEN = (OSError, http.client.HTTPException)


class DoorAway(psycopg.OperationalError):
    """The control plane does not answer, or its database does not."""


class NotItsOwn(psycopg.DatabaseError):
    """The control plane refuses an operation; the text says why."""


class _Problem(msgspec.Struct):
    code: str = ""
    detail: str = ""


class Admitted(msgspec.Struct):
    """Who a token says that its bearer is."""

    node: str
    pool: str
    schema: str
    peers: dict[str, str] = {}
    """Other nodes of the pool -> host:port at which they are read; empty: nowhere."""


def admitted(address: DoorAddress) -> Admitted:
    """Ask who we are. Raises SettingsError for a token that is none, SchemaMismatch, DoorAway."""
    connection = address.connect()
    try:
        connection.request("GET", address.path("/nodes/hello"), headers=dict(address.headers))
        answer = connection.getresponse()
        body = answer.read()
    except _BROKEN as error:
        raise DoorAway(f"{address.url} does not answer: {error}") from error
    finally:
        connection.close()
    if answer.status == http.client.UNAUTHORIZED:
        raise SettingsError(f"{address.told_by}: {problem_of(body).detail}; create or rotate it on Pools and nodes")
    try:
        said = msgspec.json.decode(body, type=Admitted)
    except msgspec.MsgspecError:
        foreign = answer.status == http.client.BAD_REQUEST  # Django's answer to a name that it does not know
        hint = "; the name in this address must be one of the service's FLEXMARL_ALLOWED_HOSTS" if foreign else ""
        raise DoorAway(f"{address.url} answers {answer.status}{hint}") from None
    if said.schema != schema.VERSION:
        raise SchemaMismatch(f"the control plane speaks schema version {said.schema}, this node {schema.VERSION}")
    return said


class Door(Carrier):
    """One per process. As many connections are open as threads ask at once; the one that was used last is used next,
    so that few stay open, and those that do are not opened again and again."""

    def __init__(self, address: DoorAddress) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._idle: list[tuple[float, http.client.HTTPConnection]] = []
        """Connections that nobody uses, with since when; the newest last."""

    def carry(self, operation: NodeOperation, arguments: dict[str, Any]) -> Any:
        status, answer = self._asked(f"{OPERATIONS}{operation.name}", node_wire.encode(arguments))
        try:
            return self._told(operation, status, answer)
        except node_wire.Unreadable as unreadable:  # something between here and there answered
            raise DoorAway(f"{operation.name}: the answer {status} cannot be read: {unreadable}") from unreadable

    def _told(self, operation: NodeOperation, status: int, answer: bytes) -> Any:
        match status:
            case 200:
                return node_wire.reply_of(operation, answer)
            case 409:
                raise node_wire.error_of(answer)
            case 401:
                raise self._not_admitted(problem_of(answer).detail)
            case 403 | 404 | 413 | 422 | 500:
                raise NotItsOwn(f"{operation.name}: {problem_of(answer).detail or status}")
        raise DoorAway(f"the control plane answers {status} to {operation.name}")

    def _not_admitted(self, why: str) -> Exception:
        """Return what says that the token holds no more; the process ends then."""
        self._address.waits.end()
        return NotAdmitted(why or "the node token holds no more")

    def _asked(
        self, path: str, body: bytes | bytearray, method: str = "POST", kind: str = node_wire.MEDIA_TYPE
    ) -> tuple[int, bytes]:
        headers = {**self._address.headers, "Content-Type": kind}
        connection: http.client.HTTPConnection | None = None
        try:
            connection = self._opened()
            with self._address.waits.on(connection.sock):
                connection.request(method, self._address.path(path), body, headers)
                answer = connection.getresponse()
                status, text = answer.status, answer.read()
        except BaseException as error:
            if connection is not None:
                connection.close()
            if isinstance(error, _BROKEN):
                raise DoorAway(f"the control plane does not answer: {error}") from error
            raise
        with self._lock:
            self._idle.append((time.monotonic(), connection))
        return status, text

    def _opened(self) -> http.client.HTTPConnection:
        """Return a connection; those that idled are left, since the other end may be closing them just now."""
        self._drop(time.monotonic() - IDLE_S)
        with self._lock:
            if self._idle:
                return self._idle.pop()[1]
        connection = self._address.connect()
        connection.connect()
        return connection

    def _drop(self, before: float = float("inf")) -> None:
        """Close the connections that nobody has used since then."""
        with self._lock:
            gone = [connection for since, connection in self._idle if since < before]
            self._idle = [(since, connection) for since, connection in self._idle if since >= before]
        for connection in gone:
            connection.close()


class QuietDoor(Door):
    """A door of a thread on the side, which leaves it to others to say that the token holds no more."""

    def _not_admitted(self, why: str) -> Exception:
        return DoorAway(why)

    def close(self) -> None:
        """Drop the connections that nobody uses, as a connection's `close` does."""
        self._drop()


class DoorPool:
    """Stands in the place of a pool: what it gives out carries operations and knows no SQL."""

    def __init__(self, address: DoorAddress) -> None:
        self._door = Door(address)

    @contextlib.contextmanager
    def connection(self) -> Iterator[psycopg.Connection]:
        """Give a carrier out where a connection is wanted; functions of the store see which it is."""
        yield cast("psycopg.Connection", self._door)

    def __enter__(self) -> "DoorPool":
        return self

    def __exit__(self, *_: object) -> None:
        return


def problem_of(body: bytes) -> _Problem:
    """Read why something was refused; empty where no program said it."""
    try:
        return msgspec.json.decode(body, type=_Problem)
    except msgspec.MsgspecError:
        return _Problem()
