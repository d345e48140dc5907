"""What reward functions are given and give: one ended episode in, what it earned out.

Invariants: a function keeps nothing between episodes, so any worker may compute any reward, twice if need be, and the
first result counts. It names every failure; one that may pass is tried again, as often as the specification says.
"""

from typing import Protocol

import msgspec

ACTOR, QUEUE = "score_episode", "reward"
"""The Dramatiq actor, and how its queues' names begin; the pool follows."""


class TurnWords(msgspec.Struct, frozen=True):
    """One turn, as words."""

    role: str
    turn: int
    prompt: str
    reply: str
    tokens: int
    """Of the reply."""


class Played(msgspec.Struct, frozen=True):
    """An ended episode. Scores are those of its environment."""

    draw: int
    member: int
    attempt: int
    environment: str
    task: dict[str, object]
    turns: list[TurnWords]
    scores: dict[str, float]
    team_score: float
    solved: bool
    facts: dict[str, float]


class Earned(msgspec.Struct, frozen=True):
    """What an episode earned."""

    scores: dict[str, float]
    """Of every role that the environment scored, and of nobody else."""
    team_score: float
    facts: dict[str, float] = {}
    """Named figures beside the environment's own."""


class RewardFailed(Exception):
    """A try gave no reward."""

    def __init__(self, reason: str, may_pass: bool) -> None:
        super().__init__(reason, may_pass)
        self.reason, self.may_pass = reason, may_pass

    def __str__(self) -> str:
        return self.reason


class RewardFunction(Protocol):
    async def __call__(self, played: Played) -> Earned:
        """Compute a reward, within the time that its specification gives a try. Raises RewardFailed."""

    async def close(self) -> None:
        """Let go of connections."""
