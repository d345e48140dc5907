"""From the driver's hints to the sockets of this process.

The driver's NOTIFY says that a run changed; the relay reads the run's sequence and tells the sockets that listen to it.
One dedicated connection per process, opened with the first socket and closed with the last. Every `POLL_S` without a
hint it reads the sequences by itself, so a lost hint, or a driver that sends none, costs half a second.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import psycopg
import structlog
from django.db import connections

from flexmarl.controlplane.common import live
from flexmarl.store.decisions import CHANNEL

log = structlog.get_logger(__name__)
POLL_S = 0.5
GATHER_S = 0.05
"""Hints within this time are answered by one read: at most 20 nudges a second and run."""
RECONNECT_S = 1.0
_OF_DJANGO = {"context", "cursor_factory", "prepare_threshold", "pool", "server_side_binding"}


class Listener(Protocol):
    """A socket."""

    async def nudge(self, message: dict[str, Any]) -> None:
        """Tell the page that a topic changed."""


class Relay:
    """Sockets by run number, and the task that feeds them."""

    def __init__(self, connect: Callable[[], Awaitable[psycopg.AsyncConnection[Any]]]) -> None:
        self._connect = connect
        self._listeners: dict[int, dict[Listener, str]] = {}
        self._told: dict[int, int] = {}
        self._task: asyncio.Task[None] | None = None

    def join(self, run_no: int, topic: str, listener: Listener) -> None:
        """Feed a socket with a run's hints."""
        self._listeners.setdefault(run_no, {})[listener] = topic
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def leave(self, run_no: int, listener: Listener) -> None:
        """Stop feeding a socket; the last one closes the connection."""
        own = self._listeners.get(run_no, {})
        own.pop(listener, None)
        if not own:
            self._listeners.pop(run_no, None)
            self._told.pop(run_no, None)
        if not self._listeners and self._task is not None:
            task, self._task = self._task, None
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        while True:
            try:
                async with await self._connect() as conn:
                    await conn.execute(f"LISTEN {CHANNEL}".encode())
                    while True:
                        await self._tell(await self._read(conn, await self._hinted(conn)))
            except psycopg.Error as error:
                log.warning("relay_reconnects", error=str(error))
                await asyncio.sleep(RECONNECT_S)

    async def _hinted(self, conn: psycopg.AsyncConnection[Any]) -> Iterable[int]:
        """Wait for hints; return the runs to read: the hinted ones, or all after a silence."""
        hinted: set[int] = set()
        async for notification in conn.notifies(timeout=POLL_S, stop_after=1):
            hinted.add(int(notification.payload))
        if not hinted:
            return list(self._listeners)
        async for notification in conn.notifies(timeout=GATHER_S):
            hinted.add(int(notification.payload))
        return hinted.intersection(self._listeners)

    async def _read(self, conn: psycopg.AsyncConnection[Any], runs: Iterable[int]) -> list[tuple[int, int]]:
        wanted = list(runs)
        if not wanted:
            return []
        query = "SELECT run_id, seq FROM store.run_state WHERE run_id = ANY(%s)"
        return await (await conn.execute(query, [wanted])).fetchall()

    async def _tell(self, found: Iterable[tuple[int, int]]) -> None:
        for run_no, seq in found:
            if self._told.get(run_no) == seq:
                continue
            self._told[run_no] = seq
            for listener, topic in list(self._listeners.get(run_no, {}).items()):
                await _nudge(listener, topic, seq)


async def _nudge(listener: Listener, topic: str, seq: int) -> None:
    try:
        await listener.nudge(live.message_of(topic, seq))
    except Exception as error:  # a socket that is just closing fails in its own ways; the others must not wait for it
        log.info("nudge_not_sent", topic=topic, error=str(error))


_relays: WeakKeyDictionary[asyncio.AbstractEventLoop, Relay] = WeakKeyDictionary()


def relay() -> Relay:
    """Return the relay of the running event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _relays:
        _relays[loop] = Relay(_open)
    return _relays[loop]


async def _open() -> psycopg.AsyncConnection[Any]:
    params = {k: v for k, v in connections["default"].get_connection_params().items() if k not in _OF_DJANGO}
    params["application_name"] = "flexmarl.relay"
    return await psycopg.AsyncConnection.connect(**params, autocommit=True)
