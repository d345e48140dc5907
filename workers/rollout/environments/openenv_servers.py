"""A server of OpenEnv, as processes know it that do not play it: its one seat, and that it speaks in messages."""

import random

from flexmarl.contracts.specification.openenv import PLAYER, OpenEnvUrl
from workers.rollout.environments.base import Environment, Family


class OpenEnvFamily(Family[OpenEnvUrl]):
    Options = OpenEnvUrl

    def __init__(self, spec: OpenEnvUrl) -> None:
        super().__init__(spec)
        self.roles = (PLAYER,)

    def make(self, task_seed: int, held_out: bool, rng: random.Random) -> Environment:
        raise ValueError("a server of OpenEnv plays where it runs, in sessions of a rollout worker")
