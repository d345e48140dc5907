"""An environment of a package, as processes know it that do not play it: its seats, and that it speaks in messages."""

import random

from flexmarl.contracts.specification.package import PackageEnvironment
from workers.rollout.environments.base import Environment, Family


class PackageFamily(Family[PackageEnvironment]):
    Options = PackageEnvironment

    def __init__(self, spec: PackageEnvironment) -> None:
        super().__init__(spec)
        self.roles = tuple(role.name for role in spec.facts().roles)

    def make(self, task_seed: int, held_out: bool, rng: random.Random) -> Environment:
        raise ValueError("an environment of a package plays in the package's own interpreter")
