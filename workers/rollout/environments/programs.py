"""An agent program, as processes know it that do not play it: its seats, and that it speaks in messages."""

import random

from flexmarl.contracts.specification.program import ProgramEnvironment
from workers.rollout.environments.base import Environment, Family


class ProgramFamily(Family[ProgramEnvironment]):
    Options = ProgramEnvironment

    def __init__(self, spec: ProgramEnvironment) -> None:
        super().__init__(spec)
        self.roles = spec.seats

    def make(self, task_seed: int, held_out: bool, rng: random.Random) -> Environment:
        raise ValueError("a program plays outside of this installation, through the gateway of a rollout worker")
