"""A server of NeMo Gym, as processes know it that do not play it: its one seat, and that it speaks in messages."""

import random

from flexmarl.contracts.specification.nemo_gym import NemoGymUrl
from flexmarl.contracts.specification.openenv import PLAYER
from workers.rollout.environments.base import Environment, Family


class NemoGymFamily(Family[NemoGymUrl]):
    Options = NemoGymUrl

    def __init__(self, spec: NemoGymUrl) -> None:
        super().__init__(spec)
        self.roles = (PLAYER,)

    def make(self, task_seed: int, held_out: bool, rng: random.Random) -> Environment:
        raise ValueError("a server of NeMo Gym plays where it runs, in sessions of a rollout worker")
