"""How often models solve tasks: pass@k with intervals, and which of two that played the same tasks is better.

Tasks are the units that are drawn: intervals and tests resample tasks, never attempts, since attempts of a task are
alike. Every resampling begins with a seed, so that the same counts give the same figures.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Literal

import numpy as np

RESAMPLES = 2000
"""Bootstrap samples of an interval, and sign patterns of a test."""
_Z = 1.959963984540054
"""Half width of a 95 % interval of the normal distribution, in standard deviations."""

Method = Literal["wilson", "bootstrap"]


@dataclass(frozen=True, slots=True)
class Rate:
    """A mean over tasks with its 95 % interval; `method` says how that was made."""

    value: float
    low: float
    high: float
    tasks: int
    method: Method


def pass_at_k(attempts: int, solved: int, k: int) -> float:
    """Return the chance that one of k attempts solves a task, unbiased: 1 - C(n - c, k) / C(n, k).

    n attempts of which c solved it. Chen et al. 2021, "Evaluating Large Language Models Trained on Code", equation 1.
    Raises ValueError where there are fewer attempts than k.
    """
    if not 1 <= k <= attempts or not 0 <= solved <= attempts:
        raise ValueError(f"pass@{k} needs at least {k} attempts and no more solved than made; {solved} of {attempts}")
    if attempts - solved < k:
        return 1.0
    missed = 1.0
    for place in range(attempts - solved + 1, attempts + 1):
        missed *= 1.0 - k / place
    return 1.0 - missed


def pass_rate(tasks: Sequence[tuple[int, int]], k: int, seed: int = 0) -> Rate | None:
    """Return pass@k over tasks, each with its attempts and how many solved it; None without a task.

    The interval is Wilson's where every task has one attempt, else a bootstrap over tasks.
    """
    if not tasks:
        return None
    values = np.array([pass_at_k(attempts, solved, k) for attempts, solved in tasks])
    if k == 1 and all(attempts == 1 for attempts, _ in tasks):
        return _wilson(int(values.sum()), len(tasks))
    return mean_of(values.tolist(), seed)


def mean_of(values: Sequence[float], seed: int = 0) -> Rate:
    """Return a mean over tasks with its bootstrap interval: the middle 95 % of the means of resampled tasks."""
    given = np.asarray(values, dtype=float)
    rng = np.random.default_rng(seed)
    means = np.empty(RESAMPLES)
    for index in range(RESAMPLES):
        means[index] = given[rng.integers(0, len(given), len(given))].mean()
    low, high = np.quantile(means, (0.025, 0.975))
    return Rate(float(given.mean()), float(low), float(high), len(given), "bootstrap")


def _wilson(solved: int, tasks: int) -> Rate:
    share, spread = solved / tasks, _Z * _Z / tasks
    middle = (share + spread / 2) / (1 + spread)
    half = _Z * sqrt(share * (1 - share) / tasks + spread / (4 * tasks)) / (1 + spread)
    return Rate(share, max(0.0, middle - half), min(1.0, middle + half), tasks, "wilson")


def difference_p(one: Sequence[float], other: Sequence[float], seed: int = 0) -> float:
    """Return the chance of a mean difference this large between equals: a sign-flip test over tasks both played.

    Raises ValueError where they are not the same tasks, one by one.
    """
    if len(one) != len(other) or not len(one):
        raise ValueError(f"a paired test needs the same tasks of both; there are {len(one)} and {len(other)}")
    gaps = np.asarray(one, dtype=float) - np.asarray(other, dtype=float)
    seen = abs(gaps.sum())
    rng = np.random.default_rng(seed)
    reached = 0
    for _ in range(RESAMPLES):
        signs = rng.integers(0, 2, len(gaps)) * 2 - 1
        reached += abs(float((signs * gaps).sum())) >= seen - 1e-12
    return (1 + reached) / (1 + RESAMPLES)


def holm(chances: Sequence[float]) -> list[float]:
    """Return p values that hold for all of several tests at once: Holm's step-down correction, in the order given."""
    adjusted, largest = [0.0] * len(chances), 0.0
    for rank, index in enumerate(sorted(range(len(chances)), key=lambda place: chances[place])):
        largest = max(largest, min(1.0, (len(chances) - rank) * chances[index]))
        adjusted[index] = largest
    return adjusted
