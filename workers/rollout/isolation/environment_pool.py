"""A run's isolated environments, as the rollout worker sees them: episodes that can be begun, moved and left.

Invariant: a process plays one episode at a time, so what hangs, dies or seeds its process does so to one episode alone.
"""

from dataclasses import dataclass

from flexmarl.contracts.specification.environment_base import IsolatedEnvironmentOptions
from workers.rollout.environments.base import Ask, Outcome, Reply
from workers.rollout.isolation.keeper import within
from workers.rollout.isolation.lines import Begin, EpisodeProgress, ReplyBatch, ScoreOrder, outcome_of
from workers.rollout.isolation.process_pool import ProcessPool
from workers.rollout.isolation.processes import EnvironmentBroke, ForkedProcess, ForkHost, start_installed


@dataclass(slots=True)
class EnvironmentPool(ProcessPool):
    """The processes of one run's environments in one rollout worker."""

    spec: IsolatedEnvironmentOptions

    @property
    def title(self) -> str:
        return self.spec.type

    @property
    def close_timeout_s(self) -> float:
        return self.spec.close_timeout_s

    async def begin(self, task_seed: int, held_out: bool, seed: int) -> "IsolatedEpisode":
        """Begin an episode. Raises EnvironmentBroke when it does not begin in time."""
        return await self.booted(self.spec.setup_timeout_s, self._begin(Begin(task_seed, held_out, seed)))

    async def _begin(self, order: Begin) -> "IsolatedEpisode":
        process, progress = await self.taken(order, EpisodeProgress)
        episode = IsolatedEpisode(self, process, progress, progress.task)
        try:
            await episode.tallied()
        except BaseException:  # broken or cancelled
            self.leave(process, whole=False)
            raise
        return episode

    def started(self) -> ForkHost:
        """Start the host of this environment."""
        return start_installed(self.spec.model_dump_json())


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
