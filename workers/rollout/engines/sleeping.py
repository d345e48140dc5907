"""An engine whose device is lent away: it gives its memory back, and remembers what it held.

Invariants, with the server that asks under its device's lock: only an idle engine falls asleep; one that sleeps holds
nothing and takes nothing (409 `asleep`); it wakes with exactly the versions it held, each by its digest, or stays
asleep.
"""

import ctypes
import gc
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from workers.rollout.engines.base import Engine
from workers.rollout.engines.wire import LoadRequest


class AsleepError(Exception):
    """The engine sleeps: somebody else has its device."""


class BusyError(Exception):
    """The engine has requests, and sleeps only without."""


class CannotSleepError(Exception):
    """The library beneath gives its memory back with its process alone."""


@dataclass
class Sleep:
    """Whether an engine sleeps, and what it wakes up with."""

    held: list[LoadRequest] | None = None

    def refuse(self) -> None:
        """Raise AsleepError while the engine sleeps."""
        if self.held is not None:
            raise AsleepError("this engine sleeps, since its device is lent away; wake it, or ask another one")

    def begin(self, engine: Engine) -> None:
        """Put an engine to sleep; one that sleeps stays so. Raises BusyError, CannotSleepError."""
        if self.held is not None:
            give_back()  # what another thread still had in its hands the first time
            return
        load = engine.depth()
        if engine.busy:
            raise BusyError(f"{load.running} requests run and {load.waiting} wait; an engine sleeps only without")
        held = engine.versions()
        engine.let_go()
        give_back()
        self.held = held

    async def end(self, engine: Engine, fetch: Callable[[LoadRequest], Awaitable[Any]]) -> None:
        """Bring back what was held; after a failure nothing is."""
        try:
            for asked in self.held or []:
                weights = await fetch(asked)
                engine.load(asked.policy, asked.version, asked.digest, weights, asked.keeps)
        except BaseException:
            engine.let_go()
            raise
        self.held = None


def give_back() -> None:
    """Return freed memory to the operating system: the C library keeps what it may use again."""
    gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's own
        if trim is not None:
            trim(0)
