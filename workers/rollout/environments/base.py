"""The environment protocol: turn-based, single-use, without I/O of its own.

Invariants: an `Environment` is one attempt of one episode and is never reset. It draws randomness only from the
generator it was built with. Text goes in and out; token ids never reach an environment. A raised exception is data: the
runner records a failed attempt with the boundary `environment`.

An environment speaks either in words of a closed vocabulary, one token each, with the whole observation in every ask,
or in messages, for models with a chat template: then an ask holds what is new to its seat, and the model's end of turn
ends the reply.
"""

import random
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol, TypeVar, runtime_checkable

from flexmarl.algorithms.registry import Plugin
from flexmarl.contracts.specification.environment_base import EnvironmentOptions
from flexmarl.language.messages import Message


@dataclass(frozen=True, slots=True)
class Ask:
    """One model call the environment waits for. Asks of one round are independent and run at once."""

    role: str
    observation: str
    """Prompt as blank-separated words of the environment's vocabulary."""
    max_tokens: int
    allowed: tuple[str, ...] = ()
    """Words the reply may consist of; empty allows the whole vocabulary."""
    stop: tuple[str, ...] = ()
    """Words that end the reply."""
    messages: tuple[Message, ...] = ()
    """Of an environment that speaks in messages: what the seat has not seen yet; then `observation` is empty."""
    tools: tuple[dict[str, Any], ...] = ()
    """Of an environment that speaks in messages: what the seat may call now, as JSON schemas of functions."""
    conversation: int = 0
    """Of an environment that speaks in messages: which of its conversations the seat goes on with."""
    fresh: bool = False
    """Of an environment that speaks in messages: the seat forgets what it has read and said in the conversation."""
    broken: str = ""
    """Why it forgets, where that counts as a break of its chain; empty where it is how the environment is played."""
    aside: bool = False
    """Of an environment that speaks in messages: the reply is for the environment alone. It is no turn of the seat, in
    no row, and never trained on."""
    structured: str = ""
    """What the reply must be, a `StructuredOutput` as JSON; empty: what its agent's sampling says."""


@dataclass(frozen=True, slots=True)
class Reply:
    role: str
    text: str
    """What was said, without what ends it."""
    message: Message | None = None
    """Where the environment speaks in messages: the same with its thoughts and its calls of tools."""
    finish: str = "stop"
    """`stop`: it is whole; `length`: it was cut off at the most tokens."""
    tokens: int = 0
    """How many were sampled."""
    prompt_tokens: int = 0
    """Where the environment speaks in messages: how many the seat had read before."""


@dataclass(frozen=True, slots=True)
class JudgedAnswer:
    """An answer with all that was said of it."""

    role: str
    turn: int
    parts: dict[str, float]
    """What each score says of it, by name, from 0 to 1."""
    why: dict[str, str]
    """In words, of the scores that say why."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Final account of an episode."""

    scores: dict[str, float]
    """Episode reward per role."""
    team_score: float
    solved: bool
    turn_rewards: dict[tuple[str, int], float] = field(default_factory=dict)
    """Reward of single turns, by role and turn index; absent turns got 0."""
    facts: dict[str, float] = field(default_factory=dict)
    judged: tuple[JudgedAnswer, ...] = ()
    """Where answers have several scores: each answer, in the order in which they were given."""
    remarks: dict[tuple[str, int], str] = field(default_factory=dict)
    """What people read behind single turns, by role and turn index."""
    answer: str = ""
    """What the team answered; empty where it has not, or where there are no answers."""


class RewardMissing(Exception):
    """What an episode earned is not known: it is missing, and never 0. The text says why."""


class Environment(Protocol):
    def asks(self) -> list[Ask]:
        """Return who must act now; empty when the episode is over."""

    def act(self, replies: list[Reply]) -> None:
        """Take the replies to the last asks, in their order, and move on. Call again `asks` afterwards."""

    def outcome(self) -> Outcome:
        """Return the account; only when `asks` is empty."""

    def describe(self) -> dict[str, object]:
        """Return the task for people: `{"title": str, "facts": {label: text}}`."""


@runtime_checkable
class RewardsTurns(Protocol):
    """An environment that says what a turn earned as soon as that is over."""

    def turn_rewards(self) -> dict[tuple[str, int], float]:
        """Return what turns have earned so far, by role and turn index; absent turns got 0."""


@runtime_checkable
class ScoresApart(Protocol):
    """An environment some of whose scores take long, so that they are computed elsewhere before it moves on."""

    async def score(self, replies: list[Reply]) -> None:
        """Have the replies to the last asks scored. Raises RewardMissing."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A correct reply to an observation, for the supervised warm-up."""

    role: str
    observation: str
    reply: str
    allowed: tuple[str, ...] = ()


EnvironmentSettings = TypeVar("EnvironmentSettings", bound=EnvironmentOptions)


class Family(Plugin[EnvironmentSettings], ABC):
    """An environment with its settings: knows its roles and words, makes episodes from task seeds."""

    roles: tuple[str, ...]
    modules: tuple[str, ...] = ()
    """What playing imports."""

    def prepare(self) -> None:
        """Do once what every episode needs; a process that is forked for many episodes does it before."""
        for module in self.modules:
            import_module(module)

    def vocabulary(self) -> tuple[str, ...]:
        """Return all words in a fixed order; index 0..2 are `<pad>`, `<bos>`, `<eos>`. Empty: it speaks in messages."""
        return ()

    @abstractmethod
    def make(self, task_seed: int, held_out: bool, rng: random.Random) -> Environment:
        """Make an episode. Equal seeds give the same task; `rng` drives what happens inside the episode."""

    async def close(self) -> None:
        """End what episodes were scored by; nothing by default."""

    def demonstrations(self, rng: random.Random, count: int) -> list[Demonstration]:
        """Return correct behaviour for warm-up; empty when the environment has none."""
        return []
