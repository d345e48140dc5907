"""From a game in words to an environment: seats that move in turn or all at once, opponents that play at random.

An author of an adapter writes a `Game`: who acts, what they see, which words are moves, what a move does. `GameEpisode`
makes it an environment. Invariants: the game is only told legal moves, of exactly the seats that act, all at once; a
seat that replies with anything else loses on the spot with the worst reward, which is counted (fact `illegal`); a
reward belongs to the last turn of its seat, so a seat's turn rewards add up to its score.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from flexmarl.contracts.games import GameFacts, facts_of
from flexmarl.contracts.specification.environment import GameOptions
from flexmarl.contracts.specification.environment_base import EnvironmentFacts
from workers.rollout.environments.base import Ask, Environment, Family, Outcome, Reply
from workers.rollout.environments.words import SPECIALS


class Game(Protocol):
    """One episode of a game whose observations and moves are words."""

    def acting(self) -> tuple[str, ...]:
        """Return the seats that move now: one in turn, several at once; none when the game is over."""

    def observation(self, seat: str) -> str:
        """Return what an acting seat sees, as blank-separated words."""

    def legal(self, seat: str) -> tuple[str, ...]:
        """Return the words that are moves of an acting seat now, at least one."""

    def act(self, moves: Mapping[str, str]) -> Mapping[str, float]:
        """Make the moves of all acting seats; return what every seat was rewarded since the call before."""


@dataclass(frozen=True, slots=True)
class GameTable:
    """Who sits at a game, and how rewards become scores."""

    game: GameFacts
    facts: EnvironmentFacts
    roles: tuple[str, ...]
    """Seats that agents have; the others play at random."""


def table_of(spec: GameOptions) -> GameTable:
    """Return the table that a specification sets."""
    facts = spec.facts()
    return GameTable(facts_of(spec.type, spec.game), facts, tuple(role.name for role in facts.roles))


@dataclass(slots=True)
class _Account:
    """What a seat has done and got."""

    turns: int = 0
    total: float = 0.0
    by_turn: dict[int, float] = field(default_factory=dict)

    def add(self, reward: float) -> None:
        self.total += reward
        if self.turns and reward:
            self.by_turn[self.turns - 1] = self.by_turn.get(self.turns - 1, 0.0) + reward


class GameEpisode:
    """An environment made of a game."""

    def __init__(self, game: Game, table: GameTable, rng: random.Random) -> None:
        self._game = game
        self._table = table
        self._rng = rng
        self._accounts = {seat.name: _Account() for seat in table.game.seats}
        self._illegal = 0
        self._let_others_move()

    def asks(self) -> list[Ask]:
        if self._illegal:
            return []
        game, roles = self._game, self._table.roles
        return [Ask(seat, game.observation(seat), 1, game.legal(seat)) for seat in game.acting() if seat in roles]

    def act(self, replies: list[Reply]) -> None:
        for reply in replies:
            self._accounts[reply.role].turns += 1
        moves = {reply.role: reply.text for reply in replies}
        wrong = [seat for seat, word in moves.items() if word not in self._game.legal(seat)]
        for seat in wrong:
            self._accounts[seat].add(self._table.game.worst)
        self._illegal += len(wrong)
        if not wrong:
            self._move(moves)
            self._let_others_move()

    def outcome(self) -> Outcome:
        accounts = {role: self._accounts[role] for role in self._table.roles}
        score = self._table.game.score(account.total for account in accounts.values())
        opposed = len(accounts) > 1 and self._table.game.sides == "versus"
        return Outcome(
            scores={role: account.total for role, account in accounts.items()},
            team_score=score,
            solved=score == 1.0 and not opposed,
            turn_rewards={(role, turn): r for role, account in accounts.items() for turn, r in account.by_turn.items()},
            facts={"illegal": float(self._illegal), "moves": float(sum(one.turns for one in accounts.values()))},
        )

    def describe(self) -> dict[str, object]:
        absent = [seat.name for seat in self._table.game.seats if seat.name not in self._table.roles]
        facts = {"at random": ", ".join(absent)} if absent else {}
        return {"title": self._table.game.title, "facts": facts}

    def _let_others_move(self) -> None:
        """Play on by random legal moves until a seat of an agent acts or the game is over."""
        while (acting := self._game.acting()) and not set(acting) & set(self._table.roles):
            self._move({})

    def _move(self, moves: dict[str, str]) -> None:
        """Make the moves of agents, and random ones of the seats that nobody has."""
        every = {
            seat: moves[seat] if seat in moves else self._rng.choice(self._game.legal(seat))
            for seat in self._game.acting()
        }
        for seat, reward in self._game.act(every).items():
            self._accounts[seat].add(float(reward))


GameSettings = TypeVar("GameSettings", bound=GameOptions)


class GameFamily(Family[GameSettings]):
    """What families of games share. A game's package is imported where it is played, never by who needs its words."""

    def __init__(self, spec: GameSettings) -> None:
        super().__init__(spec)
        self.table = table_of(spec)
        self.roles = self.table.roles

    def words(self) -> tuple[str, ...]:
        """Return the words of the game's observations and moves."""
        raise NotImplementedError

    def begin(self, task_seed: int) -> Game:
        """Begin a game."""
        raise NotImplementedError

    def vocabulary(self) -> tuple[str, ...]:
        return (*SPECIALS, *self.words())

    def make(self, task_seed: int, held_out: bool, rng: random.Random) -> Environment:
        return GameEpisode(self.begin(task_seed), self.table, rng)
