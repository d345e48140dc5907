"""A host of isolated environments whose game is in a package that nobody has installed."""

from tests.support.misbehaving_host import Misbehaving
from workers.rollout.environments import registry
from workers.rollout.isolation import host


class Missing(Misbehaving):
    modules = ("no_such_game",)


if __name__ == "__main__":
    registry.BUILT_IN["pettingzoo"] = Missing
    host.main()
