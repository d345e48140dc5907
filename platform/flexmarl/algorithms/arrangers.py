"""How often the rows of a policy count in a step: once, or as often as their pair of members was drawn.

Invariants: an arranger gives each row of a settled cohort one weight and takes none away, so each is cut, trained and
acknowledged once. What it says depends on the rows and a seed, never on the order in which groups settled.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import Any, TypeVar

from flexmarl.algorithms.registry import Plugin, Registry
from flexmarl.algorithms.replay import Row
from flexmarl.algorithms.seeds import BITS, derive
from flexmarl.contracts.specification.arrangers import (
    ARRANGER,
    AdvantageShuffleOptions,
    ArrangerOptions,
    NoArrangerOptions,
)

ArrangerSettings = TypeVar("ArrangerSettings", bound=ArrangerOptions)


class Arranger(Plugin[ArrangerSettings], ABC):
    """A choice of how often rows count."""

    @abstractmethod
    def weights(self, groups: Sequence[Sequence[Row]], seed: int) -> list[list[float]]:
        """Return what the rows of a policy count, by group. `groups`: those of a cohort, by rising draw number."""


class NoArranger(Arranger[NoArrangerOptions]):
    Options = NoArrangerOptions

    def weights(self, groups: Sequence[Sequence[Row]], seed: int) -> list[list[float]]:
        return [[1.0] * len(rows) for rows in groups]


@dataclass(frozen=True, slots=True)
class _Pair:
    group: int
    members: tuple[int, ...]
    """Two; the one in the middle of an odd number is alone."""
    size: float
    """Sum of the absolute advantages."""


class AdvantageShuffle(Arranger[AdvantageShuffleOptions]):
    """Source: advantage-based batch shuffle of Shuffle-R1, arXiv 2508.05612."""

    Options = AdvantageShuffleOptions

    def weights(self, groups: Sequence[Sequence[Row]], seed: int) -> list[list[float]]:
        """Weigh rows by how often their pair is drawn: as many draws as there are pairs, so the total stays."""
        pairs = [pair for number, rows in enumerate(groups) for pair in _pairs(number, rows)]
        times = drawn([pair.size for pair in pairs], self.options.rounds, seed)
        counts = {(pair.group, member): n for pair, n in zip(pairs, times, strict=True) for member in pair.members}
        return [[float(counts[number, row[0]]) for row in rows] for number, rows in enumerate(groups)]


def _pairs(number: int, rows: Sequence[Row]) -> Iterator[_Pair]:
    """Pair the best member of a group with the worst, the second with the last but one, and so on.

    A member is as good as the mean advantage of all its turns; equal ones are ranked by number.
    """
    found: dict[int, list[float]] = {}
    for row in rows:
        found.setdefault(row[0], []).extend(row[4])
    values = {member: sum(sorted(own)) / len(own) for member, own in found.items()}
    ranked = sorted(values, key=lambda member: (-values[member], member))
    for place in range((len(ranked) + 1) // 2):
        members = tuple(dict.fromkeys((ranked[place], ranked[-1 - place])))
        yield _Pair(number, members, sum(abs(values[member]) for member in members))


def drawn(sizes: Sequence[float], rounds: int, seed: int) -> list[int]:
    """Return how often each pair is drawn, as many draws in all as there are pairs, shared out evenly over rounds.

    Within a round pairs are drawn one after the other without replacement, each with a chance in proportion to its size
    among those that are left; pairs of size 0 only where no others are left, with equal chances.
    """
    times = [0] * len(sizes)
    for number in range(rounds):
        count = len(sizes) * (number + 1) // rounds - len(sizes) * number // rounds
        keys = ((_key(size, derive(seed, number, place)), place) for place, size in enumerate(sizes))
        for _, place in nsmallest(count, keys):
            times[place] += 1
    return times


def _key(size: float, chance: int) -> tuple[int, float]:
    """Return an exponential time of rate `size`: the least of such are a draw without replacement in proportion.

    Source: Efraimidis and Spirakis, Information Processing Letters 97 (2006), whose keys are these by another map.
    """
    share = (chance + 1) / (1 << BITS)
    return (0, -math.log(share) / size) if size > 0.0 else (1, share)


ARRANGERS: Registry[Arranger[Any]] = Registry(ARRANGER, (NoArranger, AdvantageShuffle))
