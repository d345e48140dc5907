"""What a router expects of replies that nobody has made yet.

Without a ranker: what real workers learn from replies that ended, by the same code. A ranker is a declared model of
what the platform has none of: something that reads a prompt and guesses how long the reply will be, with stated recall.
"""

from functools import cache

import numpy as np

from flexmarl.algorithms.routing import ReplyLengths
from flexmarl.simulator.devices.turns import SimulatedTurn
from flexmarl.simulator.scenarios import chance
from flexmarl.simulator.scenarios.scenario import Ranker, RoleLoad, Workload

UNKNOWN = 8192
"""Most tokens of a reply where a workload states no bound."""
_GUESS, _DRAWS, _HALVINGS = 7, 4096, 24
_MOST_NOISE = 8.0


class ExpectedLengths:
    def __init__(self, workload: Workload, longest_first: bool) -> None:
        """`longest_first`: turns that wait at an engine are ranked by what is expected of them."""
        self._workload, self._longest_first = workload, longest_first
        self._lengths = ReplyLengths()

    @property
    def usual(self) -> float:
        """Return what an average turn took so far; 0: unknown."""
        return self._lengths.usual

    def note(self, turn: SimulatedTurn) -> None:
        """A reply has ended."""
        self._lengths.note(turn.role, turn.reply, turn.task)

    def look(self, turn: SimulatedTurn) -> None:
        """Note what is expected of a turn."""
        turn.expected = self._left(turn)
        turn.rank = turn.expected if self._longest_first else 0.0

    def _left(self, turn: SimulatedTurn) -> float:
        ranker, load = self._workload.ranker, self._workload.load(turn.role)
        if ranker is None:
            limit = round(load.reply.most) if load.reply.most < float("inf") else UNKNOWN
            return self._lengths.left(turn.role, int(turn.made), limit, turn.task)
        guess = turn.reply * np.exp(noise(load, ranker) * chance.normal(turn.key, _GUESS))
        return float(max(1.0, min(guess, load.reply.most) - turn.made))


@cache
def noise(load: RoleLoad, ranker: Ranker) -> float:
    """Return the standard deviation of a guess's logarithm at which a ranker has its recall."""
    keys = [chance.mixed(_GUESS, number) for number in range(_DRAWS)]
    lengths = np.log(np.maximum(1.0, [load.reply.draw(key) for key in keys]))
    errors = np.array([chance.normal(key, _GUESS) for key in keys])
    named = max(1, round(ranker.share * _DRAWS))
    long = frozenset(np.argsort(-lengths, kind="stable")[:named].tolist())
    low, high = 0.0, _MOST_NOISE
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        guessed = np.argsort(-(lengths + middle * errors), kind="stable")[:named].tolist()
        low, high = (middle, high) if len(long.intersection(guessed)) > ranker.recall * named else (low, middle)
    return low
