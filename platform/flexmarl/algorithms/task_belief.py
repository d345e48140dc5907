"""What a task sampler believes of the tasks of a fixed set: how much evidence there is that each is solved, or is not.

Memory of a run: three columns with a figure per task, which go to the run's snapshot and back to the bit. Evidence
fades while a task is not played; that is worked out where it is read, so that a step costs nothing per task.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Numbers = npt.NDArray[np.int64]


@dataclass(slots=True)
class TaskBelief:
    """Columns are created with the first observation; before, nothing is believed of any task."""

    solved: bytearray = field(default_factory=bytearray)
    """float32[tasks]: evidence that a task is solved, as of `as_of`"""
    missed: bytearray = field(default_factory=bytearray)
    """float32[tasks]: evidence that it is not"""
    as_of: bytearray = field(default_factory=bytearray)
    """int32[tasks]: steps that were over when its evidence was last changed"""

    def evidence(self, tasks: "Numbers", step: int, fades: float) -> "tuple[Floats, Floats]":
        """Return the evidence of tasks before a step, for and against, where an idle step leaves a share `fades`."""
        if not self.solved:
            return np.zeros(len(tasks)), np.zeros(len(tasks))
        solved, missed, as_of = self._columns()
        left = fades ** np.maximum(step - as_of[tasks], 0)
        return solved[tasks] * left, missed[tasks] * left

    def put(self, tasks: int, task: int, solved: float, missed: float, as_of: int) -> None:
        """Remember the evidence of one of so many tasks once so many steps are over."""
        if not self.solved:
            self.solved, self.missed, self.as_of = (bytearray(4 * tasks) for _ in range(3))
        columns = self._columns()
        columns[0][task], columns[1][task], columns[2][task] = solved, missed, as_of

    def _columns(self) -> "tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], npt.NDArray[np.int32]]":
        return (
            np.frombuffer(self.solved, "<f4"),
            np.frombuffer(self.missed, "<f4"),
            np.frombuffer(self.as_of, "<i4"),
        )
