"""The host of forked processes: started when one is wanted, again where it died, ended when nobody plays."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import TypeVar

from workers.rollout.isolation.processes import EnvironmentBroke, ForkHost

IDLE_S = 30.0
"""How long a process without an episode is kept, and a host without processes."""

T = TypeVar("T")


@dataclass(slots=True)
class HostKeeper:
    """One host at a time. Used from one event loop."""

    _host: ForkHost | None = field(default=None, init=False)
    _playing: int = field(default=0, init=False)
    _sweeper: asyncio.TimerHandle | None = field(default=None, init=False)

    def started(self) -> ForkHost:
        """Start a host."""
        raise NotImplementedError

    def hosted(self) -> ForkHost:
        """Return the host that is there."""
        if self._host is None or not self._host.alive():
            self._host = self.started()
        return self._host

    def left(self) -> None:
        """Note that a process plays no more."""
        self._playing -= 1
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(IDLE_S, self._sweep)

    def idle(self) -> bool:
        """Tell whether the host has nothing to do."""
        return not self._playing

    def late(self, broke: EnvironmentBroke) -> None:
        """End a host that owes an answer to somebody who waited too long for it."""
        if isinstance(broke.__cause__, TimeoutError) and self._host is not None and self._host.silent():
            self.end_host()

    def _sweep(self) -> None:
        over = self.idle()
        if over:
            self.end_host()
        self._sweeper = None if over else asyncio.get_running_loop().call_later(IDLE_S, self._sweep)

    async def close(self) -> None:
        """End all of it."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        self.end_host()

    def end_host(self) -> None:
        """End the host, and with it every process."""
        if self._host is not None:
            self._host.end()


async def within(stage: str, limit: float, answer: Awaitable[T]) -> T:
    """Wait for an answer. Raises EnvironmentBroke that names the stage, also for what the environment raised."""
    try:
        async with asyncio.timeout(limit):
            return await answer
    except TimeoutError as late:
        raise EnvironmentBroke(f"{stage}: no answer within {limit:g} s") from late
    except EnvironmentBroke as broke:
        raise EnvironmentBroke(f"{stage}: {broke}") from broke
