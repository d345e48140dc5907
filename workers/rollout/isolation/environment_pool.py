"""A run's isolated environments, as the rollout worker sees them: episodes that can be begun, moved and left.

Invariants. A process plays one episode at a time, so what hangs, dies or seeds its process does so to one episode
alone. Every answer has a deadline; a process that misses it is killed and its episode told why; the others go on. A
process is used again only after an episode that was left between two moves and let go of in time. Whoever stops
waiting, by cancellation too, leaves no process behind that works for nobody. Used from one event loop.
"""

import asyncio
from dataclasses import dataclass, field

import structlog

from flexmarl.contracts.specification.environment_base import IsolatedEnvironmentOptions
from workers.rollout.environments.base import Ask, Outcome, Reply
from workers.rollout.isolation.keeper import IDLE_S, HostKeeper, within
from workers.rollout.isolation.lines import Begin, Close, Closed, EpisodeProgress, ReplyBatch, ScoreOrder, outcome_of
from workers.rollout.isolation.processes import EnvironmentBroke, ForkedProcess, ForkHost, start_installed

log = structlog.get_logger(__name__)

CLOSING_S = 0.2
"""So long a new episode waits for a process that lets go of another one."""


@dataclass(slots=True)
class EnvironmentPool(HostKeeper):
    """The processes of one run's environments in one rollout worker."""

    spec: IsolatedEnvironmentOptions
    _resting: list[ForkedProcess] = field(default_factory=list)
    _closing: "set[asyncio.Task[None]]" = field(default_factory=set)

    async def begin(self, task_seed: int, held_out: bool, seed: int) -> "IsolatedEpisode":
        """Begin an episode. Raises EnvironmentBroke when it does not begin in time."""
        try:
            return await within("boot", self.spec.setup_timeout_s, self._begin(Begin(task_seed, held_out, seed)))
        except EnvironmentBroke as broke:
            self.late(broke)
            raise

    async def _begin(self, order: Begin) -> "IsolatedEpisode":
        if not self._resting and self._closing:  # one that is about to rest is had sooner than a new one
            await asyncio.wait(self._closing, timeout=CLOSING_S, return_when=asyncio.FIRST_COMPLETED)
        process = self._rested() or await self.hosted().fork()
        self._playing += 1
        try:
            progress = await process.ask(order, EpisodeProgress)
            episode = IsolatedEpisode(self, process, progress, progress.task)
            await episode.tallied()
        except BaseException:  # broken or cancelled: the process may still work, and nobody waits for it
            self.leave(process, whole=False)
            raise
        return episode

    def _rested(self) -> ForkedProcess | None:
        """Take a process that plays nothing and is still there."""
        while self._resting:
            process = self._resting.pop()
            if process.alive():
                return process
            process.end()
        return None

    def started(self) -> ForkHost:
        """Start the host of this environment."""
        return start_installed(self.spec.model_dump_json())

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
        """Have a process let go of its episode, whose account is given already; end it where it does not in time."""
        try:
            await within("close", self.spec.close_timeout_s, process.ask(Close(), Closed))
        except EnvironmentBroke as broke:
            log.warning("environment not closed", environment=self.spec.type, reason=str(broke))
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
        asked = self.process.ask(ReplyBatch(replies), EpisodeProgress)
        self.progress = await within("step", self.pool.spec.step_timeout_s, asked)
        await self.tallied()

    async def tallied(self) -> None:
        """Have an episode that is over say what it came to. Raises EnvironmentBroke."""
        self.whole = False
        if not self.progress.asks and self.progress.score is None:
            asked = self.process.ask(ScoreOrder(), EpisodeProgress)
            self.progress = await within("score", self.pool.spec.score_timeout_s, asked)
        self.whole = True

    def outcome(self) -> Outcome:
        """Return the account; only when `asks` is empty."""
        if self.progress.score is None:
            raise EnvironmentBroke("score: garbage: it gave no score")
        return outcome_of(self.progress.score)

    def leave(self, reason: str = "") -> None:
        """Let go of the process."""
        self.pool.leave(self.process, whole=self.whole)
