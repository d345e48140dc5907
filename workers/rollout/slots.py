"""Places that limit how much is played at once.

Invariant: places are given in the order in which they were asked for, each as soon as one comes free: nothing waits for
a batch of others to end, and who is cancelled while it waits, or while it has a place, keeps it from nobody.
"""

import asyncio
import contextlib

Slots = contextlib.AbstractAsyncContextManager[None]
"""`async with` it: who is inside has a place. Fit for any number of users at the same time."""


def slots(limit: int | None) -> Slots:
    """Return so many places; without a limit everybody has one."""
    return contextlib.nullcontext() if limit is None else asyncio.Semaphore(limit)


class HeldSlots:
    """Places of several limits that one user has together, and may leave and take again. `async with` it."""

    def __init__(self, *limits: Slots) -> None:
        """Places are taken in the order of `limits`."""
        self._limits = limits
        self._held: contextlib.AsyncExitStack | None = None

    async def take(self) -> None:
        """Wait for the places, unless they are held already."""
        if self._held is None:
            async with contextlib.AsyncExitStack() as stack:
                for limit in self._limits:
                    await stack.enter_async_context(limit)
                self._held = stack.pop_all()

    async def leave(self) -> None:
        """Leave the places to others, if they are held."""
        held, self._held = self._held, None
        if held is not None:
            await held.aclose()

    async def __aenter__(self) -> "HeldSlots":
        await self.take()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.leave()
