"""How many members each group of a step plays. Pure: what is to be remembered is in the belief that the core keeps.

Only earlier groups decide, never the one that is counted, so a member's expected advantage in its group is what it is
in a group of that size; what changes is how much of a step each task makes up.
"""

import heapq
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from flexmarl.algorithms import success_predictor
from flexmarl.algorithms.registry import Plugin, Registry
from flexmarl.algorithms.task_belief import TaskBelief
from flexmarl.algorithms.task_sampler import PlayedTask
from flexmarl.contracts.specification.member_counts import (
    MEMBER_COUNT,
    EqualOptions,
    FewerWhenSolvedOptions,
    MemberCountOptions,
    MixedOutcomesOptions,
)

MemberSettings = TypeVar("MemberSettings", bound=MemberCountOptions)


class MemberCount(Plugin[MemberSettings], ABC):
    """Chooses how many members the groups of draws have that are proposed together."""

    @abstractmethod
    def counts(self, belief: TaskBelief, tasks: Sequence[int], members: int) -> list[int]:
        """Return the members of a group of each task; `members` is what the specification gives each."""

    @abstractmethod
    def observe(self, belief: TaskBelief, played: PlayedTask) -> None:
        """Take in how a group ended, before any filter saw it."""

    def why(self, belief: TaskBelief, task: int) -> str:
        """Say in words why a group of a task has another number of members than the specification gives."""
        return ""


class Equal(MemberCount[EqualOptions]):
    Options = EqualOptions

    def counts(self, belief: TaskBelief, tasks: Sequence[int], members: int) -> list[int]:
        return [members] * len(tasks)

    def observe(self, belief: TaskBelief, played: PlayedTask) -> None:
        """Believe nothing."""


class FewerWhenSolved(MemberCount[FewerWhenSolvedOptions]):
    """DART's dynamic number of rollouts."""

    Options = FewerWhenSolvedOptions

    def counts(self, belief: TaskBelief, tasks: Sequence[int], members: int) -> list[int]:
        """Return fewer members where the last group of a task was solved well."""
        return [self._count(belief, task, members) for task in tasks]

    def _count(self, belief: TaskBelief, task: int, members: int) -> int:
        rate, _, as_of = belief.of(task)
        if not as_of or rate < self.options.threshold:
            return members
        return fewer(rate, members, self.options.least)

    def observe(self, belief: TaskBelief, played: PlayedTask) -> None:
        """Remember how well the last group of a task did."""
        rate = sum(sorted(played.shares)) / len(played.shares)
        belief.put(played.tasks, played.task, rate, 0.0, played.step + 1)

    def why(self, belief: TaskBelief, task: int) -> str:
        """Say how well the last group of a task did."""
        rate, _, as_of = belief.of(task)
        return f"the last group of task {task}, in step {as_of}, reached {rate:.2f} of its score" if as_of else ""


class MixedOutcomes(MemberCount[MixedOutcomesOptions]):
    """TRACE's first stage: the budget of a step goes where members most likely make a group's outcomes differ."""

    Options = MixedOutcomesOptions

    def counts(self, belief: TaskBelief, tasks: Sequence[int], members: int) -> list[int]:
        """Distribute `members` for each of the tasks over them, by what the predictor says of their success."""
        chances = success_predictor.predicted(belief, np.array(tasks, np.int64))
        least = min(self.options.least, members)
        return allocated(chances.tolist(), members * len(tasks), least, max(self.options.most, members))

    def observe(self, belief: TaskBelief, played: PlayedTask) -> None:
        """Remember what the predictor is fitted to."""
        success_predictor.observe(belief, played)

    def why(self, belief: TaskBelief, task: int) -> str:
        """Say what is predicted of a task."""
        chance = float(success_predictor.predicted(belief, np.array([task], np.int64))[0])
        return f"the predicted success of task {task} is {chance:.2f}"


def fewer(rate: float, members: int, least: int) -> int:
    """Return the members of a group whose task was solved at this rate: of 8 members max(least, int(9 / rate - 7)).

    The factors of other sizes are such that a task that is always solved gets 2, as with 8.
    """
    return min(members, max(least, int((members + 1) / rate - (members - 1) + 1e-9)))


def mixed(chance: float, members: int) -> float:
    """Return the chance that so many members with this chance of success do not all end alike."""
    return 1.0 - chance**members - (1.0 - chance) ** members


def allocated(chances: Sequence[float], budget: int, least: int = 1, most: int | None = None) -> list[int]:
    """Distribute a budget of members so that the sum of `mixed` is largest. Ties go to the first.

    What another member adds falls with each, so the greedy choice is the best one. All of the budget is given, unless
    each has `most`.
    """
    found = [least] * len(chances)
    waiting = [(-_gain(chance, least), least, place) for place, chance in enumerate(chances)]
    heapq.heapify(waiting)
    for _ in range(budget - least * len(chances)):
        while waiting and most is not None and found[waiting[0][2]] >= most:
            heapq.heappop(waiting)
        if not waiting:
            break
        place = waiting[0][2]
        found[place] += 1
        heapq.heapreplace(waiting, (-_gain(chances[place], found[place]), found[place], place))
    return found


def _gain(chance: float, members: int) -> float:
    return float(chance**members * (1.0 - chance) + (1.0 - chance) ** members * chance)


MEMBER_COUNTS: Registry[MemberCount[Any]] = Registry(MEMBER_COUNT, (Equal, FewerWhenSolved, MixedOutcomes))
