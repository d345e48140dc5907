"""Where an environment's episodes play: in this process, in processes of their own, or in programs of others.

Built-in environments are pure code that takes microseconds a move and play here; games of other packages play elsewhere
(`workers.rollout.isolation`), and agent programs outside of the installation (`workers.rollout.gateway`), both under
deadlines. Whoever runs an episode sees no difference.
"""

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flexmarl.contracts.specification.environment import EnvironmentSpec
from flexmarl.contracts.specification.environment_base import IsolatedEnvironmentOptions
from workers.rollout.environments.base import Ask, Environment, Family, Outcome, Reply, RewardsTurns, ScoresApart
from workers.rollout.environments.registry import family_of
from workers.rollout.gateway.stage import ProgramStage
from workers.rollout.isolation import EnvironmentPool
from workers.rollout.live_episode import LiveEpisode
from workers.rollout.nemo_gym_urls import NemoGymPool
from workers.rollout.openenv_urls import OpenEnvPool
from workers.rollout.tool_use import ToolStage

Stage = Family[Any] | EnvironmentPool | OpenEnvPool | NemoGymPool | ProgramStage | ToolStage


def stage_of(spec: EnvironmentSpec) -> Stage:
    """Return where a run's episodes play. Raises LookupError for a type nobody provides."""
    return EnvironmentPool(spec) if isinstance(spec, IsolatedEnvironmentOptions) else family_of(spec)


async def begin(
    stage: Stage,
    task_seed: int,
    held_out: bool,
    seed: int,
    episode: tuple[int, int, int],
    count: Callable[[Ask], int],
) -> LiveEpisode:
    """Begin an episode. `seed` is of the generator that drives what happens inside it.

    `episode` is its draw, member and attempt; `count` says how many ids an ask would have as the first one of its seat.
    """
    if isinstance(stage, EnvironmentPool | OpenEnvPool | NemoGymPool):
        return await stage.begin(task_seed, held_out, seed)
    if isinstance(stage, ProgramStage):
        return await stage.begin(task_seed, held_out, seed, episode, count)
    if isinstance(stage, ToolStage):
        return await stage.around(begin_here(stage.family, task_seed, held_out, seed))
    return begin_here(stage, task_seed, held_out, seed)


def begin_here(stage: Stage, task_seed: int, held_out: bool, seed: int) -> "Here":
    """Begin an episode of which copies can be made. Raises ValueError where it would play elsewhere."""
    if isinstance(stage, EnvironmentPool | OpenEnvPool | NemoGymPool | ProgramStage | ToolStage):
        raise ValueError("what plays outside of this process has a state that cannot be copied")
    environment = stage.make(task_seed, held_out, random.Random(seed))
    return Here(environment, stage, environment.describe())


async def leave_stage(stage: Stage) -> None:
    """Let go of a stage that nobody uses any more."""
    await stage.close()


@dataclass(slots=True)
class Here:
    """An episode that plays in this process."""

    environment: Environment
    family: Family[Any]
    task: dict[str, object]

    def asks(self) -> list[Ask]:
        return self.environment.asks()

    async def score(self, replies: list[Reply]) -> None:
        if isinstance(self.environment, ScoresApart):
            await self.environment.score(replies)

    async def act(self, replies: list[Reply]) -> None:
        self.environment.act(replies)

    def outcome(self) -> Outcome:
        return self.environment.outcome()

    def leave(self, reason: str = "") -> None:
        return

    def turn_rewards(self) -> dict[tuple[str, int], float]:
        """Return what turns have earned so far; nothing where the environment scores episodes alone."""
        return self.environment.turn_rewards() if isinstance(self.environment, RewardsTurns) else {}

    def copied(self) -> "Here":
        """Return the same episode once more, its generator included: neither feels what the other goes through."""
        return Here(copy.deepcopy(self.environment, {id(self.family): self.family}), self.family, self.task)
