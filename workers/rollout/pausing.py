"""The episodes of one rollout command standing still, and going on.

Invariants: while they stand still none of them asks for a turn, and what was asked for is taken back from whoever is at
it, with the tokens it has. How long that took is none of any episode's time: whoever keeps a deadline adds `stood_s`
to it. What an environment does at that moment it does to its end.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Protocol


class HoldableTurn(Protocol):
    """One try of a turn that somebody is at."""

    recalled: bool
    """It is to be taken back."""


class Hold:
    """Of one command."""

    def __init__(self, held: bool = False) -> None:
        self._since: float | None = None
        self._before_s = 0.0
        self._free = asyncio.Event()
        self._free.set()
        self._out: dict[int, tuple[HoldableTurn, Callable[[], None]]] = {}
        self.set(held)

    @property
    def held(self) -> bool:
        """Whether its episodes stand still now."""
        return self._since is not None

    @property
    def stood_s(self) -> float:
        """How long they have stood still until now, all times together."""
        return self._before_s + (0.0 if self._since is None else time.monotonic() - self._since)

    def set(self, held: bool) -> None:
        """Let the episodes stand still, or go on."""
        if held == self.held:
            return
        if held:
            self._since = time.monotonic()
            self._free.clear()
            out = list(self._out.values())
            for turn, _ in out:
                turn.recalled = True
            for take_back in dict.fromkeys(take_back for _, take_back in out):
                take_back()
        else:
            self._before_s, self._since = self.stood_s, None
            self._free.set()

    async def over(self) -> float:
        """Wait until they go on; returns the seconds that this took."""
        before_s = self.stood_s
        while self.held:
            await self._free.wait()
        return self.stood_s - before_s

    @contextlib.contextmanager
    def out(self, turn: HoldableTurn, take_back: Callable[[], None]) -> Iterator[None]:
        """Have a turn out while inside; when the hold begins its turns are marked, and then `take_back` is called."""
        self._out[id(turn)] = turn, take_back
        try:
            yield
        finally:
            del self._out[id(turn)]


FREE = Hold()
"""Of whatever is never held."""
