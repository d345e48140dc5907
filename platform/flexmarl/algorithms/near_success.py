"""Tasks whose predicted success is nearest to a target, of a set of any size.

The predictor is that of `success_predictor`. Its prediction is the same for all tasks that were not played, so ties are
broken by chance, from the run's seed. Of a set larger than `LOOKED_AT` so many tasks, drawn by chance, come into
question: there a task is rarely played twice, and what is left out is as good as what is looked at.
"""

from collections.abc import Callable, Set
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Numbers = npt.NDArray[np.int64]

LOOKED_AT = 8192
"""Tasks that come into question in a choice, besides those that are excluded."""


def nearest(
    rng: np.random.Generator,
    tasks: int,
    count: int,
    excluded: Set[int],
    predicted: Callable[["Numbers"], "Floats"],
    target: float,
) -> list[int]:
    """Return `count` distinct tasks, none excluded, the nearest to the target first. The set must have so many."""
    looked_at = min(tasks, max(LOOKED_AT, count) + len(excluded))
    # In an order of chance, which a stable sort keeps among equals.
    some = rng.permutation(tasks) if looked_at == tasks else rng.choice(tasks, looked_at, replace=False)
    if excluded:
        some = some[~np.isin(some, list(excluded))]
    far = np.abs(predicted(some) - target)
    return [int(task) for task in some[np.argsort(far, kind="stable")[:count]]]


def owed(debt: float, share: float, count: int) -> tuple[int, float]:
    """Return how many of so many groups play the set in its order, and what is carried over: over a run they are a
    share of all groups, however many are proposed at once."""
    debt += share * count
    taken = min(count, int(debt + 1e-9))
    return taken, max(debt - taken, 0.0)
