"""Tasks whose pass rates, sampled from Beta distributions, fall into a window, without sampling the rate of each.

With evidence a that a task is solved, b that it is not, n = a + b and the most likely rate m = a / n, the density of
Beta(a + 1, b + 1) at x is at most (n + 1) exp(-n D(m, x)), where D is the Kullback-Leibler divergence of a coin with m
from one with x: n^n / (a^a b^b) bounds Gamma(n + 1) / (Gamma(a + 1) Gamma(b + 1)), and so does its product with
(2 pi n m (1 - m))^(-1/2). The logarithm of the density is
concave; so at a distance d from x, the end of the window that is nearest to m, it is at most
(n + 1) exp(-n D(m, x) - s d) with the slope s = n |m - x| / (x (1 - x)). All of it in the window is at most
exp(-n D) (n + 1) min(w, 1 / s), w the width, and that is at most exp(-n D) min(w (n + 1), w + w') with
w' = x (1 - x) / |m - x|. D and the last factor depend on m alone: they are looked up.

Of the tasks where that is little, a share comes into question that is no smaller, without a look at the others; of
those where it is more, each with its own probability. The rate then has the density s exp(-s d) / (1 - exp(-s w)) and
counts with the ratio of what it should have to what it has. A task that comes into question in any case has its rate
sampled from its Beta distribution.
"""

from typing import TYPE_CHECKING

import numpy as np

from flexmarl.algorithms.task_belief import Evidence

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Numbers = npt.NDArray[np.int64]
    Column = npt.NDArray[np.float32]

CELLS = 4_096
"""Cells of most likely rates; a last one has those that are 1."""
LITTLE = 1.0 / 256.0
"""Probability to come into question up to which a task is not looked at."""
MARGIN = 1.05
"""Factor of the bounds for what single precision may lose."""
_NOTHING = -1e-30
"""Exponent of cells in the window: no zero, by whose sign the evidence that is enough would go the other way"""
_TERMS = (1.0 / 12.0, -1.0 / 360.0, 1.0 / 1260.0)


def of_each(
    rng: np.random.Generator,
    tasks: int,
    known: "Numbers",
    evidence: Evidence,
    most: float,
    window: tuple[float, float],
) -> "tuple[Numbers, Floats]":
    """Return the tasks of a set, without those known, whose sampled rate falls into a window, and their rates.

    `most`: evidence in total that no task exceeds.
    """
    numbers, chances = _in_question(rng, tasks, known, evidence, bounds(window, most))
    solved, missed = evidence.of(numbers)
    rates, shares = _proposed(rng, solved, missed, window)
    sure = chances >= 1.0
    rates[sure] = rng.beta(solved[sure] + 1.0, missed[sure] + 1.0)
    within = (rates > window[0]) & (rates < window[1])
    taken = within & (sure | (rng.random(len(rates)) * chances * shares < density(rates, solved, missed)))
    return numbers[taken], rates[taken]


def bounds(window: tuple[float, float], most: float) -> "tuple[Column, Column]":
    """Return -D and the logarithm of the second factor of the bound for each cell of most likely rates."""
    (low, high), width = window, window[1] - window[0]
    lower = np.arange(CELLS + 1) / CELLS
    upper = np.minimum(lower + 1.0 / CELLS, 1.0)
    # Of a cell below the window the upper edge has the largest bound, of one above it the lower one.
    rates = np.where(upper < low, upper, np.where(lower > high, lower, np.clip(lower, low, high)))
    nearest = np.clip(rates, low, high)
    with np.errstate(divide="ignore", invalid="ignore"):
        against = np.where(rates < 1.0, (1.0 - rates) * np.log((1.0 - nearest) / (1.0 - rates)), 0.0)
        exponent = np.where(rates > 0.0, rates * np.log(nearest / rates), 0.0) + against
        factor = np.minimum(width * (most + 1.0), width + nearest * (1.0 - nearest) / np.abs(rates - nearest))
    return np.minimum(exponent, _NOTHING).astype(np.float32), np.log(MARGIN * factor).astype(np.float32)


def _in_question(
    rng: np.random.Generator, tasks: int, known: "Numbers", evidence: Evidence, of_cells: "tuple[Column, Column]"
) -> "tuple[Numbers, Floats]":
    """Return the tasks that come into question, none of those known, and the probability with which each did."""
    exponents, factors = of_cells
    with np.errstate(over="ignore"):
        # With less evidence than this a task comes into question with more than `LITTLE`.
        enough = (np.log(np.float32(LITTLE)) - factors) / exponents
    looked_at, logarithms = [], []
    for first, shares, totals in evidence.parts(tasks):
        cells = (shares * np.float32(CELLS)).astype(np.intp)
        few = np.flatnonzero(totals < enough.take(cells))
        of_few, here = totals[few], cells[few]
        looked_at.append(few + first)
        spread = 2.0 * np.pi * of_few * (here / CELLS) * (1.0 - np.minimum(here + 1.0, CELLS) / CELLS)
        logarithms.append(of_few * exponents[here] + factors[here] - 0.5 * np.log(np.maximum(spread, 1.0)))
    numbers, chances = np.concatenate(looked_at), np.exp(np.concatenate(logarithms))
    others = np.ones(tasks, np.bool_)
    others[known] = False
    passed = others[numbers] & (rng.random(len(numbers)) < chances)
    others[numbers] = False
    share = rng.choice(tasks, rng.binomial(tasks, LITTLE), replace=False)
    share = share[others[share]]
    return np.concatenate((numbers[passed], share)), np.concatenate((chances[passed], np.full(len(share), LITTLE)))


def _proposed(
    rng: np.random.Generator, solved: "Floats", missed: "Floats", window: tuple[float, float]
) -> "tuple[Floats, Floats]":
    """Return a rate in the window for each task, and its density there."""
    (low, high), width = window, window[1] - window[0]
    total = solved + missed
    likeliest = np.divide(solved, total, out=np.full_like(total, low), where=total > 0)
    nearest = np.clip(likeliest, low, high)
    slope = np.maximum(total * np.abs(likeliest - nearest) / (nearest * (1.0 - nearest)), 1e-9)
    whole = -np.expm1(-slope * width)
    away = np.minimum(-np.log1p(-rng.random(len(total)) * whole) / slope, width)
    return np.where(likeliest > high, high - away, low + away), slope * np.exp(-slope * away) / whole


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
