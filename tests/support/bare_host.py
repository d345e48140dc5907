"""A host of isolated environments whose game is in a package that nobody has installed."""

from flexmarl.algorithms.registry import Registry
from flexmarl.contracts.specification.environment import ENVIRONMENT
from tests.support.misbehaving_host import Misbehaving
from workers.rollout.environments import registry
from workers.rollout.isolation import host


class Missing(Misbehaving):
    modules = ("no_such_game",)


if __name__ == "__main__":
    registry.FAMILIES = Registry(ENVIRONMENT, [Missing])
    host.main()
