"""VADE's draw (arXiv 2511.18902): the tasks whose sampled pass rate p promises most, p (1 - p)^2, largest at 1/3.

The rule is to sample the pass rate of every task from its Beta distribution and to take the best. Of a large set that
is done without looking at each task. The best are those whose rate falls into a window around 1/3. There the density of
a rate has a bound that depends on the most evidence a task can have; so a task comes into question with that bound
times the width of the window, and its rate then is uniform in the window and counts with the ratio of its density to
the bound. Both together are the distribution of rates in the window. Its width is chosen by what is believed of some
tasks, never by a sampled rate; where it holds too few, or would be wide, as where hardly a task is believed to be
solved by some members alone, all rates are sampled after all.
"""

from collections.abc import Callable, Set
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Numbers = npt.NDArray[np.int64]

BEST_RATE = 1.0 / 3.0
FEW_TASKS = 2_000
"""Up to here every rate is sampled: that takes no longer."""
LOOKED_AT = 256
"""Tasks by which the width of the window is chosen."""
WIDEST = 0.25
"""Window beyond which all rates are sampled."""
_TERMS = (1.0 / 12.0, -1.0 / 360.0, 1.0 / 1260.0)

Evidence = Callable[["Numbers"], "tuple[Floats, Floats]"]
"""Tasks -> evidence that each is solved, and that it is not."""


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
    if tasks > FEW_TASKS:
        found = _near(rng, tasks, count + len(excluded), evidence, most)
        left = [task for task in found if task not in excluded]
        if len(left) >= count:
            return left[:count]
    every = np.arange(tasks)
    solved, missed = evidence(every)
    worth = promise(rng.beta(solved + 1.0, missed + 1.0))
    worth[list(excluded)] = -1.0
    best = np.argpartition(-worth, count - 1)[:count] if count < tasks else every
    return [int(task) for task in best[np.argsort(-worth[best], kind="stable")]]


def _near(rng: np.random.Generator, tasks: int, count: int, evidence: Evidence, most: float) -> list[int]:
    """Return all tasks whose rate falls into a window that should hold some more than `count`, the best first."""
    some = rng.integers(0, tasks, LOOKED_AT)
    usual = float(density(BEST_RATE, *evidence(some)).mean())
    width = (2.0 * count + 64.0) / (tasks * max(usual, 1e-12))
    if width > WIDEST:
        return []
    low = BEST_RATE - width / 2.0
    high = _other_end(low)
    bound = _highest(low, high, most)
    chance = bound * (high - low)
    if chance > 1.0:
        return []
    candidates = rng.choice(tasks, rng.binomial(tasks, chance), replace=False)
    rates = rng.uniform(low, high, len(candidates))
    taken = rng.random(len(candidates)) * bound < density(rates, *evidence(candidates))
    candidates, worth = candidates[taken], promise(rates[taken])
    return [int(task) for task in candidates[np.argsort(-worth, kind="stable")]]


def _highest(low: float, high: float, most: float) -> float:
    """Return a bound of the densities in a window: that of a rate is highest where the evidence agrees with it."""
    ends = np.array([low, BEST_RATE, high])
    # With little evidence the highest one is not exactly there: it is 13 % more at most.
    return 1.25 * float(density(ends, most * ends, most * (1.0 - ends)).max())


def _other_end(low: float) -> float:
    """Return the rate above 1/3 that promises as much as a lower one."""
    # p (1 - p)^2 = c has the root `low`; what is left after dividing by (p - low) is p^2 + (low - 2) p + (1 - low)^2.
    return float((2.0 - low - np.sqrt((2.0 - low) ** 2 - 4.0 * (1.0 - low) ** 2)) / 2.0)


def density(rates: "Floats | float", solved: "Floats", missed: "Floats") -> "Floats":
    """Return the density of Beta(solved + 1, missed + 1) at rates strictly between 0 and 1."""
    scale = _log_factorial(solved + missed + 1.0) - _log_factorial(solved) - _log_factorial(missed)
    found: Floats = np.exp(scale + solved * np.log(rates) + missed * np.log1p(-np.asarray(rates)))
    return found


def _log_factorial(values: "Floats") -> "Floats":
    """Return log Gamma(x + 1) of x >= 0 to 1e-10: Stirling's series seven steps further up."""
    far = values + 8.0
    series = sum(term / far ** (2 * place + 1) for place, term in enumerate(_TERMS))
    steps = np.ones_like(values)
    for step in range(1, 8):
        steps = steps * (values + step)
    stirling: Floats = (far - 0.5) * np.log(far) - far + 0.5 * np.log(2.0 * np.pi) + series - np.log(steps)
    return stirling


def most_evidence(members: int, kept: float) -> float:
    """Return the total evidence that a task approaches which is always played: G / (1 - kept)."""
    return ceil(members / (1.0 - kept) * 1e6) / 1e6
