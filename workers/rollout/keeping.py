"""Keeps the commands of a rollout worker: all that it plays are extended together, once a second, and those that may be
held are looked at more often, and when somebody says that they are.

Invariant: the work on a command that the store says is not ours any more is cancelled, and what is played of one that
is held stands still until the store says otherwise; a store that does not answer changes nothing, since the writes of
whoever lost a command are refused anyway.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from uuid import UUID

import psycopg
import structlog

from flexmarl.contracts.commands import PlayGroups
from flexmarl.store.control.commands import ClaimStatus, Taken
from workers.rollout.pausing import Hold

log = structlog.get_logger(__name__)

TTL_S = 5.0
"""A command whose worker says nothing for this long may be taken by another one."""
EXTEND_EVERY_S = 1.0
LOOK_EVERY_S = 0.5
"""Nobody having said so, it is seen this often whether commands are held that may be."""

Standings = Callable[[Sequence[Taken]], Awaitable[Sequence[ClaimStatus]]]
"""Says of each command what becomes of it."""


class Keeper:
    """`extend` moves the deadlines of commands, `look` writes nothing; both say how they stand."""

    def __init__(self, extend: Standings, look: Standings) -> None:
        self._extend, self._look = extend, look
        self._held: dict[UUID, tuple[Taken, asyncio.Task[None], Hold]] = {}
        self._extending: asyncio.Task[None] | None = None
        self._told = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def look(self) -> None:
        """Look now at what may be held. From any thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
                self._loop.call_soon_threadsafe(self._told.set)

    @contextlib.contextmanager
    def keeping(self, taken: Taken, work: "asyncio.Task[None]", hold: Hold) -> Iterator[None]:
        """Extend a command while inside, hold what it plays when it is held, cancel its work once it is not ours."""
        self._held[taken.token] = taken, work, hold
        if self._extending is None:
            self._loop = asyncio.get_running_loop()
            self._extending = asyncio.create_task(self._extend_all())
        try:
            yield
        finally:
            del self._held[taken.token]
            if not self._held and self._extending is not None:
                self._extending.cancel()
                self._extending = None

    async def _extend_all(self) -> None:
        while True:
            await self._look_for(EXTEND_EVERY_S)
            held = list(self._held.values())
            try:
                standings = await self._extend([taken for taken, _, _ in held])
            except psycopg.Error as error:
                log.warning("could not extend", commands=len(held), error=str(error))
                continue
            for (_, work, hold), standing in zip(held, standings, strict=True):
                if standing is ClaimStatus.GONE:
                    work.cancel()
                else:
                    hold.set(standing is ClaimStatus.HELD)

    async def _look_for(self, seconds: float) -> None:
        """Look for so long at what may be held, now and then and whenever told to."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0.0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left, LOOK_EVERY_S)):
                    await self._told.wait()
            self._told.clear()
            await self._look_at([one for one in self._held.values() if _pauses(one[0])])

    async def _look_at(self, pausing: "Sequence[tuple[Taken, asyncio.Task[None], Hold]]") -> None:
        if not pausing:
            return
        with contextlib.suppress(psycopg.Error):  # the next extension says that the store is away
            standings = await self._look([taken for taken, _, _ in pausing])
            for (_, _, hold), standing in zip(pausing, standings, strict=True):
                if standing is not ClaimStatus.GONE:  # what is gone stands still until an extension ends it
                    hold.set(standing is ClaimStatus.HELD)


def _pauses(taken: Taken) -> bool:
    return isinstance(taken.command, PlayGroups) and taken.command.pauses
