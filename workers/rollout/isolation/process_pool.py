"""Processes that are forked from one host: had, used for one thing after the other, and let go of.

Invariants. A process has one user at a time. Every answer has a deadline; a process that misses it is killed and its
user told why; the others go on. A process is used again only after it was left between two orders and let go of what it
held in time. Whoever stops waiting, by cancellation too, leaves no process behind that works for nobody. Used from one
event loop.
"""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import TypeVar

import structlog

from workers.rollout.isolation.keeper import IDLE_S, HostKeeper, within
from workers.rollout.isolation.lines import Answer, Close, Closed, Order, ToolOrder
from workers.rollout.isolation.processes import EnvironmentBroke, ForkedProcess

log = structlog.get_logger(__name__)

CLOSING_S = 0.2
"""So long a new user waits for a process that lets go of another one."""

T = TypeVar("T")
Said = TypeVar("Said", bound=Answer)


@dataclass(slots=True)
class ProcessPool(HostKeeper):
    """The processes of one host, of which those that rest are used again."""

    _resting: list[ForkedProcess] = field(default_factory=list, init=False)
    _closing: "set[asyncio.Task[None]]" = field(default_factory=set, init=False)

    @property
    def title(self) -> str:
        """Return what the processes hold, for the log."""
        raise NotImplementedError

    @property
    def close_timeout_s(self) -> float:
        """Return how long a process may take to let go of what it held."""
        raise NotImplementedError

    async def booted(self, limit_s: float, first: Awaitable[T]) -> T:
        """Wait for the first answer of a process. Raises EnvironmentBroke; a host that hangs is ended."""
        try:
            return await within("boot", limit_s, first)
        except EnvironmentBroke as broke:
            self.late(broke)
            raise

    async def taken(self, order: Order | ToolOrder, kind: type[Said]) -> tuple[ForkedProcess, Said]:
        """Have a process, and its answer to a first order. Raises EnvironmentBroke."""
        if not self._resting and self._closing:  # one that is about to rest is had sooner than a new one
            await asyncio.wait(self._closing, timeout=CLOSING_S, return_when=asyncio.FIRST_COMPLETED)
        process = self._rested() or await self.hosted().fork()
        self._playing += 1
        try:
            return process, await process.ask(order, kind)
        except BaseException:  # broken or cancelled: the process may still work, and nobody waits for it
            self.leave(process, whole=False)
            raise

    def _rested(self) -> ForkedProcess | None:
        """Take a process that nobody uses and that is still there."""
        while self._resting:
            process = self._resting.pop()
            if process.alive():
                return process
            process.end()
        return None

    def leave(self, process: ForkedProcess, *, whole: bool) -> None:
        """Take a process back when it waits for an order, end it when it was left in the middle of one."""
        if whole:
            closing = asyncio.get_running_loop().create_task(self._closed(process))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        else:
            process.end()
            self.left()

    async def _closed(self, process: ForkedProcess) -> None:
        """Have a process let go of what it holds, whose account is given already; end it where it does not in time."""
        try:
            await within("close", self.close_timeout_s, process.ask(Close(), Closed))
        except EnvironmentBroke as broke:
            log.warning("environment not closed", environment=self.title, reason=str(broke))
            process.end()
        else:
            process.idle_since = asyncio.get_running_loop().time()
            self._resting.append(process)
        finally:
            self.left()

    def idle(self) -> bool:
        """End what nobody has used for a while."""
        loop = asyncio.get_running_loop()
        late = [one for one in self._resting if loop.time() - one.idle_since >= IDLE_S]
        self._resting = [one for one in self._resting if one not in late]
        for process in late:
            process.end()
        return not self._resting and HostKeeper.idle(self)

    async def close(self) -> None:
        """End every process."""
        if self._closing:
            await asyncio.wait(self._closing)
        for process in self._resting:
            process.end()
        self._resting.clear()
        await HostKeeper.close(self)
