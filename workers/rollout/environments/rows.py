"""Environments whose tasks are rows of a dataset: which row a task is, and what judges replies to it."""

from typing import TypeVar

from flexmarl.algorithms.scores import RowScorer
from flexmarl.contracts.row_order import epoch_of, row_of
from flexmarl.contracts.specification.dataset import RowTasks
from flexmarl.contracts.specification.scores import ScoreOptions
from workers.rollout.datasets import DatasetLines, DatasetMissing
from workers.rollout.environments.base import Family
from workers.scoring.apart import ApartScorer

EPOCH = "epoch"
"""Fact: passes through the training rows before this one."""

RowSettings = TypeVar("RowSettings", bound=RowTasks)


def training_line(lines: DatasetLines, task_seed: int, seed: int) -> tuple[bytes, int]:
    """Return the row to train on of a task, and its epoch. `seed`: of the order of rows."""
    rows = len(lines.training)
    return lines.training[row_of(task_seed, rows, seed)], epoch_of(task_seed, rows)


class RowFamily(Family[RowSettings]):
    """Episodes about rows."""

    def __init__(self, spec: RowSettings, scores: tuple[ScoreOptions, ...]) -> None:
        super().__init__(spec)
        self.roles = tuple(role.name for role in spec.facts().roles)
        self.scorer = RowScorer(scores)
        self.apart = ApartScorer(scores)
        self.lines: DatasetLines | None = None
        """Set by whoever plays; the roles are known without."""

    def line_of(self, task_seed: int, held_out: bool) -> tuple[bytes, int | None]:
        """Return the row of a task, and its epoch where it is one to train on. Raises DatasetMissing."""
        if self.lines is None:
            raise DatasetMissing(f"the rows of {self.options.dataset.name} were not read")
        if held_out:
            return self.lines.held_out[task_seed % len(self.lines.held_out)], None
        return training_line(self.lines, task_seed, self.options.seed)

    async def close(self) -> None:
        """End the processes that score."""
        await self.apart.close()
