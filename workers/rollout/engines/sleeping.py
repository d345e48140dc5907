"""An engine whose device is lent away: it gives its memory back, and remembers what it held.

Invariants, with the server that asks under its device's lock: only an idle engine falls asleep; one that sleeps holds
nothing and takes nothing (409 `asleep`), and one that is about to takes no new request; it wakes with exactly the
versions it held, each by its digest, or stays asleep; or, if it is told so, with nothing.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from workers.memory import Spare, give_back
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
    near: bool = False
    """It falls asleep as soon as nothing runs."""
    freed: int = 0
    """Bytes of weights and attention caches that it let go when it fell asleep last."""

    order: int = 0
    """Number of the last command to sleep or to wake."""
    spare: Spare = field(default_factory=Spare)
    """What is free while it is awake."""

    def overtaken(self, order: int) -> bool:
        """Tell whether a later command to sleep or to wake has been here; note this one if not."""
        late = 0 < order < self.order
        self.order = max(self.order, order)
        return late

    def refuse(self) -> None:
        """Raise AsleepError while the engine sleeps or is about to."""
        if self.near or self.held is not None:
            raise AsleepError("this engine sleeps because a trainer uses its device; wake it, or use another engine")

    def begin(self, engine: Engine) -> None:
        """Put an engine to sleep; one that sleeps stays so. Raises BusyError, CannotSleepError."""
        if self.held is not None:
            give_back()  # what another thread still had in its hands the first time
            return
        load = engine.depth()
        if engine.busy:
            raise BusyError(
                f"{load.running} requests are running and {load.waiting} waiting; engines sleep only without requests"
            )
        held = engine.versions()
        self.freed = engine.let_go()
        give_back()
        self.held, self.near = held, False

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

    def forget(self) -> None:
        """Wake up with nothing: something else is to be held."""
        self.held = None
