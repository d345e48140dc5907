"""The settings of the plug-ins. All that the web service imports of them: nothing here but FlexMARL's contracts.

The docstring of a class is what pages say of the plug-in, that of a field its help; bounds are checked where a run is
submitted. `implementation` names the code, which workers import.
"""

from typing import ClassVar, Literal

from pydantic import Field

from flexmarl.contracts.specification.advantages import TurnRewardOptions
from flexmarl.contracts.specification.environment_base import EnvironmentFacts, IsolatedEnvironmentOptions, RoleFacts
from flexmarl.contracts.specification.losses import RowLossOptions
from flexmarl.contracts.specification.movers import MoverOptions
from flexmarl.contracts.specification.reward import QueuedReward
from flexmarl.contracts.specification.routers import RouterOptions

WORDS = ("apple", "bread", "cloud", "drum", "eagle", "field", "grass", "house")
ROLES = ("left", "right")


class SameWordOptions(IsolatedEnvironmentOptions):
    """Two players see the same words in different orders, and score if both say the same one."""

    type: Literal["same_word"] = "same_word"
    words: int = Field(default=6, ge=2, le=len(WORDS))
    """Number of words in the game."""
    offered: int = Field(default=3, ge=2, le=len(WORDS))
    """Number of words shown to the players in an episode, at most those of the game."""

    implementation: ClassVar[str] = "sample_plugins.environments:SameWord"

    @property
    def shown(self) -> int:
        """Words that the players see."""
        return min(self.offered, self.words)

    def facts(self) -> EnvironmentFacts:
        roles = tuple(RoleFacts(name, 1, 1, reply_tokens=1, opens=True) for name in ROLES)
        return EnvironmentFacts("Same word", roles, 1.0 / self.shown, 1.0, 1.0, "both say the same word")


class SmoothClipOptions(RowLossOptions):
    """The ratio p / p_engine, bounded smoothly per token."""

    type: Literal["smooth_clip"] = "smooth_clip"
    width: float = Field(default=0.2, gt=0.0, le=10.0)
    """Maximum distance of the ratio from 1."""

    implementation: ClassVar[str] = "sample_plugins.losses:SmoothClip"


class MedianBaselineOptions(TurnRewardOptions):
    """Reward minus the median of the group, bounded on both sides."""

    type: Literal["median_baseline"] = "median_baseline"
    bound: float = Field(default=1.0, gt=0.0, le=1000.0)
    """Bound of the absolute advantage."""

    implementation: ClassVar[str] = "sample_plugins.advantages:MedianBaseline"


class RoundRobinOptions(RouterOptions):
    """Engines take turns, in the order of their names."""

    type: Literal["round_robin"] = "round_robin"
    requests: int = Field(default=1, ge=1, le=10_000)
    """Consecutive requests per engine."""

    implementation: ClassVar[str] = "sample_plugins.routers:RoundRobin"


class LongestQueueOptions(MoverOptions):
    """A slot goes from the shortest queue to the longest one."""

    type: Literal["longest_queue"] = "longest_queue"
    turns: int = Field(default=8, ge=1, le=100_000)
    """Difference in queued turns per engine from which a slot moves."""

    implementation: ClassVar[str] = "sample_plugins.movers:LongestQueue"


class ScaledScoresOptions(QueuedReward):
    """The environment's scores times a factor."""

    type: Literal["scaled_scores"] = "scaled_scores"
    factor: float = Field(default=1.0, gt=0.0, le=1000.0)
    """What scores are multiplied with."""

    implementation: ClassVar[str] = "sample_plugins.rewards:scaled"
    reproducible: ClassVar[bool] = True
