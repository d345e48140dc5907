"""Keeps the commands of a rollout worker: all that it plays are extended together, once a second.

Invariant: the work on a command that the store says is not ours any more is cancelled; a store that does not answer
cancels nothing, since the writes of whoever lost a command are refused anyway.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from uuid import UUID

import psycopg
import structlog

from flexmarl.store.commands import Taken

log = structlog.get_logger(__name__)

TTL_S = 5.0
"""A command whose worker says nothing for this long may be taken by another one."""
EXTEND_EVERY_S = 1.0

Extend = Callable[[Sequence[Taken]], Awaitable[Sequence[bool]]]
"""Says of each command whether it is still ours."""


class Keeper:
    def __init__(self, extend: Extend) -> None:
        self._extend = extend
        self._held: dict[UUID, tuple[Taken, asyncio.Task[None]]] = {}
        self._extending: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def keeping(self, taken: Taken, work: "asyncio.Task[None]") -> Iterator[None]:
        """Extend a command while inside, and cancel its work once it is not ours."""
        self._held[taken.token] = taken, work
        if self._extending is None:
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
            await asyncio.sleep(EXTEND_EVERY_S)
            held = list(self._held.values())
            try:
                alive = await self._extend([taken for taken, _ in held])
            except psycopg.Error as error:
                log.warning("could not extend", commands=len(held), error=str(error))
                continue
            for (_, work), ours in zip(held, alive, strict=True):
                if not ours:
                    work.cancel()
