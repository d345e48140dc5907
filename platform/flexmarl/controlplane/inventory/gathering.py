"""Work that many nodes ask for at the same time, done together: as many statements for a thousand as for one.

Invariants: what is asked for waits for `WITHIN_S` at most before its batch begins, and behind the batch before it.
Everybody in a batch gets an answer of their own, or the error that ended the batch.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import psycopg

from flexmarl.controlplane.inventory.node_work import NodeWork

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")
WITHIN_S = 0.05
MOST = 500
"""In one batch."""


class Gathering(Generic[Asked, Answer]):
    """Collects what is asked for, and has it done together. Belongs to one event loop."""

    def __init__(
        self, work: NodeWork, name: str, together: Callable[[psycopg.Connection, Sequence[Asked]], Sequence[Answer]]
    ) -> None:
        self._work, self._name, self._together = work, name, together
        self._waiting: list[tuple[Asked, asyncio.Future[Answer]]] = []
        self._turning: asyncio.Task[None] | None = None

    async def done(self, asked: Asked) -> Answer:
        """Have something done with the next batch. Raises ProblemError when there is no place, and what the work
        raises."""
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((asked, answered))
        if self._turning is None:
            self._turning = asyncio.create_task(self._turn())
        return await answered

    async def _turn(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(WITHIN_S)
                batch, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
                await self._answer(batch)
        finally:
            self._turning = None

    async def _answer(self, batch: list[tuple[Asked, "asyncio.Future[Answer]"]]) -> None:
        try:
            answers = await self._work.done(self._name, self._together, [asked for asked, _ in batch])
        except Exception as error:  # whatever it is, everybody who waits is told
            for _, answered in batch:
                if not answered.done():
                    answered.set_exception(error)
            return
        for (_, answered), answer in zip(batch, answers, strict=True):
            if not answered.done():  # who has gone waits no more
                answered.set_result(answer)
