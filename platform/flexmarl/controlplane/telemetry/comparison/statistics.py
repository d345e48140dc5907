"""Means over seeds with their intervals, and Welch's test between two of them.

Seeds are independent repetitions, so the unit of every figure is a run, never a step. The distribution of Student's t
is computed here, from the regularised incomplete beta function by its continued fraction (Press et al., Numerical
Recipes, 6.4), because the process that answers requests does not load scipy; the tests hold it against scipy.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, variance

LEVEL = 0.95
"""Confidence of the intervals; 1 - LEVEL is the bound below which a difference is called significant."""
_TERMS, _EPSILON, _TINY = 300, 1e-14, 1e-300


@dataclass(frozen=True, slots=True)
class Estimate:
    """Mean of `n` runs; `low` and `high` bound it with confidence `LEVEL`, None with a single run."""

    n: int
    mean: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class WelchTest:
    """Two-sided test of equal means that lets the variances differ."""

    difference: float
    low: float
    high: float
    df: float
    p: float


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean of independent values with its interval. Raises ValueError for none."""
    if not values:
        raise ValueError("An estimate needs at least one value.")
    mean, n = fmean(values), len(values)
    if n == 1:
        return Estimate(1, mean, None, None)
    half = quantile((1 + LEVEL) / 2, n - 1) * math.sqrt(variance(values) / n)
    return Estimate(n, mean, mean - half, mean + half)


def welch(values: Sequence[float], base: Sequence[float]) -> WelchTest | None:
    """Test `values` against `base`; None where it says nothing: a single run on a side, or no spread on both."""
    if min(len(values), len(base)) < 2:
        return None
    first, second = variance(values) / len(values), variance(base) / len(base)
    if not (both := first + second):
        return None
    df = both**2 / (first**2 / (len(values) - 1) + second**2 / (len(base) - 1))
    difference, error = fmean(values) - fmean(base), math.sqrt(both)
    half = quantile((1 + LEVEL) / 2, df) * error
    return WelchTest(difference, difference - half, difference + half, df, two_sided(difference / error, df))


def holm(ps: Sequence[float]) -> list[float]:
    """Return p values corrected for there being several of them (Holm 1979), in the same order."""
    found, worst = [0.0] * len(ps), 0.0
    for rank, index in enumerate(sorted(range(len(ps)), key=lambda one: ps[one])):
        worst = max(worst, min(1.0, (len(ps) - rank) * ps[index]))
        found[index] = worst
    return found


def two_sided(t: float, df: float) -> float:
    """Return the probability of a t at least as far from 0."""
    return _incomplete_beta(df / (df + t * t), df / 2, 0.5)


def quantile(q: float, df: float) -> float:
    """Return the t below which a share `q` lies, for q of at least one half."""
    high = 1.0
    while 1 - two_sided(high, df) / 2 < q:
        high *= 2
    return _bisected(lambda t: 1 - two_sided(t, df) / 2 - q, 0.0, high)


def _bisected(f: Callable[[float], float], low: float, high: float) -> float:
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if f(middle) < 0 else (low, middle)
    return (low + high) / 2


def _incomplete_beta(x: float, a: float, b: float) -> float:
    if x <= 0 or x >= 1:
        return float(x >= 1)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(x, a, b) / a
    return 1 - front * _fraction(1 - x, b, a) / b


def _fraction(x: float, a: float, b: float) -> float:
    c, d = 1.0, 1 / _kept(1 - (a + b) * x / (a + 1))
    h = d
    for m in range(1, _TERMS):
        for part in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d, c = 1 / _kept(1 + part * d), _kept(1 + part / c)
            h *= d * c
        if abs(d * c - 1) < _EPSILON:
            break
    return h


def _kept(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
