"""Games of the package pettingzoo, of both of its interfaces: agents in turn (AEC) and all at once (parallel).

Invariants: seats keep the package's agent names; legal moves are its action masks; the package's environments are used
as they are. An agent that is out of a game is stepped with None, as the package demands, and never asked again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flexmarl.contracts.specification.environment import PettingZoo
from workers.rollout.environments.games import Game, GameFamily
from workers.rollout.environments.words import numerals

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Encoding:
    """A game of the package: where it is, the words of its actions, and its observations in words."""

    module: str
    moves: tuple[str, ...]
    """The word of each action number."""
    words: tuple[str, ...]
    """Words of observations, without those of moves."""
    observe: Callable[[Any], str]
    settings: dict[str, object] = field(default_factory=dict)
    parallel: bool = False


def _cells(observation: Mapping[str, Array]) -> str:
    """Name each cell of a board of two planes: the own stones and the other side's."""
    planes = observation["observation"].reshape(-1, 2)
    return " ".join("own" if own else "other" if other else "free" for own, other in planes)


_SHAPES = ("rock", "paper", "scissors")
_COMPASS = {"west": (-1, 0), "east": (1, 0), "north": (0, 1), "south": (0, -1)}
_SIGHT = 3
"""Cells that a pursuer sees in each direction: all of the map, from anywhere."""
_OFFSETS = tuple(f"{step:+d}" for step in range(-_SIGHT, _SIGHT + 1))


def _surroundings(observation: Array) -> str:
    """Say which ways are open, and where the other pursuer and the evader are, seen from the own cell."""
    walls, pursuers, evaders = observation[..., 0], observation[..., 1].copy(), observation[..., 2]
    pursuers[_SIGHT, _SIGHT] -= 1
    ways = ["wall" if walls[_SIGHT + dx, _SIGHT + dy] else "open" for dx, dy in _COMPASS.values()]
    return " ".join([*ways, "mate", *_offset(pursuers), "prey", *_offset(evaders)])


def _offset(plane: Array) -> list[str]:
    found = np.argwhere(plane > 0)
    return [_OFFSETS[index] for index in found[0]] if len(found) else []


ENCODINGS: dict[str, Encoding] = {
    "tictactoe": Encoding("pettingzoo.classic.tictactoe.tictactoe", numerals(9), ("own", "other", "free"), _cells),
    "connect_four": Encoding(
        "pettingzoo.classic.connect_four.connect_four", numerals(7), ("own", "other", "free"), _cells
    ),
    "rps": Encoding(
        "pettingzoo.classic.rps.rps",
        _SHAPES,
        ("saw", "none"),
        lambda last: f"saw {(*_SHAPES, 'none')[int(last)]}",
        {"max_cycles": 5},
        parallel=True,
    ),
    # Two pursuers on a small map must be on the evader's cell together; nothing else is rewarded.
    "pursuit": Encoding(
        "pettingzoo.sisl.pursuit.pursuit",
        (*_COMPASS, "stay"),
        ("open", "wall", "mate", "prey", *_OFFSETS),
        _surroundings,
        {
            "max_cycles": 12, "x_size": 4, "y_size": 4, "n_pursuers": 2, "n_evaders": 1, "n_catch": 2,
            "obs_range": 2 * _SIGHT + 1, "surround": False, "shared_reward": True, "freeze_evaders": False,
            "tag_reward": 0.0, "catch_reward": 1.0, "urgency_reward": 0.0,
        },
        parallel=True,
    ),
}  # fmt: skip


class PettingZooFamily(GameFamily[PettingZoo]):
    """A game of the package with its words."""

    Options = PettingZoo

    def __init__(self, spec: PettingZoo) -> None:
        super().__init__(spec)
        self.encoding = ENCODINGS[spec.game]
        self.modules = (self.encoding.module,)

    def words(self) -> tuple[str, ...]:
        return (*self.encoding.words, *self.encoding.moves)

    def begin(self, task_seed: int) -> Game:
        return (ParallelGame if self.encoding.parallel else InTurn)(self.encoding, task_seed)


class InTurn:
    """A game whose agents act one after the other (AEC)."""

    def __init__(self, encoding: Encoding, seed: int) -> None:
        self._encoding = encoding
        # Imported where it is played: the package is optional, and whoever only needs the words never loads it.
        self._env = import_module(encoding.module).env(**encoding.settings)
        self._env.reset(seed=seed)

    def acting(self) -> tuple[str, ...]:
        return (self._env.agent_selection,) if self._env.agents else ()

    def observation(self, seat: str) -> str:
        return self._encoding.observe(self._env.observe(seat))

    def legal(self, seat: str) -> tuple[str, ...]:
        mask = self._env.observe(seat)["action_mask"]
        return tuple(word for word, free in zip(self._encoding.moves, mask, strict=True) if free)

    def act(self, moves: Mapping[str, str]) -> Mapping[str, float]:
        (word,) = moves.values()
        self._env.step(self._encoding.moves.index(word))
        rewards = {agent: float(reward) for agent, reward in self._env.rewards.items()}
        while self._env.agents and self._out(self._env.agent_selection):
            self._env.step(None)
        return rewards

    def _out(self, agent: str) -> bool:
        return bool(self._env.terminations[agent] or self._env.truncations[agent])


class ParallelGame:
    """A game whose agents act all at once."""

    def __init__(self, encoding: Encoding, seed: int) -> None:
        self._encoding = encoding
        self._env = import_module(encoding.module).parallel_env(**encoding.settings)
        self._seen, _ = self._env.reset(seed=seed)

    def acting(self) -> tuple[str, ...]:
        return tuple(self._env.agents)

    def observation(self, seat: str) -> str:
        return self._encoding.observe(self._seen[seat])

    def legal(self, seat: str) -> tuple[str, ...]:
        return self._encoding.moves

    def act(self, moves: Mapping[str, str]) -> Mapping[str, float]:
        numbers = {seat: self._encoding.moves.index(word) for seat, word in moves.items()}
        self._seen, rewards, *_ = self._env.step(numbers)
        return {agent: float(reward) for agent, reward in rewards.items()}
