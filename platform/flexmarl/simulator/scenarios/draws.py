"""What happens in an episode by chance: drawn for many episodes in one go, handed out one by one.

Invariants: a script depends on the episode's key alone, never on which others are drawn with it or when; numbers are
those that `chance` gives for the same key.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from statistics import NormalDist
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from flexmarl.simulator.scenarios import chance
from flexmarl.simulator.scenarios.scenario import Spread, Workload

Keys = NDArray[np.uint64]
Asked = tuple[str, int, float, int]
"""(role, its turn in the episode, prompt tokens, reply tokens)"""

ROUNDS, ENVIRONMENT, REWARD, FAILS, SCORE, TWIN, SLOW, AGAIN, LASTS = range(1, 10)
_AHEAD = 256
"""Episodes drawn at a time."""
_MASK = (1 << 64) - 1
_E = 2.718281828459045
_inverse = NormalDist().inv_cdf
T = TypeVar("T", "Script", "Sheet")


class Script(NamedTuple):
    """An attempt at an episode, before it is played."""

    key: int
    turns: Iterator[Asked]
    """In the order in which they are asked."""
    waits: list[float]
    """What the environment takes behind each stage."""
    reward_s: float
    """What its reward takes."""
    score: float
    widths: tuple[int, ...] = ()
    """How many turns each stage asks; empty: as the workload's stages say."""


class Sheet(NamedTuple):
    """An attempt at an episode as numbers: one row per stage, one column per role that it asks."""

    key: int
    prompts: NDArray[np.float64]
    replies: NDArray[np.float64]
    waits: NDArray[np.float64]
    tokens: list[int]
    """Of all replies of each role, in the order of their first turns in a round."""
    reward_s: float
    score: float


class _Columns(NamedTuple):
    """All turns of some episodes, one behind the other."""

    counts: NDArray[np.int64]
    stages: NDArray[np.int64]
    place: NDArray[np.int64]
    """In a round."""
    numbers: NDArray[np.int64]
    prompts: NDArray[np.float64]
    replies: NDArray[np.float64]
    waits: NDArray[np.float64]


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
        self.stages, self.width = len(workload.stages), max(len(stage) for stage in workload.stages)
        self.stage = np.array([number for number, stage in enumerate(workload.stages) for _ in stage])
        self.column = np.array([column for stage in workload.stages for column in range(len(stage))])
        self.names = list(dict.fromkeys(self.roles))
        self.name = np.array([self.names.index(role) for role in self.roles])


