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
