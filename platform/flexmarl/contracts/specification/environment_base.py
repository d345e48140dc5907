"""What every environment's settings have: delays, deadlines where it plays apart, and facts that need no playing."""

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from flexmarl.contracts.base import Strict
from flexmarl.contracts.plugins import PluginOptions

Stages = tuple[tuple[str, ...], ...]
"""Who is asked at once, in turn."""


class Latency(Strict):
    """Artificial delay added to an environment's answers, capped."""

    shape: Literal["log_normal", "normal"] = "log_normal"
    scale_s: float = Field(ge=0.0, le=60.0)
    """Median of a log-normal delay, mean of a normal one (truncated at 0)."""
    sigma: float = Field(default=1.0, ge=0.0, le=60.0)
    """Standard deviation: of the logarithm for log-normal, in seconds for normal."""
    cap_s: float = Field(default=10.0, gt=0.0, le=600.0)
    slow_share: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of slow episodes: their first answer takes `slow_s` longer, regardless of the cap."""
    slow_s: float = Field(default=0.0, ge=0.0, le=3600.0)

    @model_validator(mode="after")
    def _wide_only_when_normal(self) -> Self:
        if self.shape == "log_normal" and self.sigma > 3.0:
            raise ValueError(
                f"sigma {self.sigma:g} is too large for a log-normal delay; use at most 3, or shape: normal"
            )
        return self


@dataclass(frozen=True, slots=True)
class RoleFacts:
    """A seat of an environment: bounds of its model calls per episode, and whom it hears from."""

    name: str
    min_turns: int
    max_turns: int
    hears: tuple[str, ...] = ()
    reply_tokens: int | None = None
    """Exact length of every reply: no word ends it earlier. None where a stop word may."""
    opens: bool = False
    """Asked before anybody has spoken."""
    graded: bool = True
    """It has a score in the outcome; whoever only grades others has none."""


@dataclass(frozen=True, slots=True)
class EnvironmentFacts:
    title: str
    roles: tuple[RoleFacts, ...]
    random_score: float | None
    """Mean team score of uniformly random legal play; None where it was not determined for these settings."""
    optimum: float
    """Highest reachable mean team score."""
    best_score: float
    """Highest team score of a single episode; the lowest is 0."""
    solved_text: str
    """What "solved" means, for people."""
    rewards_turns: bool = False
    """It says what a turn earned as soon as that is over, and not only what the episode did."""
    stages: Stages = ()
    """Roles that are asked at once, in turn, in the longest episode; empty where it is not stated."""


class EnvironmentOptions(PluginOptions):
    """Which game the team plays."""

    latency: Latency | None = None
    """Artificial delay before each environment answer; none by default."""

    isolated: ClassVar[bool] = False
    """Whether it plays in processes of its own: then no copy of an episode can be made."""
    converses: ClassVar[bool] = False
    """Whether it speaks in messages, to models with a chat template; else in words of a vocabulary of its own."""
    lists_held_out: ClassVar[bool] = False
    """Whether its held-out tasks are a short list: evaluations go through it in order, so that each is played."""
    lists_training: ClassVar[bool] = False
    """Whether its training tasks are a list of which each is played once per epoch: a task's seed is its draw."""
    tells_task: ClassVar[bool] = False
    """Whether what it tells of a task before anybody speaks is all of it: others' replies to it can be checked."""
    tells_answer: ClassVar[bool] = False
    """Whether an episode ends with an answer, which can be compared with that of others to the same task."""
    demonstrates: ClassVar[bool] = False
    """Whether it has correct replies for a supervised warm-up."""

    @property
    def training_tasks(self) -> int | None:
        """Return how many training tasks there are, numbered from 0; None: any number, each made of its seed."""
        return None

    def task_of(self, task_seed: int) -> int | None:
        """Return which of its training tasks a task seed is, where tasks are not chosen; None: one of its own."""
        return None

    def facts(self) -> EnvironmentFacts:
        """Return what every process knows of the environment without playing it: roles, turns, reference scores."""
        raise NotImplementedError(f"{type(self).__name__} has no facts()")

    def longest_reply(self, role: str) -> int | None:
        """Return the most tokens that it asks a role for at once; None: it does not say."""
        exact = next((one.reply_tokens for one in self.facts().roles if one.name == role), None)
        return exact or getattr(self, "reply_tokens", None)  # a field of those that converse

    @classmethod
    def check(cls) -> None:
        """Raise where the options cannot be used: their plain values must have facts."""
        cls.model_validate({}).facts()


class IsolatedEnvironmentOptions(EnvironmentOptions):
    """An environment that plays in processes of its own, which a deadline may kill."""

    setup_timeout_s: float = Field(default=120.0, gt=0.0, le=600.0)
    """Timeout for starting an episode, including its process."""
    step_timeout_s: float = Field(default=20.0, gt=0.0, le=600.0)
    """Timeout for the environment's answer to a move."""
    score_timeout_s: float = Field(default=20.0, gt=0.0, le=600.0)
    """Timeout for the score of an episode that is over."""
    close_timeout_s: float = Field(default=5.0, gt=0.0, le=600.0)
    """Timeout for letting go of an episode; then its process is killed. The episode counts nevertheless."""

    isolated: ClassVar[bool] = True
