"""VADE's draw (arXiv 2511.18902): the tasks whose sampled pass rate p promises most, p (1 - p)^2, largest at 1/3.

The rule is to sample the pass rate of every task from its Beta distribution and to take the best. Of a large set that
is done without sampling each. The best are those whose rate falls into a window around 1/3. There the density of
a rate has a bound that depends on the most evidence a task can have; so a task comes into question with that bound
times the width of the window, and its rate then is uniform in the window and counts with the ratio of its density to
the bound. Both together are the distribution of rates in the window. Its width is chosen by what is believed of some
tasks, never by a sampled rate.

Where that would bring too many tasks into question, as where hardly a task is believed to be solved by some members
alone, the window is chosen by the sampled rates of some tasks, and each other task has a bound of its own
(`rate_windows`).
"""

from collections.abc import Set
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from flexmarl.algorithms.rate_windows import density, of_each
from flexmarl.algorithms.task_belief import Evidence

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Numbers = npt.NDArray[np.int64]

BEST_RATE = 1.0 / 3.0
FEW_TASKS = 2_000
"""Up to here every rate is sampled: that takes no longer."""
MANY_TASKS = 65_536
"""Up to here every rate is sampled where one bound for all tasks does not do."""
LOOKED_AT = 256
"""Tasks by which the width of the window is chosen."""
WIDEST = 0.25
"""Widest window with one bound for all tasks."""
MOST_CANDIDATES = 30_000
"""Tasks that one bound for all may bring into question; each takes 0.2 microseconds."""
SAMPLED_FIRST = 16_384
"""Tasks whose sampled rates tell how wide the window is where each task has its own bound."""
ABOVE_BAR = 16
"""So many of them promise more than what is left out: about 1,000 of a million tasks."""


def promise(rates: "Floats") -> "Floats":
    """Return how much a task of a pass rate can teach: p (1 - p)^2."""
    return rates * (1.0 - rates) ** 2


def drawn(
    rng: np.random.Generator, tasks: int, count: int, evidence: Evidence, most: float, excluded: Set[int]
) -> list[int]:
    """Return `count` distinct tasks of a set, the most promising first, none of those excluded.

    `most`: evidence in total that no task exceeds. Raises ValueError where the set has too few.
    """
    if tasks - len(excluded) < count:
        raise ValueError(f"{count} tasks are wanted of {tasks}, of which {len(excluded)} are excluded")
    wanted = count + len(excluded)
    found: list[int] = []
    if tasks > FEW_TASKS:
        found = _near(rng, tasks, wanted, evidence, most)
    if len(found) < wanted and tasks > MANY_TASKS:
        found = _above_bar(rng, tasks, wanted, evidence, most)
    left = [task for task in found if task not in excluded]
    if len(left) >= count:
        return left[:count]
    every = np.arange(tasks)
    solved, missed = evidence.of(every)
    worth = promise(rng.beta(solved + 1.0, missed + 1.0))
    worth[list(excluded)] = -1.0
    best = np.argpartition(-worth, count - 1)[:count] if count < tasks else every
    return [int(task) for task in best[np.argsort(-worth[best], kind="stable")]]


def _near(rng: np.random.Generator, tasks: int, count: int, evidence: Evidence, most: float) -> list[int]:
    """Return all tasks whose rate falls into a window that should hold some more than `count`, the best first."""
    some = rng.integers(0, tasks, LOOKED_AT)
    usual = float(density(BEST_RATE, *evidence.of(some)).mean())
    width = (2.0 * count + 64.0) / (tasks * max(usual, 1e-12))
    if width > WIDEST:
        return []
    low = BEST_RATE - width / 2.0
    high = other_end(low)
    bound = _highest(low, high, most)
    chance = bound * (high - low)
    if chance > 1.0 or tasks * chance > MOST_CANDIDATES:
        return []
    candidates = rng.choice(tasks, rng.binomial(tasks, chance), replace=False)
    rates = rng.uniform(low, high, len(candidates))
    taken = rng.random(len(candidates)) * bound < density(rates, *evidence.of(candidates))
    candidates, worth = candidates[taken], promise(rates[taken])
    return [int(task) for task in candidates[np.argsort(-worth, kind="stable")]]


def _above_bar(rng: np.random.Generator, tasks: int, count: int, evidence: Evidence, most: float) -> list[int]:
    """Return at least `count` tasks, all those that promise more than a bar, the best first.

    The bar is what some tasks promise of whose sampled rates few are above it. It depends on theirs alone, so that
    the others still are distributed as if nothing was known. Where too few are above it, which chance hardly ever
    brings about, the rates of all others are sampled as well, and those above it again: they are known to be below.
    Empty where that many are wanted that most tasks would come into question.
    """
    rank = max(ABOVE_BAR, ceil(3 * count * SAMPLED_FIRST / tasks))
    if rank > SAMPLED_FIRST // 8:
        return []
    first = rng.choice(tasks, SAMPLED_FIRST, replace=False)
    solved, missed = evidence.of(first)
    rates = rng.beta(solved + 1.0, missed + 1.0)
    order = np.argsort(-promise(rates))[:rank]
    end = float(rates[order[-1]])
    ends = sorted((end, other_end(end)))
    others, their_rates = of_each(rng, tasks, first, evidence, most, (ends[0], ends[1]))
    found = np.concatenate((first[order], others))
    worth = promise(np.concatenate((rates[order], their_rates)))
    if len(found) < count:
        rest = np.setdiff1d(np.arange(tasks), found)
        theirs = _below(rng, rest, evidence, float(promise(rates[order[-1]])))
        found, worth = np.concatenate((found, rest)), np.concatenate((worth, theirs))
    return [int(task) for task in found[np.argsort(-worth, kind="stable")]]


def _below(rng: np.random.Generator, numbers: "Numbers", evidence: Evidence, bar: float) -> "Floats":
    """Return what each of some tasks promises, of which it is known that none promises more than a bar."""
    worth = np.full(len(numbers), np.inf)
    while len(over := np.flatnonzero(worth > bar)):
        solved, missed = evidence.of(numbers[over])
        worth[over] = promise(rng.beta(solved + 1.0, missed + 1.0))
    return worth


def _highest(low: float, high: float, most: float) -> float:
    """Return a bound of the densities in a window: that of a rate is highest where the evidence agrees with it."""
    ends = np.array([low, BEST_RATE, high])
    # With little evidence the highest one is not exactly there: it is 13 % more at most.
    return 1.25 * float(density(ends, most * ends, most * (1.0 - ends)).max())


def other_end(rate: float) -> float:
    """Return the other rate that promises as much as one."""
    # p (1 - p)^2 = c has the root `rate`; what is left after dividing by (p - rate) is
    # p^2 + (rate - 2) p + (1 - rate)^2, whose smaller root lies on the other side of 1/3.
    return float((2.0 - rate - np.sqrt((2.0 - rate) ** 2 - 4.0 * (1.0 - rate) ** 2)) / 2.0)


def most_evidence(members: int, kept: float) -> float:
    """Return the total evidence that a task approaches which is always played: G / (1 - kept)."""
    return ceil(members / (1.0 - kept) * 1e6) / 1e6
