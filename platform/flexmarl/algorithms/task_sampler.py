"""Which task an episode group plays.

Training and evaluation never share a task seed: the key names which of the two it is for, and the environment keeps its
held-out tasks apart by the flag. Evaluation walks the same tasks every time, so that its points are comparable.
"""

from dataclasses import dataclass
from typing import Protocol

from flexmarl.algorithms.registry import Registry
from flexmarl.algorithms.seeds import derive


@dataclass(frozen=True, slots=True)
class TaskDraw:
    seed: int
    held_out: bool


class TaskSampler(Protocol):
    """Chooses the task of a draw. A pure function of the run's seed and the draw's number."""

    def train(self, run_seed: int, draw: int) -> TaskDraw:
        """Return the task of a training draw."""

    def evaluation(self, run_seed: int, index: int) -> TaskDraw:
        """Return the `index`-th held-out task."""


class Uniform:
    """Every task seed is as likely as any other, at any time."""

    def train(self, run_seed: int, draw: int) -> TaskDraw:
        """Return the task of a training draw."""
        return TaskDraw(derive(run_seed, "task", draw), held_out=False)

    def evaluation(self, run_seed: int, index: int) -> TaskDraw:
        """Return the `index`-th held-out task."""
        return TaskDraw(derive(run_seed, "held-out task", index), held_out=True)


TASK_SAMPLERS: Registry[TaskSampler] = Registry("task_sampler", {"uniform": Uniform()})
