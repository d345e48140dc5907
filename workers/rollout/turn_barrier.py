"""Turns that episodes take together: none is asked before the environments of all that play beside it have answered.

Invariants: whoever waits goes on as soon as nobody is left to come, however those went that did not come; one that
begins later takes part from the next turn on. Everything happens on one event loop.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager


class TurnBarrier:
    """The episodes of one command."""

    def __init__(self) -> None:
        self._playing = 0
        self._come: set[asyncio.Future[None]] = set()

    @contextmanager
    def playing(self) -> Iterator[None]:
        """Be waited for by the others, from now to the end of the block."""
        self._playing += 1
        try:
            yield
        finally:
            self._playing -= 1
            self._look_soon()

    async def turn(self) -> float:
        """Wait until all that play have come as far; returns the seconds that this took."""
        since, all_here = time.monotonic(), asyncio.get_running_loop().create_future()
        self._come.add(all_here)
        self._look_soon()
        try:
            await all_here
        finally:
            self._come.discard(all_here)
        return time.monotonic() - since

    def _look_soon(self) -> None:
        """Look behind those that begin, or go on with another attempt, at this same moment."""
        asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        if len(self._come) == self._playing:
            come, self._come = self._come, set()
            for one in come:
                if not one.done():
                    one.set_result(None)
