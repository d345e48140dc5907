"""A run's isolated environments, as the rollout worker sees them: episodes that can be begun, moved and left.

Invariants. A process plays one episode at a time, so what hangs, dies or seeds its process does so to one episode
alone. Every answer has a deadline; a process that misses it is killed and its episode told why; the others go on. A
process is used again only after an episode that was left between two moves. Whoever stops waiting, by cancellation
too, leaves no process behind that works for nobody. Used from one event loop.
"""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import TypeVar

from flexmarl.contracts.specification.environment_base import IsolatedEnvironmentOptions
from workers.rollout.environments.base import Ask, Outcome, Reply
from workers.rollout.isolation.lines import Begin, EpisodeProgress, ReplyBatch, outcome_of
from workers.rollout.isolation.processes import EnvironmentBroke, ForkedProcess, ForkHost, start

IDLE_S = 30.0
"""How long a process without an episode is kept, and a host without processes."""

T = TypeVar("T")


@dataclass(slots=True)
class EnvironmentPool:
    """The processes of one run's environments in one rollout worker."""

    spec: IsolatedEnvironmentOptions
    _host: ForkHost | None = None
    _resting: list[ForkedProcess] = field(default_factory=list)
    _playing: int = 0
    _sweeper: asyncio.TimerHandle | None = None

    async def begin(self, task_seed: int, held_out: bool, seed: int) -> "IsolatedEpisode":
        """Begin an episode. Raises EnvironmentBroke when it does not begin in time."""
        limit = self.spec.setup_timeout_s
        try:
            async with asyncio.timeout(limit):
                return await self._begin(Begin(task_seed, held_out, seed))
        except TimeoutError as late:
            if self._host is not None and self._host.silent():
                self._host.end()
            raise EnvironmentBroke(f"set-up: no answer within {limit:g} s") from late

    async def _begin(self, order: Begin) -> "IsolatedEpisode":
        process = self._rested() or await self._hosted().fork()
        self._playing += 1
        try:
            progress = await process.ask(order)
        except BaseException:  # broken or cancelled: the process may still work, and nobody waits for it
            self.leave(process, whole=False)
            raise
        return IsolatedEpisode(self, process, progress, progress.task)

    def _rested(self) -> ForkedProcess | None:
        """Take a process that plays nothing and is still there."""
        while self._resting:
            process = self._resting.pop()
            if process.alive():
                return process
            process.end()
        return None

    def _hosted(self) -> ForkHost:
        if self._host is None or not self._host.alive():
            self._host = start(self.spec.model_dump_json())
        return self._host

    def leave(self, process: ForkedProcess, *, whole: bool) -> None:
        """Take a process back when it waits for an order, end it when it was left in the middle of one."""
        self._playing -= 1
        if not whole:
            process.end()
        loop = asyncio.get_running_loop()
        if whole:
            process.idle_since = loop.time()
            self._resting.append(process)
        if self._sweeper is None:
            self._sweeper = loop.call_later(IDLE_S, self._sweep)

    def _sweep(self) -> None:
        """End what nobody has used for a while; the last one takes the host along."""
        loop = asyncio.get_running_loop()
        late = [one for one in self._resting if loop.time() - one.idle_since >= IDLE_S]
        self._resting = [one for one in self._resting if one not in late]
        for process in late:
            process.end()
        over = not self._resting and not self._playing
        if over and self._host is not None:
            self._host.end()
        self._sweeper = None if over else loop.call_later(IDLE_S, self._sweep)

    async def close(self) -> None:
        """End every process."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for process in self._resting:
            process.end()
        self._resting.clear()
        if self._host is not None:
            self._host.end()


@dataclass(slots=True)
class IsolatedEpisode:
    """An episode that plays elsewhere. Leave it in every case."""

    pool: EnvironmentPool
    process: ForkedProcess
    progress: EpisodeProgress
    task: dict[str, object]
    whole: bool = True
    """Whether the process waits for an order, so that it can be used again."""

    def asks(self) -> list[Ask]:
        """Return who must act now; empty when the episode is over."""
        return self.progress.asks

    async def score(self, replies: list[Reply]) -> None:
        """Do nothing: a process scores what it plays."""

    async def act(self, replies: list[Reply]) -> None:
        """Move on. Raises EnvironmentBroke for an environment that raised, hung or died."""
        self.whole = False
        self.progress = await _within(self.pool.spec.step_timeout_s, self.process.ask(ReplyBatch(replies)))
        self.whole = True

    def outcome(self) -> Outcome:
        """Return the account; only when `asks` is empty."""
        assert self.progress.score is not None
        return outcome_of(self.progress.score)

    def leave(self) -> None:
        """Let go of the process."""
        self.pool.leave(self.process, whole=self.whole)


async def _within(limit: float, answer: Awaitable[T]) -> T:
    try:
        async with asyncio.timeout(limit):
            return await answer
    except TimeoutError as late:
        raise EnvironmentBroke(f"step: no answer within {limit:g} s") from late
