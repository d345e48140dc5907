"""From an environment's settings to the class that plays it."""

from typing import Any

from flexmarl.algorithms.registry import Registry
from flexmarl.contracts.specification.environment import ENVIRONMENT, EnvironmentSpec
from workers.rollout.environments.arithmetic import ArithmeticFamily
from workers.rollout.environments.base import Family
from workers.rollout.environments.dataset_questions import DatasetFamily
from workers.rollout.environments.hot_cold import HotColdFamily
from workers.rollout.environments.kitchen import KitchenFamily
from workers.rollout.environments.logged_episodes import LoggedFamily
from workers.rollout.environments.nemo_gym_servers import NemoGymFamily
from workers.rollout.environments.openenv_servers import OpenEnvFamily
from workers.rollout.environments.packaged import PackageFamily
from workers.rollout.environments.pettingzoo_games import PettingZooFamily
from workers.rollout.environments.programs import ProgramFamily
from workers.rollout.environments.reasoning_gym_questions import ReasoningGymFamily
from workers.rollout.environments.reference_game import ReferenceGameFamily
from workers.rollout.environments.shop import ShopFamily
from workers.rollout.environments.sums import SumsFamily
from workers.rollout.environments.textarena_games import TextArenaFamily

FAMILIES: Registry[Family[Any]] = Registry(
    ENVIRONMENT,
    (
        ReferenceGameFamily,
        HotColdFamily,
        ArithmeticFamily,
        KitchenFamily,
        SumsFamily,
        DatasetFamily,
        LoggedFamily,
        ReasoningGymFamily,
        ShopFamily,
        PettingZooFamily,
        TextArenaFamily,
        PackageFamily,
        OpenEnvFamily,
        NemoGymFamily,
        ProgramFamily,
    ),
)


def family_of(spec: EnvironmentSpec) -> Family[Any]:
    """Return the family that plays an environment. Raises LookupError for a type that this process does not have."""
    return FAMILIES.make(spec)
