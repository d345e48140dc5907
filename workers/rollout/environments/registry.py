"""From an environment's settings to the class that plays it.

Built-in environments are the dict below; others come from entry points of the group `flexmarl.environments`, named by
their type. A name that is taken twice raises instead of shadowing.
"""

from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from flexmarl.contracts.spec.environment import EnvironmentSpec
from workers.rollout.environments.arithmetic import ArithmeticFamily
from workers.rollout.environments.base import Family
from workers.rollout.environments.hot_cold import HotColdFamily
from workers.rollout.environments.kitchen import KitchenFamily
from workers.rollout.environments.pettingzoo_games import PettingZooFamily
from workers.rollout.environments.reference_game import ReferenceGameFamily
from workers.rollout.environments.textarena_games import TextArenaFamily

Factory = Callable[[Any], Family]

BUILT_IN: dict[str, Factory] = {
    "reference_game": ReferenceGameFamily,
    "hot_cold": HotColdFamily,
    "arithmetic": ArithmeticFamily,
    "kitchen": KitchenFamily,
    "pettingzoo": PettingZooFamily,
    "textarena": TextArenaFamily,
}

GROUP = "flexmarl.environments"


def family_of(spec: EnvironmentSpec) -> Family:
    """Return the family that plays an environment. Raises LookupError for a type nobody provides."""
    known = registered()
    if spec.type not in known:
        raise LookupError(f"no environment is called {spec.type!r}; available: {', '.join(sorted(known))}")
    return known[spec.type](spec)


@cache
def registered() -> dict[str, Factory]:
    """Return all environments of this installation. Read once per process."""
    return merged(BUILT_IN, list(entry_points(group=GROUP)))


def merged(built_in: dict[str, Factory], found: list[EntryPoint]) -> dict[str, Factory]:
    """Add entry points to the built-in environments. Raises ValueError for a name that is taken."""
    known = dict(built_in)
    for point in found:
        if point.name in known:
            raise ValueError(f"the environment name {point.name!r} of {point.value} is taken")
        known[point.name] = point.load()
    return known
