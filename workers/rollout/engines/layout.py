"""Where the rows of a lane lie: pure decisions on integer arrays, without torch.

Live rows are the first `n` of a cache and lie in descending length classes, so that attention reads few positions that
hold nothing: each segment of neighbouring rows is attended up to its own longest row. Order is an economy, never a
matter of correctness.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

SHORTEST_CLASS = 32
"""Rows up to this length are one class; each further class is twice as long."""

SPLIT_GAIN = 384
"""Row-positions a further segment must save: about what the extra kernel calls of one layer cost on a CPU."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows `start..stop` attend positions `0..length`."""

    start: int
    stop: int
    length: int


def moves(lengths: Ints, live: npt.NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """Return (destinations, sources) that close the gaps of dead rows and restore the order of the classes.

    Rows already in their class's range stay; only misplaced ones move. Destinations are below the number of live rows.
    """
    classes = np.where(live, _class_of(lengths), -1)
    wanted = -np.sort(-classes)
    wrong = np.flatnonzero((classes != wanted) & (wanted >= 0))
    if wrong.size == 0:
        return wrong, wrong
    misplaced = np.flatnonzero((classes != wanted) & live)
    sources = misplaced[np.argsort(-classes[misplaced], kind="stable")]
    return wrong[np.argsort(-wanted[wrong], kind="stable")], sources


def segments(lengths: Ints) -> list[Segment]:
    """Cut live rows into segments where that saves more than it costs."""
    n = len(lengths)
    if n == 0:
        return []
    whole = int(lengths.max())
    classes = _class_of(lengths)
    cuts = np.flatnonzero(np.diff(classes)) + 1
    if cuts.size == 0 or n * whole - int(lengths.sum()) < SPLIT_GAIN:
        return [Segment(0, n, whole)]
    bounds = [0, *cuts.tolist(), n]
    found: list[Segment] = []
    for start, stop in pairwise(bounds):
        length = int(lengths[start:stop].max())
        last = found[-1] if found else None
        if last is not None and _waste_of_joining(last, stop, length) < SPLIT_GAIN:
            found[-1] = Segment(last.start, stop, max(last.length, length))
        else:
            found.append(Segment(start, stop, length))
    return found


def _waste_of_joining(last: Segment, stop: int, length: int) -> int:
    joined = max(last.length, length)
    return (stop - last.stop) * (joined - length) + (last.stop - last.start) * (joined - last.length)


def capacity_of(lengths: Ints) -> Ints:
    """Return the longest length of each row's class."""
    return np.left_shift(np.int64(1), _class_of(lengths))


def _class_of(lengths: Ints) -> Ints:
    return np.ceil(np.log2(np.maximum(lengths, SHORTEST_CLASS))).astype(np.int64)
