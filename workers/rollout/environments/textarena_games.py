"""Games of the package textarena: what it writes becomes words of a fixed vocabulary, and words become its moves.

The package speaks to players in sentences, boards and rules; models of a few dozen words cannot read them. A `Reading`
declares for each game which of its sentences are told and which words of them are kept. Invariants: what a player is
told is only what the package told this player; the package's environments are used as they are, without its
wrappers; the vocabulary is a constant of the game.

The package seeds and draws from the generator of the whole process, and remembers nothing of who did: an episode needs
a process of its own.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from flexmarl.contracts.specification.environment import TextArena
from workers.rollout.environments.games import Game, GameFamily
from workers.rollout.environments.words import numerals

Said = list[str]
"""Everything a player was told, in order, without the rules."""
RULES = "PROMPT"


@dataclass(frozen=True, slots=True)
class Reading:
    """How a game of the package is read and answered."""

    name: str
    """Under which the package registers it."""
    module: str
    moves: dict[str, str]
    """Word -> what the package is told."""
    words: tuple[str, ...]
    """Words of observations, without those of moves."""
    told: Callable[[Said, int], list[str]]
    """The words of what a player (by number) was told; those outside the vocabulary are left out."""
    legal: Callable[[Said], Callable[[str], bool]]
    """Tells, of what a player was told, which words are moves now."""


def lexed(text: str) -> list[str]:
    """Cut a text into lower-case words, numbers and single signs."""
    return re.findall(r"[a-z]+|\d+|[^\w\s]", text.lower())


_OBJECTS = (3, 4, 5)


def _piles(said: Said) -> tuple[int, ...]:
    """Read the piles of the last board: one number each."""
    return tuple(int(left) for left in re.findall(r"pile \d+: (\d+)", said[-1]))


def _takes_legal(said: Said) -> Callable[[str], bool]:
    piles = _piles(said)

    def legal(word: str) -> bool:
        pile, quantity = word.split("x")
        return int(quantity) <= piles[int(pile)]

    return legal


_MARKS = ("O", "X")
"""Of the first and the second player."""


def _squares(said: Said, player: int) -> list[str]:
    board = said[-1].split("Available Moves")[0]
    names = {_MARKS[player]: "own", _MARKS[1 - player]: "other"}
    return [names.get(square, "free") for square in re.findall(r"[OX]|\d", board)]


def _offered(said: Said) -> Callable[[str], bool]:
    offered = set(re.findall(r"\[(\d)\]", said[-1].split("Available Moves")[1]))
    return lambda word: word in offered


def _not_guessed(said: Said) -> Callable[[str], bool]:
    guessed = {number for text in said for number in re.findall(r"\[(\d+)\]", text)}
    return lambda word: word not in guessed


READINGS: dict[str, Reading] = {
    "nim": Reading(
        "Nim-v0-raw",
        "textarena.envs.Nim.env",
        {f"{pile}x{take}": f"[{pile} {take}]" for pile, most in enumerate(_OBJECTS) for take in range(1, most + 1)},
        ("pile", *numerals(max(_OBJECTS) + 1)),
        lambda said, player: ["pile", *map(str, _piles(said))],
        _takes_legal,
    ),
    "tic_tac_toe": Reading(
        "TicTacToe-v0-raw",
        "textarena.envs.TicTacToe.env",
        {word: f"[{word}]" for word in numerals(9)},
        ("own", "other", "free"),
        _squares,
        _offered,
    ),
    "guess_the_number": Reading(
        "GuessTheNumber-v0-raw",
        "textarena.envs.GuessTheNumber.env",
        {word: f"[{word}]" for word in numerals(21)[1:]},
        ("guess", "higher", "lower"),
        # Its sentences word by word: the guesses and whether the number is higher or lower.
        lambda said, player: ["guess", *(word for text in said for word in lexed(text))],
        _not_guessed,
    ),
}


class TextArenaFamily(GameFamily[TextArena]):
    """A game of the package with its words."""

    Options = TextArena

    def __init__(self, spec: TextArena) -> None:
        super().__init__(spec)
        self.reading = READINGS[spec.game]
        self.modules = ("textarena", self.reading.module)

    def words(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.reading.words, *self.reading.moves)))

    def begin(self, task_seed: int) -> Game:
        return _Arena(self.reading, [seat.name for seat in self.table.game.seats], self.words(), task_seed)


class _Arena:
    """A game of the package, one player after the other."""

    def __init__(self, reading: Reading, seats: list[str], words: tuple[str, ...], seed: int) -> None:
        self._reading = reading
        self._seats = seats
        self._words = frozenset(words)
        self._said: dict[int, Said] = {number: [] for number in range(len(seats))}
        # Imported where it is played: the package is optional, and whoever only needs the words never loads it.
        self._env: Any = import_module("textarena").make(reading.name)
        self._env.reset(num_players=len(seats), seed=seed)
        self._done = False
        self._player = self._listen()

    def acting(self) -> tuple[str, ...]:
        return () if self._done else (self._seats[self._player],)

    def observation(self, seat: str) -> str:
        number = self._seats.index(seat)
        return " ".join(word for word in self._reading.told(self._said[number], number) if word in self._words)

    def legal(self, seat: str) -> tuple[str, ...]:
        fits = self._reading.legal(self._said[self._seats.index(seat)])
        return tuple(word for word in self._reading.moves if fits(word))

    def act(self, moves: Mapping[str, str]) -> Mapping[str, float]:
        (word,) = moves.values()
        self._done, _ = self._env.step(self._reading.moves[word])
        if not self._done:
            self._player = self._listen()
            return {}
        rewards, _ = self._env.close()
        return {self._seats[number]: float(reward) for number, reward in rewards.items()}

    def _listen(self) -> int:
        """Take what the next player is told; asking the package again would give nothing."""
        player, messages = self._env.get_observation()
        self._said[player] += [text for _, text, kind in messages if kind.name != RULES]
        return int(player)
