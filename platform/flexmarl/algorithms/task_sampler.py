"""Which task an episode group plays.

Training and evaluation never share a task seed: the key names which of the two it is for, and the environment keeps its
held-out tasks apart by the flag. Evaluation walks the same tasks every time, so that its points are comparable.
"""

from abc import ABC, abstractmethod
from collections.abc import Set
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from flexmarl.algorithms.registry import Plugin, Registry
from flexmarl.algorithms.seeds import derive
from flexmarl.algorithms.task_belief import TaskBelief
from flexmarl.algorithms.vade import drawn, most_evidence
from flexmarl.contracts.specification.task_choice import TASK_SAMPLER, TaskSamplerOptions, UniformOptions, VadeOptions


@dataclass(frozen=True, slots=True)
class TaskDraw:
    seed: int
    held_out: bool


@dataclass(frozen=True, slots=True)
class Wanted:
    """Tasks that are to be chosen from a set, for draws of one step."""

    run_seed: int
    draw: int
    """Number of the first draw: no other choice of the run has it."""
    step: int
    """Cohort that will play them, from 0."""
    tasks: int
    """Size of the set; its tasks are numbered from 0."""
    count: int
    members: int
    """Most members that a group can finish."""
    excluded: Set[int]
    """Tasks that are being played."""


@dataclass(frozen=True, slots=True)
class PlayedTask:
    """A task that a group has played."""

    tasks: int
    """Size of the set."""
    task: int
    step: int
    """Cohort that it was settled in."""
    shares: tuple[float, ...]
    """Of each finished member: its team score as a share of the best there is, from 0 to 1."""


SamplerSettings = TypeVar("SamplerSettings", bound=TaskSamplerOptions)


class TaskSampler(Plugin[SamplerSettings], ABC):
    """Chooses the tasks of draws. Pure: what it is to remember is in the belief that the core keeps for it."""

    def train(self, run_seed: int, number: int) -> TaskDraw:
        """Return the task of a training draw; of a sampler that chooses, that of a number of its set."""
        return TaskDraw(derive(run_seed, "task", number), held_out=False)

    def evaluation(self, run_seed: int, index: int) -> TaskDraw:
        """Return the `index`-th held-out task."""
        return TaskDraw(derive(run_seed, "held-out task", index), held_out=True)

    @abstractmethod
    def choose(self, belief: TaskBelief, wanted: Wanted) -> list[int]:
        """Return the numbers of the tasks to play, all different and none excluded, if its options say `chooses`."""

    @abstractmethod
    def observe(self, belief: TaskBelief, played: PlayedTask) -> None:
        """Take in how a group ended, before any filter saw it."""


class Uniform(TaskSampler[UniformOptions]):
    """Every task seed is as likely as any other, at any time."""

    Options = UniformOptions

    def choose(self, belief: TaskBelief, wanted: Wanted) -> list[int]:
        """Return nothing: a draw's number is its task."""
        return []

    def observe(self, belief: TaskBelief, played: PlayedTask) -> None:
        """Believe nothing."""


class Vade(TaskSampler[VadeOptions]):
    """Prefers tasks that are solved about one time in three, by a belief per task that fades."""

    Options = VadeOptions

    def choose(self, belief: TaskBelief, wanted: Wanted) -> list[int]:
        """Sample a pass rate of each task from what is believed of it, and take the tasks that promise most."""
        rng = np.random.default_rng(derive(wanted.run_seed, "vade", wanted.draw))
        fades = self.options.keep_when_idle
        return drawn(
            rng,
            wanted.tasks,
            wanted.count,
            lambda numbers: belief.evidence(numbers, wanted.step, fades),
            most_evidence(wanted.members, self.options.keep_when_played),
            wanted.excluded,
        )

    def observe(self, belief: TaskBelief, played: PlayedTask) -> None:
        """Let what was believed fade, and add what the group's finished members earned and missed."""
        one = np.array([played.task])
        [solved], [missed] = belief.evidence(one, played.step, self.options.keep_when_idle)
        kept, earned = self.options.keep_when_played, sum(sorted(played.shares))
        missing = len(played.shares) - earned
        belief.put(played.tasks, played.task, kept * solved + earned, kept * missed + missing, played.step + 1)


TASK_SAMPLERS: Registry[TaskSampler[Any]] = Registry(TASK_SAMPLER, (Uniform, Vade))
