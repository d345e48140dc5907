"""Points and summaries of a series as one kind of thing, and their thinning. Pure: arrays in, arrays out.

A cell covers one or more steps and knows its first, last, smallest and largest value with their steps. A point is a
cell of one step. Thinning puts whole cells into buckets, so the extremes of a bucket are always exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Steps = npt.NDArray[np.int64]

_SPAN_COLUMNS = 9
"""points, then (step, value) of the first, last, smallest and largest point of a summary."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """What happened between two places of the axis."""

    x_from: float
    x_to: float
    min: float
    max: float
    last: float
    points: int


@dataclass(frozen=True, slots=True)
class MetricBucket:
    """A bucket before its ends have a place on the axis."""

    first_step: int
    last_step: int
    min: float
    max: float
    last: float
    points: int

    def at(self, x_from: float | None, x_to: float | None) -> Bucket | None:
        """Place the bucket on the axis; None when an end has no place there."""
        if x_from is None or x_to is None:
            return None
        return Bucket(x_from, x_to, self.min, self.max, self.last, self.points)


@dataclass(frozen=True, slots=True)
class Cells:
    """Cells of one series: a row each in `steps` and `values`, columns first, last, smallest, largest."""

    points: Steps
    steps: Steps
    values: Floats
    x: Floats
    """Place of a cell that is one point; NaN for a summary."""

    def __len__(self) -> int:
        return len(self.points)

    @classmethod
    def none(cls) -> "Cells":
        """Return no cells."""
        return cls.of_points(np.empty(0, np.int64), np.empty(0), np.empty(0))

    @classmethod
    def of_points(cls, steps: Steps, xs: Floats, values: Floats) -> "Cells":
        """Make a cell of each point."""
        ones = np.ones(len(steps), np.int64)
        return cls(ones, np.repeat(steps[:, None], 4, axis=1), np.repeat(values[:, None], 4, axis=1), xs)

    @classmethod
    def of_spans(cls, spans: Sequence[Sequence[int | float]]) -> "Cells":
        """Make a cell of each summary (points, then step and value of its first, last, smallest, largest point)."""
        if not spans:
            return cls.none()
        rows = np.asarray([span[:_SPAN_COLUMNS] for span in spans], np.float64)
        whole = rows.astype(np.int64)
        return cls(whole[:, 0], whole[:, 1::2], rows[:, 2::2], np.full(len(rows), np.nan))

    def joined(self, other: "Cells") -> "Cells":
        """Return the cells of both."""
        if not len(other):
            return self
        return Cells(
            np.concatenate([self.points, other.points]),
            np.concatenate([self.steps, other.steps]),
            np.concatenate([self.values, other.values]),
            np.concatenate([self.x, other.x]),
        )

    def sorted(self) -> "Cells":
        """Return the cells in the order of their steps."""
        order = np.argsort(self.steps[:, 0], kind="stable")
        return Cells(self.points[order], self.steps[order], self.values[order], self.x[order])

    def places(self) -> dict[int, float]:
        """Map the steps whose place is known to it."""
        known = ~np.isnan(self.x)
        return dict(zip(self.steps[known, 0].tolist(), self.x[known].tolist(), strict=True))


def as_floats(packed: bytes) -> Floats:
    """Read float8 values as PostgreSQL sends them."""
    return np.frombuffer(packed, ">f8").astype(np.float64)


def as_steps(packed: bytes) -> Steps:
    """Read int4 values as PostgreSQL sends them."""
    return np.frombuffer(packed, ">i4").astype(np.int64)


def pick(cells: Cells, max_points: int) -> tuple[list[int], list[float]]:
    """Choose at most `max_points` points (at least 4) by step: the ends, and the extremes of every bucket between."""
    if int(cells.points.sum()) == len(cells) <= max(max_points, 4):
        return cells.steps[:, 0].tolist(), cells.values[:, 0].tolist()
    kept: dict[int, float] = {}
    for low, high in _edges(len(cells), max(1, (max_points - 2) // 2)):
        for column, place in ((2, cells.values[low:high, 2].argmin()), (3, cells.values[low:high, 3].argmax())):
            kept[int(cells.steps[low + place, column])] = float(cells.values[low + place, column])
    kept[int(cells.steps[0, 0])] = float(cells.values[0, 0])
    kept[int(cells.steps[-1, 1])] = float(cells.values[-1, 1])
    order = sorted(kept)
    return order, [kept[step] for step in order]


def cut(cells: Cells, most: int) -> list[MetricBucket]:
    """Cut a series into at most `most` buckets of about equal numbers of cells."""
    return [
        MetricBucket(
            int(cells.steps[low, 0]),
            int(cells.steps[high - 1, 1]),
            float(cells.values[low:high, 2].min()),
            float(cells.values[low:high, 3].max()),
            float(cells.values[high - 1, 1]),
            int(cells.points[low:high].sum()),
        )
        for low, high in _edges(len(cells), min(most, len(cells)))
    ]


def _edges(count: int, buckets: int) -> list[tuple[int, int]]:
    edges = np.linspace(0, count, min(buckets, count) + 1).astype(int).tolist()
    return [(low, high) for low, high in pairwise(edges) if high > low]
