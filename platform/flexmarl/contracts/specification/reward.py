"""What an episode earns: what its environment says, or what a reward function makes of it once it has ended."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from flexmarl.contracts.plugins import Kind, PluginOptions
from flexmarl.contracts.problems import Problem

if TYPE_CHECKING:
    from flexmarl.contracts.specification.experiment import ExperimentSpec


class RewardOptions(PluginOptions):
    """Where an episode's reward comes from: the environment's own scores, or a reward function."""


class EnvironmentReward(RewardOptions):
    """The environment's own scores."""

    type: Literal["environment"] = "environment"


class QueuedReward(RewardOptions):
    """A reward function: computed from one ended episode alone, outside of play, in a queue.

    `implementation` of a plug-in is a function of an episode and the settings, `package.module:function`.
    """

    timeout_s: float = Field(default=60.0, gt=0.0, le=3600.0)
    """Timeout of one attempt."""
    max_tries: int = Field(default=3, ge=1, le=10)
    """Maximum attempts per reward; a crash of the worker counts as one."""
    wait_s: float = Field(default=600.0, gt=0.0, le=86_400.0)
    """Maximum time from the end of an episode to its reward, queueing and all attempts included, before it counts as
    failed; not included in `batch.episode_timeout_s`."""

    reproducible: ClassVar[bool] = False
    """Whether the same episode earns the same bits wherever and whenever it is scored."""

    def refusals(self, spec: "ExperimentSpec") -> Iterator[Problem]:
        """Refuse rewards of single turns, and the promise of bits where nobody can hold it."""
        if spec.algorithm.advantage.per_turn:
            yield Problem(
                pointer="/algorithm/advantage/per_turn",
                code="needs_environment_reward",
                detail=f"per_turn compares rewards of turns, but {self.type} rewards whole episodes.",
                hint="Set false, or reward.type: environment.",
            )
        if self.wait_s < self.timeout_s:
            yield Problem(
                pointer="/reward/wait_s",
                code="out_of_range",
                detail=f"wait_s must be at least timeout_s, which is {self.timeout_s:g}; it is {self.wait_s:g}.",
                hint=f"Set {self.timeout_s:g}.",
            )
        if spec.mechanisms.ordered and not self.reproducible:
            yield Problem(
                pointer="/mechanisms/ordered",
                code="not_with_foreign_reward",
                detail=f"Ordered runs must be bitwise reproducible; a {self.type} reward is not.",
                hint="Set false.",
            )


class Brevity(QueuedReward):
    """The environment's scores minus a cost per generated token."""

    type: Literal["brevity"] = "brevity"
    cost_per_token: float = Field(default=0.01, ge=0.0, le=1000.0)
    """Cost per token: a role's own tokens for its score, all tokens for the team score."""

    reproducible: ClassVar[bool] = True


class ScoringService(QueuedReward):
    """Scores from an HTTP endpoint that receives the episode: a judge model, a verifier, a program of your own."""

    type: Literal["service"] = "service"
    url: str = Field(
        pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$", max_length=500, examples=["https://judge.example.org/score"]
    )
    """URL that episodes are posted to. Its host must be allowed on the workers that compute rewards."""
    secret: str = Field(default="", pattern=r"^([A-Z][A-Z0-9_]{0,63})?$", examples=["JUDGE_KEY"])
    """Name of the secret sent as a bearer token; its value is FLEXMARL_EXTERNAL_SECRET_<name> on these workers. Empty:
    none."""


REWARD: Kind[RewardOptions] = Kind(
    "reward", "/reward", RewardOptions, (EnvironmentReward, Brevity, ScoringService), QueuedReward
)
