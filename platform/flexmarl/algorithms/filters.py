"""Which complete episode groups are trained on, and what a group says about its task before any filter.

A refused group's rows are recorded, never trained; the share of refused groups is a metric, because a filter changes
the distribution of tasks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from flexmarl.algorithms.advantages import Advantages
from flexmarl.algorithms.registry import Registry
from flexmarl.contracts.wire import EpisodeOutcome


class Signal(StrEnum):
    """What a group teaches."""

    USEFUL = "useful"
    """Some member did better than another."""
    EASY = "easy"
    """All members did equally, and solved it."""
    HARD = "hard"
    """All members did equally, and not all solved it."""


@dataclass(frozen=True, slots=True)
class GroupFilter:
    keeps: Callable[[Signal], bool]
    """True keeps the group."""
    draws_again: bool = False
    """Another task is drawn for each group that is refused, as far as the specification allows."""


def signal_of(episodes: Sequence[EpisodeOutcome], advantages: Advantages) -> Signal:
    """Classify a group by the advantages it yields."""
    if any(value != 0.0 for row in advantages for value in row):
        return Signal.USEFUL
    if episodes and all(episode.solved for episode in episodes):
        return Signal.EASY
    return Signal.HARD


def keep_all(signal: Signal) -> bool:
    """Keep every group."""
    return True


def drop_zero_variance(signal: Signal) -> bool:
    """Keep groups in which some member did better than another."""
    return signal is Signal.USEFUL


GROUP_FILTERS: Registry[GroupFilter] = Registry(
    "group_filter",
    {
        "none": GroupFilter(keep_all),
        "drop_zero_variance": GroupFilter(drop_zero_variance),
        "dynamic_sampling": GroupFilter(drop_zero_variance, draws_again=True),
    },
)
