"""Which task an episode group plays.

Training and evaluation never share a task seed: the key names which of the two it is for, and the environment keeps its
held-out tasks apart by the flag. Evaluation walks the same tasks every time, so that its points are comparable.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, TypeVar

from flexmarl.algorithms.registry import Plugin, Registry
from flexmarl.algorithms.seeds import derive
from flexmarl.contracts.specification.task_choice import TASK_SAMPLER, TaskSamplerOptions, UniformOptions


@dataclass(frozen=True, slots=True)
class TaskDraw:
    seed: int
    held_out: bool


SamplerSettings = TypeVar("SamplerSettings", bound=TaskSamplerOptions)


class TaskSampler(Plugin[SamplerSettings], ABC):
    """Chooses the task of a draw. A pure function of the run's seed and the draw's number."""

    @abstractmethod
    def train(self, run_seed: int, draw: int) -> TaskDraw:
        """Return the task of a training draw."""

    @abstractmethod
    def evaluation(self, run_seed: int, index: int) -> TaskDraw:
        """Return the `index`-th held-out task."""


class Uniform(TaskSampler[UniformOptions]):
    """Every task seed is as likely as any other, at any time."""

    Options = UniformOptions

    def train(self, run_seed: int, draw: int) -> TaskDraw:
        """Return the task of a training draw."""
        return TaskDraw(derive(run_seed, "task", draw), held_out=False)

    def evaluation(self, run_seed: int, index: int) -> TaskDraw:
        """Return the `index`-th held-out task."""
        return TaskDraw(derive(run_seed, "held-out task", index), held_out=True)


TASK_SAMPLERS: Registry[TaskSampler[Any]] = Registry(TASK_SAMPLER, (Uniform,))
