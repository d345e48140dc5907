"""What an episode earns: what its environment says, or what a reward function makes of it once it has ended."""

from typing import Annotated, Literal

from pydantic import Field

from flexmarl.contracts.base import Strict
from flexmarl.contracts.ids import Name

FUNCTIONS = "flexmarl.rewards"
"""Group of the entry points that are reward functions."""


class EnvironmentReward(Strict):
    """The environment's own scores, in step with the episode."""

    type: Literal["environment"] = "environment"


class QueuedReward(Strict):
    """A reward function: it knows one ended episode and nothing else, and is computed apart from play, in a queue."""

    timeout_s: float = Field(default=60.0, gt=0.0, le=3600.0)
    """How long one try may take."""
    max_tries: int = Field(default=3, ge=1, le=10)
    """Tries that a reward has; a worker that dies at one has used it up."""
    wait_s: float = Field(default=600.0, gt=0.0, le=86_400.0)
    """How long an ended episode waits for its reward, the queue and all tries included, before it counts as failed.
    This wait is no part of `batch.episode_timeout_s`."""


class Brevity(QueuedReward):
    """The environment's scores, less what each role has said."""

    type: Literal["brevity"] = "brevity"
    cost_per_token: float = Field(default=0.01, ge=0.0, le=1000.0)
    """Taken off a role's score for each of its tokens, and off the team's for each token of anybody."""


class ScoringService(QueuedReward):
    """Scores of an HTTP endpoint that is sent the episode: a judge model, a verifier, a program of your own."""

    type: Literal["service"] = "service"
    url: str = Field(
        pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$", max_length=500, examples=["https://judge.example.org/score"]
    )
    """Where episodes are posted. Its host must be allowed on the workers that compute rewards."""
    secret: str = Field(default="", pattern=r"^([A-Z][A-Z0-9_]{0,63})?$", examples=["JUDGE_KEY"])
    """Name of the secret that is sent as a bearer token, never its value, which is FLEXMARL_EXTERNAL_SECRET_<name> on
    these workers. Empty: none is sent."""


class FunctionReward(QueuedReward):
    """Scores of a Python function that a package installs, computed in a process of its own."""

    type: Literal["function"] = "function"
    name: Name = Field(examples=["politeness"])
    """Of its entry point in the group `flexmarl.rewards`, on every machine that computes rewards."""
    settings: dict[Name, bool | int | float | str] = {}
    """Passed to the function with each episode."""


RewardSpec = Annotated[EnvironmentReward | Brevity | ScoringService | FunctionReward, Field(discriminator="type")]
