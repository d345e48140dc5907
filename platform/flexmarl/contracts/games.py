"""What every plane knows of the games of other packages: seats, turns, how rewards become scores.

The playing code lives in `workers.rollout.environments`; a conformance test plays every game and compares.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Sides = Literal["versus", "together", "alone"]


@dataclass(frozen=True, slots=True)
class SeatFacts:
    """A seat under the name its package gives it, and the most moves it makes in an episode."""

    name: str
    most_turns: int


@dataclass(frozen=True, slots=True)
class GameFacts:
    title: str
    package: str
    sides: Sides
    simultaneous: bool
    """Whether all seats move at once."""
    seats: tuple[SeatFacts, ...]
    worst: float
    """Lowest sum of rewards of a seat in an episode; also what an illegal move is worth."""
    best: float
    optimum: float
    """Highest mean score that play can reach, against random play where there are two sides. 1 where it is unknown."""
    random_score: float
    """Mean score of random legal play, against random play where there are two sides: computed or measured."""

    def played(self, opponent: str) -> tuple[SeatFacts, ...]:
        """Return the seats of agents; the rest plays at random."""
        return self.seats[:1] if opponent == "random" else self.seats

    def score(self, returns: Iterable[float]) -> float:
        """Return the score of a team: the mean of its seats' sums of rewards, from worst (0) to best (1)."""
        parts = [(min(max(one, self.worst), self.best) - self.worst) / (self.best - self.worst) for one in returns]
        return sum(parts) / len(parts)


def _seats(**turns: int) -> tuple[SeatFacts, ...]:
    return tuple(SeatFacts(name, most) for name, most in turns.items())


GAMES: dict[str, GameFacts] = {
    "pettingzoo/tictactoe": GameFacts(
        "Tic-tac-toe", "pettingzoo", "versus", False, _seats(player_1=5, player_2=4), -1.0, 1.0, 0.9974, 0.6484
    ),
    "pettingzoo/connect_four": GameFacts(
        "Connect four", "pettingzoo", "versus", False, _seats(player_0=21, player_1=21), -1.0, 1.0, 1.0, 0.56
    ),
    "pettingzoo/rps": GameFacts(
        "Rock, paper, scissors", "pettingzoo", "versus", True, _seats(player_0=5, player_1=5), -5.0, 5.0, 0.5, 0.5
    ),
    "pettingzoo/pursuit": GameFacts(
        "Pursuit", "pettingzoo", "together", True, _seats(pursuer_0=12, pursuer_1=12), 0.0, 1.0, 1.0, 0.04
    ),
    "textarena/nim": GameFacts(
        "Nim", "textarena", "versus", False, _seats(player_0=6, player_1=6), -1.0, 1.0, 1.0, 0.5
    ),
    "textarena/tic_tac_toe": GameFacts(
        "Tic-tac-toe in text", "textarena", "versus", False, _seats(player_0=5, player_1=4), -1.0, 1.0, 0.9974, 0.6484
    ),
    "textarena/guess_the_number": GameFacts(
        "Guess the number", "textarena", "alone", False, _seats(player_0=11), 0.0, 1.0, 1.0, 0.8342
    ),
}
"""Under `type/game`."""

DISTRIBUTIONS = {
    "pettingzoo": ("pettingzoo", "pygame", "scipy"),
    "textarena": ("textarena",),
    "reasoning_gym": ("reasoning_gym",),
}
"""Modules that an environment's type needs besides this project's own dependencies; all in the extra `environments`."""


def facts_of(kind: str, game: str) -> GameFacts:
    """Return the facts of a game by its environment's type and its name."""
    return GAMES[f"{kind}/{game}"]
