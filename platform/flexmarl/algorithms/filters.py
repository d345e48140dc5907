"""Which complete episode groups are trained on, and what a group says about its task before any filter.

A refused group's rows are recorded, never trained; the share of refused groups is a metric, because a filter changes
the distribution of tasks.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, TypeVar

from flexmarl.algorithms.advantages import Advantages
from flexmarl.algorithms.registry import Plugin, Registry
from flexmarl.contracts.specification.task_choice import (
    GROUP_FILTER,
    DropZeroVarianceOptions,
    DynamicSamplingOptions,
    GroupFilterOptions,
    NoFilterOptions,
)
from flexmarl.contracts.wire import EpisodeOutcome


class Signal(StrEnum):
    """What a group teaches."""

    USEFUL = "useful"
    """Some member did better than another."""
    EASY = "easy"
    """All members did equally, and solved it."""
    HARD = "hard"
    """All members did equally, and not all solved it."""


FilterSettings = TypeVar("FilterSettings", bound=GroupFilterOptions)


class GroupFilter(Plugin[FilterSettings], ABC):
    """A choice of the groups that are trained on."""

    @abstractmethod
    def keeps(self, signal: Signal) -> bool:
        """Tell whether a group is trained on."""

    @property
    def draws_again(self) -> bool:
        """Whether another task is drawn for each group that is refused, as far as the specification allows."""
        return self.options.most_draws > 1


def signal_of(episodes: Sequence[EpisodeOutcome], advantages: Advantages) -> Signal:
    """Classify a group by the advantages it yields."""
    if any(value != 0.0 for row in advantages for value in row):
        return Signal.USEFUL
    if episodes and all(episode.solved for episode in episodes):
        return Signal.EASY
    return Signal.HARD


class NoFilter(GroupFilter[NoFilterOptions]):
    Options = NoFilterOptions

    def keeps(self, signal: Signal) -> bool:
        return True


class DropZeroVariance(GroupFilter[DropZeroVarianceOptions]):
    """Keeps groups in which some member did better than another."""

    Options = DropZeroVarianceOptions

    def keeps(self, signal: Signal) -> bool:
        return signal is Signal.USEFUL


class DynamicSampling(GroupFilter[DynamicSamplingOptions]):
    """Keeps the same groups; its options say how often others are drawn."""

    Options = DynamicSamplingOptions

    def keeps(self, signal: Signal) -> bool:
        return signal is Signal.USEFUL


GROUP_FILTERS: Registry[GroupFilter[Any]] = Registry(GROUP_FILTER, (NoFilter, DropZeroVariance, DynamicSampling))
