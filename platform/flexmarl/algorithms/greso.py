"""GRESO's rule (arXiv 2506.02177): tasks whose last groups had no variance are mostly passed over, before they cost.

Tasks come in their order, again and again. One whose last z groups all had zero variance is played with probability
p^z, at least a floor; p is one of two bases, for streaks that were solved and for streaks that were not. At each step
each base moves a little: down where the share of such groups has reached its target, up where it has not. Floors and
constants are AstraFlow's (arXiv 2605.15565).
"""

from collections.abc import Callable, Set
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Numbers = npt.NDArray[np.int64]
    Flags = npt.NDArray[np.bool_]

LOWEST_BASE, HIGHEST_BASE = 0.01, 0.99
"""Where a base that moves stops."""
MOST_REFUSALS = 256
"""Tasks in a row that are passed over by chance; the next one is played whatever is believed of it."""
SOLVED_ABOVE = 0.5
"""Mean share of the best score above which a group without variance counts as solved."""


def chances(solved: "Floats", missed: "Floats", bases: tuple[float, float], floors: tuple[float, float]) -> "Floats":
    """Return the probability to be played of tasks with streaks of so many groups, solved or missed; no streak: 1."""
    played: Floats = np.where(
        missed > 0, np.maximum(bases[1] ** missed, floors[1]), np.maximum(bases[0] ** solved, floors[0])
    )
    return np.where(solved + missed > 0, played, 1.0)


def moved(base: float, share: float, target: float, by: float) -> float:
    """Return a base after a step in which so large a share of the groups had no variance of its kind."""
    if not by:
        return base
    return max(LOWEST_BASE, base - by) if share >= target else min(HIGHEST_BASE, base + by)


def walked(
    tasks: int, count: int, position: int, excluded: Set[int], accepted: Callable[["Numbers"], "Flags"]
) -> tuple[list[int], int]:
    """Go through a set from a position on; returns `count` distinct tasks, none excluded, and the position reached.

    The set must have so many: an endless walk otherwise.
    """
    found: list[int] = []
    seen, refused = set(excluded), 0
    while len(found) < count:
        numbers = (position + np.arange(MOST_REFUSALS)) % tasks
        for task, taken in zip(numbers.tolist(), accepted(numbers).tolist(), strict=True):
            position += 1
            if task in seen:
                continue
            refused = 0 if taken else refused + 1
            if taken or refused > MOST_REFUSALS:
                found.append(task)
                seen.add(task)
                refused = 0
                if len(found) == count:
                    break
    return found, position
