"""Who works at once in one process, and who is next: places, and a queue of each caller in front of them.

Places are given to callers in turns, and to the requests of one caller in the order they came. So a caller with many
requests waits behind its own, and anybody else behind one of them at most. Invariant: nobody waits while a place is
free.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

from asgiref.sync import SyncToAsync, ThreadSensitiveContext

from flexmarl.controlplane.common.problems import Busy, RateLimited

MAX_WAITING = 400
MAX_WAITING_OF_ONE = 200
PATIENCE_S = 10.0
RETRY_AFTER_S = 2


class AdmissionQueue:
    """Places for those who work and queues of those who wait. Belongs to one event loop.

    A place has a thread of its own that stays: Django's handler starts one for each request, those that wait and those
    that are refused among them, and what it keeps per thread is made anew each time.
    """

    def __init__(
        self,
        places: int,
        max_waiting: int = MAX_WAITING,
        max_waiting_of_one: int = MAX_WAITING_OF_ONE,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._threads = [ThreadSensitiveContext() for _ in range(places)]
        self._queues: dict[Hashable, deque[asyncio.Future[None]]] = {}
        """Callers who wait, the next one first. No queue is empty."""
        self._free = places
        self._max_waiting, self._max_of_one, self._patience_s = max_waiting, max_waiting_of_one, patience_s

    @property
    def waiting(self) -> int:
        """How many wait."""
        return sum(map(len, self._queues.values()))

    @property
    def full(self) -> bool:
        """Whether who comes now has to wait."""
        return not self._free

    @asynccontextmanager
    async def place(self, caller: Hashable = None) -> AsyncIterator[None]:
        """Hold a place, and work in its thread.

        Raises Busy when too many wait or none moves on, RateLimited when too many of this caller wait.
        """
        await self._turn(caller)
        thread = self._threads.pop()
        try:
            work_in(thread)
            yield
        finally:
            self._threads.append(thread)
            self._next()
            work_in(ThreadSensitiveContext())  # a stream goes on elsewhere, in a thread that ends with it

    async def _turn(self, caller: Hashable) -> None:
        if self._free:
            self._free -= 1
            return
        turn = self._queue(caller)
        try:
            async with asyncio.timeout(self._patience_s):
                await turn
        except (TimeoutError, asyncio.CancelledError) as gone:
            if turn.done() and not turn.cancelled():
                self._next()  # it came at the same moment
            else:
                self._leave(caller, turn)
            if isinstance(gone, TimeoutError):
                text = f"No request of {self.waiting + 1} could start within {self._patience_s:g} s."
                raise Busy(text, headers=_LATER) from None
            raise

    def _queue(self, caller: Hashable) -> "asyncio.Future[None]":
        waiting, mine = self.waiting, len(self._queues.get(caller, ()))
        if waiting >= self._max_waiting:
            raise Busy(f"{waiting} requests are already waiting.", headers=_LATER)
        if mine >= self._max_of_one:
            raise RateLimited(
                f"{mine} of your requests are already waiting; send at most as many at once.", headers=_LATER
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(caller, deque()).append(turn)
        return turn

    def _leave(self, caller: Hashable, turn: "asyncio.Future[None]") -> None:
        queue = self._queues.get(caller, deque())
        with contextlib.suppress(ValueError):  # it was passed over already
            queue.remove(turn)
            if not queue:
                del self._queues[caller]

    def _next(self) -> None:
        """Give a place that has become free to the caller whose turn it is."""
        while self._queues:
            caller = next(iter(self._queues))
            queue = self._queues.pop(caller)
            turn = queue.popleft()
            if queue:
                self._queues[caller] = queue  # behind the others
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


_LATER = {"Retry-After": str(RETRY_AFTER_S)}


def work_in(thread: ThreadSensitiveContext) -> None:
    """Let what this task does outside of the event loop run in the one thread of a context, made when first used."""
    SyncToAsync.thread_sensitive_context.set(thread)
