"""Which task an episode group plays.

Training and evaluation never share a task seed: the key names which of the two it is for, and the environment keeps its
held-out tasks apart by the flag. Evaluation walks the same tasks every time, so that its points are comparable.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from flexmarl.algorithms import greso, near_success, success_predictor
from flexmarl.algorithms.registry import Plugin, Registry
from flexmarl.algorithms.seeds import derive
from flexmarl.algorithms.solved_tasks import in_set, longest_away, visits_to_leave
from flexmarl.algorithms.task_belief import Evidence, TaskBelief
from flexmarl.algorithms.vade import drawn, most_evidence
from flexmarl.contracts.specification.task_choice import (
    TASK_SAMPLER,
    FilterSolvedOptions,
    GresoOptions,
    NearSuccessOptions,
    TaskSamplerOptions,
    UniformOptions,
    VadeOptions,
)
from flexmarl.contracts.wire import EpisodeOutcome


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

    def require_enough(self) -> None:
        """Raise ValueError where the set has too few."""
        if self.tasks - len(self.excluded) < self.count:
            gone = len(self.excluded)
            raise ValueError(f"{self.count} tasks are wanted of {self.tasks}, of which {gone} are excluded")


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
    alike: bool = False
    """Whether several finished and all earned the same, whatever share that is: zero variance."""


def all_alike(finished: Sequence[EpisodeOutcome]) -> bool:
    """Tell whether several members finished, and the team and every role earned the same in each."""
    earned = {(episode.team_score, *sorted(episode.scores.items())) for episode in finished}
    return len(finished) > 1 and len(earned) == 1


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
        """Return the numbers of the tasks to play, all different and none excluded, if its options say `chooses`.

        What it is to remember of the choice, such as how far it went, it puts into the belief.
        """

    @abstractmethod
    def observe(self, belief: TaskBelief, played: PlayedTask) -> None:
        """Take in how a group ended, before any filter saw it."""

    def of_task(self, belief: TaskBelief, task: int) -> str:
        """Say in words what is believed of a task; empty: nothing."""
        return ""

    def of_set(self, belief: TaskBelief, tasks: int) -> str:
        """Say in words what is believed of a set of so many; empty: nothing."""
        return ""


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
        return drawn(
            rng,
            wanted.tasks,
            wanted.count,
            Evidence(belief, wanted.step, self.options.keep_when_idle),
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

    def of_task(self, belief: TaskBelief, task: int) -> str:
        """Say how much speaks for a task being solved, and against it."""
        solved, missed, as_of = belief.of(task)
        if not as_of:
            return "not played yet"
        return f"evidence {solved:.1f} that it is solved and {missed:.1f} that it is not, after step {as_of}"


class Greso(TaskSampler[GresoOptions]):
    """Passes over tasks whose last groups had no variance, the likelier the more there were."""

    Options = GresoOptions

    def choose(self, belief: TaskBelief, wanted: Wanted) -> list[int]:
        """Go through the set in its order; each task with a streak is played by chance."""
        wanted.require_enough()
        self._begin_step(belief, wanted)
        rng = np.random.default_rng(derive(wanted.run_seed, "greso", wanted.draw))
        bases, floors = self._bases(belief), self._floors()
        found, position = greso.walked(
            wanted.tasks,
            wanted.count,
            int(belief.figures["position"]),
            wanted.excluded,
            lambda numbers: rng.random(len(numbers)) < greso.chances(*belief.evidence(numbers, 0, 1.0), bases, floors),
        )
        belief.figures["position"] = float(position)
        return found

    def _begin_step(self, belief: TaskBelief, wanted: Wanted) -> None:
        """Move the bases by what was observed since the step before, once the set has been gone through."""
        figures, options = belief.figures, self.options
        if "position" not in figures:
            figures |= {"position": 0.0, "step": float(wanted.step), "easy": options.easy, "hard": options.hard}
        if wanted.step <= figures["step"]:
            return
        groups = figures.get("groups", 0.0)
        if groups and figures["position"] >= wanted.tasks:
            easy, hard = figures["solved_groups"] / groups, figures["missed_groups"] / groups
            figures["easy"] = greso.moved(figures["easy"], easy, options.target_easy, options.move_by)
            figures["hard"] = greso.moved(figures["hard"], hard, options.target_hard, options.move_by)
        figures |= {"step": float(wanted.step), "groups": 0.0, "solved_groups": 0.0, "missed_groups": 0.0}

    def observe(self, belief: TaskBelief, played: PlayedTask) -> None:
        """Lengthen the streak of a task whose group had no variance, or end it."""
        if len(played.shares) < 2:
            return  # one member says nothing about variance
        solved, missed, _ = belief.of(played.task)
        if not played.alike:
            kinds = (0.0, 0.0)
        elif sum(sorted(played.shares)) / len(played.shares) > greso.SOLVED_ABOVE:
            kinds = (solved + 1.0, 0.0)
        else:
            kinds = (0.0, missed + 1.0)
        belief.put(played.tasks, played.task, *kinds, played.step + 1)
        for name, counted in (("groups", True), ("solved_groups", kinds[0] > 0), ("missed_groups", kinds[1] > 0)):
            belief.figures[name] = belief.figures.get(name, 0.0) + counted

    def of_task(self, belief: TaskBelief, task: int) -> str:
        """Say how long the streak of a task is, and how likely it is passed over when it comes."""
        solved, missed, as_of = belief.of(task)
        if not as_of:
            return "not played yet"
        if not solved + missed:
            return f"members differed when it was last played, in step {as_of}: never passed over"
        how = "solved" if solved else "missed"
        chance = float(greso.chances(np.array([solved]), np.array([missed]), self._bases(belief), self._floors())[0])
        streak = f"{how} without variance, streak of {int(solved + missed)}"
        return f"{streak}: passed over with probability {1.0 - chance:.2f}"

    def of_set(self, belief: TaskBelief, tasks: int) -> str:
        """Say how many tasks have a streak, and with what bases they are played."""
        solved, missed, _ = belief.columns()
        (easy, hard), (least_easy, least_hard) = self._bases(belief), self._floors()
        return (
            f"of {tasks} tasks {np.count_nonzero(solved)} were last solved without variance and "
            f"{np.count_nonzero(missed)} missed; after z such groups in a row one is played with probability "
            f"{easy:.2f}^z, at least {least_easy:.2f}, or {hard:.2f}^z, at least {least_hard:.2f}"
        )

    def _bases(self, belief: TaskBelief) -> tuple[float, float]:
        return belief.figures.get("easy", self.options.easy), belief.figures.get("hard", self.options.hard)

    def _floors(self) -> tuple[float, float]:
        return self.options.least_easy, self.options.least_hard


class FilterSolved(TaskSampler[FilterSolvedOptions]):
    """Leaves out tasks that are solved, until nothing else is left to play."""

    Options = FilterSolvedOptions

    def choose(self, belief: TaskBelief, wanted: Wanted) -> list[int]:
        """Go through the tasks that are left in their order; where they are too few, the longest away come back."""
        wanted.require_enough()
        rates, _, as_of = belief.columns()
        start, threshold = int(belief.figures.get("next", 0)), self.options.threshold
        found = in_set(rates, wanted.tasks, threshold, start, wanted.count, wanted.excluded)
        if found:
            belief.figures["next"] = float((found[-1] + 1) % wanted.tasks)
        return found + longest_away(rates, as_of, threshold, wanted.count - len(found), wanted.excluded)

    def observe(self, belief: TaskBelief, played: PlayedTask) -> None:
        """Move the mean of a task towards what its group earned."""
        before, left_in, _ = belief.of(played.task)
        mean = sum(sorted(played.shares)) / len(played.shares)
        rate = self.options.decay * before + (1.0 - self.options.decay) * mean
        left_in = (left_in or played.step + 1) if np.float32(rate) > self.options.threshold else 0
        belief.put(played.tasks, played.task, rate, left_in, played.step + 1)

    def of_task(self, belief: TaskBelief, task: int) -> str:
        """Say how well a task is solved, and since when it has been left out."""
        rate, left_in, as_of = belief.of(task)
        if not as_of:
            return "not played yet"
        known = f"moving mean of its score {rate:.2f}, last played in step {as_of}"
        return f"{known}; left out since step {int(left_in)}" if left_in else known

    def of_set(self, belief: TaskBelief, tasks: int) -> str:
        """Say how many tasks are left out, and since when."""
        left_in = belief.columns()[1]
        gone = left_in[left_in > 0]
        visits = visits_to_leave(self.options.decay, self.options.threshold)
        rule = "none ever is" if visits is None else f"a new one is after {visits} groups that all solved"
        since = f", the first since step {int(gone.min())}" if len(gone) else ""
        return f"of {tasks} tasks {len(gone)} are left out as solved{since}; {rule}"


class NearSuccess(TaskSampler[NearSuccessOptions]):
    """Prefers tasks whose predicted success is near a target; the rest of the groups play the set in its order."""

    Options = NearSuccessOptions

    def choose(self, belief: TaskBelief, wanted: Wanted) -> list[int]:
        """Fit the predictor, take the tasks that are next in order, and fill up with those nearest to the target."""
        wanted.require_enough()
        figures = belief.figures
        turns, left = near_success.owed(figures.get("owed", 0.0), self.options.in_order, wanted.count)
        found, position = greso.walked(
            wanted.tasks, turns, int(figures.get("position", 0)), wanted.excluded, lambda numbers: numbers >= 0
        )
        figures |= {"owed": left, "position": float(position)}
        if len(found) == wanted.count:
            return found
        weights = success_predictor.fitted(belief)
        figures |= zip(_WEIGHTS, weights.tolist(), strict=True)
        return found + near_success.nearest(
            np.random.default_rng(derive(wanted.run_seed, "near_success", wanted.draw)),
            wanted.tasks,
            wanted.count - len(found),
            wanted.excluded | set(found),
            lambda numbers: success_predictor.predicted(belief, numbers, weights),
            self.options.target,
        )

    def observe(self, belief: TaskBelief, played: PlayedTask) -> None:
        """Remember what the predictor is fitted to."""
        success_predictor.observe(belief, played)

    def of_task(self, belief: TaskBelief, task: int) -> str:
        """Say what was predicted of a task, by the weights of the last choice."""
        one, as_of = np.array([task], np.int64), belief.of(task)[2]
        chance = float(success_predictor.predicted(belief, one, self._weights(belief))[0])
        if not as_of:
            return f"not played yet: predicted success {chance:.2f}"
        mean = float(success_predictor.means_of(belief, one)[0])
        return f"predicted success {chance:.2f}, moving mean of its score {mean:.2f}, last played in step {as_of}"

    def of_set(self, belief: TaskBelief, tasks: int) -> str:
        """Say how many tasks were played, and by what weights success is predicted."""
        played = np.count_nonzero(belief.columns()[2])
        once, known, slope = self._weights(belief)
        return (
            f"of {tasks} tasks {played} were played; their success is predicted as "
            f"1 / (1 + exp(-({once + known:.2f} {slope:+.2f} logit of the moving mean))), that of the others as "
            f"{1.0 / (1.0 + np.exp(-once)):.2f}, and tasks near {self.options.target:g} are preferred"
        )

    def _weights(self, belief: TaskBelief) -> "np.ndarray[tuple[int, ...], np.dtype[np.float64]]":
        """Return the weights of the last choice."""
        prior = success_predictor.PRIOR.tolist()
        return np.array([belief.figures.get(name, own) for name, own in zip(_WEIGHTS, prior, strict=True)])


_WEIGHTS = ("weight of all", "weight of played", "weight of means")
TASK_SAMPLERS: Registry[TaskSampler[Any]] = Registry(TASK_SAMPLER, (Uniform, Vade, Greso, FilterSolved, NearSuccess))