class Draws(ABC, Generic[T]):
    """What happens in the episodes of a run, in one form. `roles` is the number of each role in keys."""

    def __init__(self, workload: Workload, roles: dict[str, int], seed: int) -> None:
        self._workload, self._round = workload, _Round(workload, roles)
        self._seed = chance.mixed(0, seed)
        self._ahead: dict[tuple[int, int], T] = {}
        self._drawn: set[tuple[int, int]] = set()
        """Stretches of draws, and members of each, that were drawn ahead."""
        self._first: dict[int, int] = {}
        """Task -> the draw that played it first."""

    def script(self, draw: int, member: int, members: int, attempt: int, task: int) -> T:
        """Return what happens in an attempt at a member of a group that has so many.

        In a task that an earlier draw has played the same is said: long replies stay long. What machines take is not.
        """
        first = self._first.setdefault(task, draw)
        if first != draw:
            key = self._key(first, member, attempt)
            script = self._made(np.array([key], np.uint64))[0]
            return self._elsewhere(script, chance.mixed(chance.mixed(key, AGAIN), draw))
        if attempt == 1:
            found = self._ahead.pop((draw, member), None)
            if found is not None:
                return found
            many = -(-_AHEAD // members)
            stretch = (draw // many, members)
            if stretch not in self._drawn:
                self._drawn.add(stretch)
                self._draw_ahead(range(stretch[0] * many, (stretch[0] + 1) * many), members)
                return self._ahead.pop((draw, member))
        return self._made(np.array([self._key(draw, member, attempt)], np.uint64))[0]

    def beside(self, script: T) -> T:
        """Return a script for a second environment: what is said is the same, what machines take is not."""
        return self._elsewhere(script, chance.mixed(script.key, TWIN))

    def _key(self, draw: int, member: int, attempt: int) -> int:
        key = chance.mixed(chance.mixed(self._seed, draw), member)
        return chance.mixed(key, attempt) if attempt > 1 else key

    @abstractmethod
    def _elsewhere(self, script: T, key: int) -> T:
        """Return a script whose machines have chances of another key."""

    @abstractmethod
    def _made(self, keys: Keys) -> list[T]:
        """Return the scripts of keys."""

    def _anew(self, key: int, stages: int) -> tuple[NDArray[np.float64], float, float]:
        """Return the waits of another environment, what its reward takes and the score."""
        keys = np.array([key], np.uint64)
        ((reward_s, score),) = self._ends(keys)
        return self._waits(keys, np.array([stages])), reward_s, score

    def _draw_ahead(self, draws: Sequence[int], members: int) -> None:
        names = [(draw, member) for draw in draws for member in range(members)]
        groups = np.array([chance.mixed(self._seed, draw) for draw in draws], np.uint64)
        keys = mixed(np.repeat(groups, members), np.tile(np.arange(members, dtype=np.uint64), len(draws)))
        self._ahead.update(zip(names, self._made(keys), strict=True))

    def _columns(self, keys: Keys) -> _Columns:
        own = self._round
        rounds = np.maximum(1, np.rint(values(self._workload.rounds, mixed(keys, ROUNDS)))).astype(np.int64)
        counts = rounds * len(own.roles)
        inside = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        place = inside % len(own.roles)
        numbers = inside // len(own.roles) * own.each[place] + own.before[place]
        here = mixed(mixed(np.repeat(keys, counts), own.codes[place] + np.uint64(100)), numbers.astype(np.uint64))
        stages = rounds * own.stages
        return _Columns(counts, stages, place, numbers, *self._tokens(here, place), self._waits(keys, stages))

    def _ends(self, keys: Keys) -> list[tuple[float, float]]:
        """Return what rewards take, and what they are."""
        scores = [round(one, 3) for one in uniform(mixed(keys, SCORE), 1).tolist()]
        return list(zip(values(self._workload.reward, mixed(keys, REWARD)).tolist(), scores, strict=True))

    def _tokens(self, here: Keys, place: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the prompts and replies of turns that are asked at places of a round."""
        prompts, replies = np.empty(len(here)), np.empty(len(here))
        name = self._round.name[place]
        for number, role in enumerate(self._round.names):
            load = self._workload.load(role)
            own = np.flatnonzero(name == number)
            prompts[own] = values(load.prompt, mixed(here[own], 1))
            replies[own] = np.maximum(1, np.rint(values(load.reply, mixed(here[own], 2))))
        return prompts, replies

    def _waits(self, keys: Keys, stages: NDArray[np.int64]) -> NDArray[np.float64]:
        starts = np.cumsum(stages) - stages
        number = np.arange(int(stages.sum())) - np.repeat(starts, stages) + 1
        own = np.repeat(keys, stages)
        waits = values(self._workload.environment, mixed(own, (number * 1000 + ENVIRONMENT).astype(np.uint64)))
        if not fixed(self._workload.slow_start) or self._workload.slow_start.draw(0):
            waits[starts] += values(self._workload.slow_start, mixed(keys, SLOW))
        return waits


class Scripts(Draws[Script]):
    """For episodes that are played turn by turn."""

    def _elsewhere(self, script: Script, key: int) -> Script:
        waits, reward_s, score = self._anew(key, len(script.waits))
        return Script(key, script.turns, waits.tolist(), reward_s, score)

    def _made(self, keys: Keys) -> list[Script]:
        own, all_ = self._round, self._columns(keys)
        roles = [own.roles[at] for at in all_.place.tolist()]
        replies = all_.replies.astype(np.int64).tolist()
        turns = list(zip(roles, all_.numbers.tolist(), all_.prompts.tolist(), replies, strict=True))
        waits, ends = all_.waits.tolist(), np.cumsum(all_.counts).tolist()
        behind = np.cumsum(all_.stages).tolist()
        begun, over = [0, *behind], self._over(keys, behind)
        spans = zip(keys.tolist(), [0, *ends], ends, begun, over, self._ends(keys), strict=False)
        return [Script(key, iter(turns[a:b]), waits[i:j], *last) for key, a, b, i, j, last in spans]

    def _over(self, keys: Keys, behind: list[int]) -> list[int]:
        """Return where the stages of each episode end, some of them before all of its rounds are over."""
        lasts = self._workload.lasts
        if lasts is None:
            return behind
        drawn = np.maximum(1, np.rint(values(lasts, mixed(keys, LASTS)))).astype(np.int64).tolist()
        return [min(end, begun + most) for begun, end, most in zip([0, *behind], behind, drawn, strict=False)]


class Sheets(Draws[Sheet]):
    """For episodes that are played as columns of numbers."""

    def _elsewhere(self, script: Sheet, key: int) -> Sheet:
        waits, reward_s, score = self._anew(key, len(script.waits))
        return script._replace(key=key, waits=waits, reward_s=reward_s, score=score)

    def _made(self, keys: Keys) -> list[Sheet]:
        own, all_ = self._round, self._columns(keys)
        first = np.repeat(np.cumsum(all_.stages) - all_.stages, all_.counts)
        inside = np.arange(len(all_.place)) - np.repeat(np.cumsum(all_.counts) - all_.counts, all_.counts)
        row = first + inside // len(own.roles) * own.stages + own.stage[all_.place]
        prompts, replies = np.zeros((2, len(all_.waits), own.width))
        prompts[row, own.column[all_.place]], replies[row, own.column[all_.place]] = all_.prompts, all_.replies
        tokens = np.zeros((len(keys), len(own.names)))
        np.add.at(tokens, (np.repeat(np.arange(len(keys)), all_.counts), own.name[all_.place]), all_.replies)
        made, ends = tokens.astype(np.int64).tolist(), np.cumsum(all_.stages).tolist()
        spans = zip(keys.tolist(), [0, *ends], ends, made, self._ends(keys), strict=False)
        return [Sheet(key, prompts[a:b], replies[a:b], all_.waits[a:b], own_, *last) for key, a, b, own_, last in spans]


def breaks_off(workload: Workload, key: int, now: float) -> bool:
    """Tell whether the attempt of a key breaks off at its end, if that is now."""
    share = workload.failing(now)
    return share > 0.0 and chance.uniform(key, FAILS) < share
