"""What a task sampler believes of the tasks of a fixed set: figures per task, and some that are of no single task.

Memory of a run: three columns with a figure per task, which go to the run's snapshot and back to the bit. What a column
means is the sampler's own: evidence that a task is solved, or is not (`vade`); lengths of streaks (`greso`); a moving
mean and when the task left (`filter_solved`); a moving mean before the last group, and what that group earned
(`near_success`). Evidence fades while a task is not played; that is worked out where it is read, so that a step costs
nothing per task.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Numbers = npt.NDArray[np.int64]
    Column = npt.NDArray[np.float32]
    Steps = npt.NDArray[np.int32]


@dataclass(slots=True)
class TaskBelief:
    """Columns are created with the first observation; before, nothing is believed of any task."""

    solved: bytearray = field(default_factory=bytearray)
    """float32[tasks]: what speaks for a task being solved, as of `as_of`"""
    missed: bytearray = field(default_factory=bytearray)
    """float32[tasks]: what speaks against it"""
    as_of: bytearray = field(default_factory=bytearray)
    """int32[tasks]: steps that were over when its figures were last changed; 0: never"""
    figures: dict[str, float] = field(default_factory=dict)
    """By name, what a sampler remembers that is of no single task, such as how far it went through the set. Floats, no
    integers: snapshots before and after a restart are compared to the byte."""

    def evidence(self, tasks: "Numbers", step: int, fades: float) -> "tuple[Floats, Floats]":
        """Return the evidence of tasks before a step, for and against, where an idle step leaves a share `fades`."""
        if not self.solved:
            return np.zeros(len(tasks)), np.zeros(len(tasks))
        solved, missed, as_of = self.columns()
        left = fades ** np.maximum(step - as_of[tasks], 0)
        return solved[tasks] * left, missed[tasks] * left

    def of(self, task: int) -> tuple[float, float, int]:
        """Return the three figures of a task as they were put."""
        if not self.solved:
            return 0.0, 0.0, 0
        solved, missed, as_of = self.columns()
        return float(solved[task]), float(missed[task]), int(as_of[task])

    def put(self, tasks: int, task: int, solved: float, missed: float, as_of: int) -> None:
        """Remember the figures of one of so many tasks once so many steps are over."""
        if not self.solved:
            self.solved, self.missed, self.as_of = (bytearray(4 * tasks) for _ in range(3))
        columns = self.columns()
        columns[0][task], columns[1][task], columns[2][task] = solved, missed, as_of

    def columns(self) -> "tuple[Column, Column, Steps]":
        """Return the columns, to read; empty before the first observation."""
        return (
            np.frombuffer(self.solved, "<f4"),
            np.frombuffer(self.missed, "<f4"),
            np.frombuffer(self.as_of, "<i4"),
        )


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence of tasks before a step, where an idle step leaves a share `fades` of it."""

    belief: TaskBelief
    step: int
    fades: float

    def of(self, tasks: "Numbers") -> "tuple[Floats, Floats]":
        """Return the evidence for and against each of some tasks."""
        return self.belief.evidence(tasks, self.step, self.fades)

    def parts(self, tasks: int) -> "Iterator[tuple[int, Column, Column]]":
        """Yield part after part of a set: number of its first task, shares that speak for each task, and totals.

        In single precision, and a few times quicker than `of`. A task of which nothing is known has share and total 0.
        """
        solved, missed, as_of = self.belief.columns()
        # After the last step of the table hardly anything is left; what is taken instead is more than that.
        steps = min(self.step, int(-21.0 / np.log(self.fades)) if self.fades < 1.0 else 0)
        left = np.exp(np.arange(steps + 1) * np.log(self.fades)).astype("<f4")
        for first in range(0, tasks, _PART):
            part = slice(first, min(first + _PART, tasks))
            if not len(solved):
                yield first, np.zeros(part.stop - first, "<f4"), np.zeros(part.stop - first, "<f4")
                continue
            totals = solved[part] + missed[part]
            shares = solved[part] / (totals + _TINY)
            totals *= left.take(self.step - as_of[part], mode="clip")
            yield first, shares, totals


_PART, _TINY = 65_536, np.float32(1e-30)
