"""What happens in an episode by chance: drawn for many episodes in one go, handed out one by one.

Invariants: a script depends on the episode's key alone, never on which others are drawn with it or when; numbers are
those that `chance` gives for the same key.
"""

from collections.abc import Iterator, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flexmarl.simulator import chance
from flexmarl.simulator.scenario import Spread, Workload

Keys = NDArray[np.uint64]
Asked = tuple[str, int, float, int]
"""(role, its turn in the episode, prompt tokens, reply tokens)"""

ROUNDS, ENVIRONMENT, REWARD, FAILS, SCORE, TWIN, SLOW = range(1, 8)
_AHEAD = 256
"""Episodes drawn at a time."""
_MASK = (1 << 64) - 1
_E = 2.718281828459045
_inverse = NormalDist().inv_cdf


class Script(NamedTuple):
    """An attempt at an episode, before it is played."""

    key: int
    turns: Iterator[Asked]
    """In the order in which they are asked."""
    waits: list[float]
    """What the environment takes behind each stage."""


def mixed(keys: Keys, part: "int | Keys") -> Keys:
    """Return `chance.mixed` of many keys."""
    other = np.uint64(part & _MASK) if isinstance(part, int) else part
    state = (keys ^ other) + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ state >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ state >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return state ^ state >> np.uint64(31)


def uniform(keys: Keys, part: int) -> NDArray[np.float64]:
    """Return `chance.uniform` of many keys."""
    drawn: NDArray[np.float64] = ((mixed(keys, part) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return drawn


def values(spread: Spread, keys: Keys) -> NDArray[np.float64]:
    """Return `spread.draw` of many keys."""
    middle = spread.mean if spread.median is None else spread.median
    if middle is None:
        found = np.full(len(keys), spread.least)
    elif not spread.sigma:
        found = np.full(len(keys), min(spread.most, max(spread.least, middle)))
    else:
        noise = spread.sigma * np.array([_inverse(one) for one in uniform(keys, 1).tolist()], np.float64)
        if spread.median is None:
            found = middle + noise
        else:
            found = middle * np.array([_E**one for one in noise.tolist()], np.float64)
        found = np.minimum(spread.most, np.maximum(spread.least, found))
    if spread.slow_share:
        found = np.where(uniform(keys, 2) < spread.slow_share, found + spread.slow, found)
    return found


def fixed(spread: Spread) -> bool:
    """Tell whether every draw is the same."""
    return not spread.slow_share and (not spread.sigma or (spread.mean is None and spread.median is None))


class _Round:
    """The turns of one round of a workload, in the order in which they are asked."""

    def __init__(self, workload: Workload, numbers: dict[str, int]) -> None:
        self.roles = [role for stage in workload.stages for role in stage]
        self.codes = np.array([numbers[role] for role in self.roles], np.uint64)
        self.before = np.array([self.roles[:place].count(role) for place, role in enumerate(self.roles)], np.int64)
        """Turns of the same role earlier in the round."""
        self.each = np.array([self.roles.count(role) for role in self.roles], np.int64)
        """Turns of the same role in a whole round."""
        self.stages = len(workload.stages)


class Draws:
    """The scripts of a run. `roles` is the number of each role in keys."""

    def __init__(self, workload: Workload, roles: dict[str, int], seed: int) -> None:
        self._workload, self._round = workload, _Round(workload, roles)
        self.widths = [len(stage) for stage in workload.stages]
        """Turns of each stage of a round."""
        self._seed = chance.mixed(0, seed)
        self._ahead: dict[tuple[int, int], Script] = {}
        self._drawn: set[tuple[int, int]] = set()
        """Stretches of draws, and members of each, that were drawn ahead."""

    def script(self, draw: int, member: int, members: int, attempt: int) -> Script:
        """Return what happens in an attempt at a member of a group that has so many."""
        if attempt == 1:
            many = -(-_AHEAD // members)
            stretch = (draw // many, members)
            if stretch not in self._drawn:
                self._drawn.add(stretch)
                self._draw_ahead(range(stretch[0] * many, (stretch[0] + 1) * many), members)
            found = self._ahead.pop((draw, member), None)
            if found is not None:
                return found
        key = chance.mixed(chance.mixed(self._seed, draw), member)
        return self._scripts([chance.mixed(key, attempt) if attempt > 1 else key])[0]

    def waits(self, key: int, stages: int) -> list[float]:
        """Return what the environment takes behind so many stages under another key than that of what is said."""
        return self._waits(np.array([key], np.uint64), np.array([stages])).tolist()

    def _draw_ahead(self, draws: Sequence[int], members: int) -> None:
        names = [(draw, member) for draw in draws for member in range(members)]
        groups = {draw: chance.mixed(self._seed, draw) for draw in draws}
        keys = [chance.mixed(groups[draw], member) for draw, member in names]
        self._ahead.update(zip(names, self._scripts(keys), strict=True))

    def _scripts(self, all_keys: list[int]) -> list[Script]:
        own, keys = self._round, np.array(all_keys, np.uint64)
        rounds = np.maximum(1, np.rint(values(self._workload.rounds, mixed(keys, ROUNDS)))).astype(np.int64)
        counts = rounds * len(own.roles)
        starts = np.cumsum(counts) - counts
        inside = np.arange(int(counts.sum())) - np.repeat(starts, counts)
        place = inside % len(own.roles)
        numbers = inside // len(own.roles) * own.each[place] + own.before[place]
        here = mixed(mixed(np.repeat(keys, counts), own.codes[place] + np.uint64(100)), numbers.astype(np.uint64))
        prompts, replies = self._tokens(here, place)
        roles = [own.roles[at] for at in place.tolist()]
        stages = rounds * own.stages
        waits = self._waits(keys, stages).tolist()
        ends = (starts + counts).tolist()
        behind = (np.cumsum(stages) - stages).tolist()
        turns = list(zip(roles, numbers.tolist(), prompts, replies, strict=True))
        spans = zip(all_keys, starts.tolist(), ends, behind, stages.tolist(), strict=True)
        return [Script(key, iter(turns[one:end]), waits[at : at + many]) for key, one, end, at, many in spans]

    def _tokens(self, here: Keys, place: NDArray[np.int64]) -> tuple[list[float], list[int]]:
        """Return the prompts and replies of turns that are asked at places of a round."""
        prompts, replies = np.empty(len(here)), np.empty(len(here))
        for role in dict.fromkeys(self._round.roles):
            load = self._workload.load(role)
            own = np.isin(place, [at for at, name in enumerate(self._round.roles) if name == role])
            prompts[own] = values(load.prompt, mixed(here[own], 1))
            replies[own] = np.maximum(1, np.rint(values(load.reply, mixed(here[own], 2))))
        return prompts.tolist(), replies.astype(np.int64).tolist()

    def _waits(self, keys: Keys, stages: NDArray[np.int64]) -> NDArray[np.float64]:
        starts = np.cumsum(stages) - stages
        number = np.arange(int(stages.sum())) - np.repeat(starts, stages) + 1
        own = np.repeat(keys, stages)
        waits = values(self._workload.environment, mixed(own, (number * 1000 + ENVIRONMENT).astype(np.uint64)))
        if not fixed(self._workload.slow_start) or self._workload.slow_start.draw(0):
            waits[starts] += values(self._workload.slow_start, mixed(keys, SLOW))
        return waits
