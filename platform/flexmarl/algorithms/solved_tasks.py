"""Tasks that are left out once they are solved: AstraFlow's curator `filter_solved` (arXiv 2605.15565), and a way back.

Of each task a moving mean of its groups' shares of the best score is kept; above a threshold the task leaves the set.
AstraFlow's tasks never come back. Here they do where a step needs more tasks than are left: those first that were not
played for longest. One that is then missed falls below the threshold, and is in the set again.
"""

from collections.abc import Set
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Column = npt.NDArray[np.float32]
    Steps = npt.NDArray[np.int32]

_IN_SET = np.int32(2**31 - 1)
"""As the age of a task that has not left."""


def visits_to_leave(decay: float, threshold: float) -> int | None:
    """Return how many groups in a row a fresh task must be solved by all members to leave; None: it never does."""
    if threshold >= 1.0:
        return None
    visits, rate = 0, 0.0
    while rate <= threshold and visits < 1_000_000:
        visits, rate = visits + 1, decay * rate + (1.0 - decay)
    return visits


def in_set(rates: "Column", tasks: int, threshold: float, start: int, count: int, excluded: Set[int]) -> list[int]:
    """Return up to `count` tasks that have not left, from number `start` on and round, none of those excluded."""
    left = np.flatnonzero(rates <= threshold) if len(rates) else np.arange(tasks)
    most, first = count + len(excluded), int(np.searchsorted(left, start))
    ahead = left[first : first + most].tolist()
    round_ = left[: min(first, most - len(ahead))].tolist()
    return [task for task in ahead + round_ if task not in excluded][:count]


def longest_away(rates: "Column", as_of: "Steps", threshold: float, count: int, excluded: Set[int]) -> list[int]:
    """Return `count` of the tasks that have left, those first that were not played for longest."""
    ages = np.where(rates > threshold, as_of, _IN_SET)
    most = min(count + len(excluded), int(np.count_nonzero(ages != _IN_SET)))
    if not most:
        return []
    # Only the youngest of the oldest is looked for: a million ages take too long to sort.
    youngest = np.partition(ages, most - 1)[most - 1]
    older = np.flatnonzero(ages < youngest)
    as_old = np.flatnonzero(ages == youngest)[: most - len(older)]
    ordered = older[np.argsort(ages[older], kind="stable")].tolist() + as_old.tolist()
    return [task for task in ordered if task not in excluded][:count]
