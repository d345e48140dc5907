"""A family whose episodes play in processes of their own, for the kit, which knows nothing of processes."""

import asyncio
import random

from workers.rollout.environments.base import Ask, Environment, Family, Outcome, Reply
from workers.rollout.isolation import EnvironmentPool, IsolatedEpisode

_SEEDED = {random.Random(seed).getstate(): seed for seed in range(100)}
"""The kit gives generators, a process wants their seeds."""


class Elsewhere:
    """Takes from the family what needs no playing."""

    def __init__(self, pool: EnvironmentPool, family: Family, loop: asyncio.AbstractEventLoop) -> None:
        self._troupe, self._family, self._loop = pool, family, loop
        self.roles = family.roles

    def make(self, task_seed: int, held_out: bool, rng: random.Random) -> Environment:
        begun = self._troupe.begin(task_seed, held_out, _SEEDED[rng.getstate()])
        return _Live(self._loop.run_until_complete(begun), self._loop)


class _Live:
    def __init__(self, live: IsolatedEpisode, loop: asyncio.AbstractEventLoop) -> None:
        self._live, self._loop = live, loop

    def asks(self) -> list[Ask]:
        return self._live.asks()

    def act(self, replies: list[Reply]) -> None:
        self._loop.run_until_complete(self._live.act(replies))

    def outcome(self) -> Outcome:
        return self._live.outcome()

    def describe(self) -> dict[str, object]:
        return self._live.task
