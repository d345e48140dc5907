"""The least time from one cohort to the next, where a policy that every episode begins with is trained at bound 0.

No episode of a cohort begins before that policy's weights are loaded, and the next ones are trained of all its groups.
So a step takes what all of these need one after the other, whoever plans it and whatever it knows beforehand:

- A group settles no earlier than its longest episode would on engines of its own.
- Its gradient waits for that, since an advantage is made of the whole group. What settles late is computed late: once a
  group has settled, the gradients of all groups that settle no earlier are still to come.
- A reply takes a part of an engine: of b replies together each takes 1/b, and all are slowed down by b. The least part
  that a reply takes at some pace is convex in that pace, and nothing at a pace of 0. So of all ways to make the replies
  of an episode within a time, a steady pace takes least (Jensen), and the parts of all episodes must fit into engines.

Invariant: all of it is a relaxation. Integral batches, queues, moves, loads on the way, prompts beside replies, and
that nobody knows beforehand how long a reply will be, only make a real schedule longer.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Seconds = NDArray[np.float64]

CLOSE = 1e-9
"""Share of a step to which the least time is found."""


@dataclass(frozen=True, slots=True)
class EpisodeDemand:
    """What an episode needs, in seconds on an engine of its own."""

    fixed_s: float
    """Waits, rewards, and the prompts of its path: no batch changes these."""
    chain_s: float
    """Replies that follow each other: of each stage the one that takes longest."""
    beside_s: float
    """All its other replies."""


@dataclass(frozen=True, slots=True)
class GroupDemand:
    """The episodes of a task, and their gradient on one device."""

    episodes: tuple[EpisodeDemand, ...]
    gradient_s: float

    @property
    def settles_s(self) -> float:
        """Return when it settles at the earliest."""
        return max(own.fixed_s + own.chain_s for own in self.episodes)


@dataclass(frozen=True, slots=True)
class EngineCapacity:
    """Engines that are all alike; steps of b replies take 1 + (b - 1) / batch times as long as those of one."""

    engines: float
    batch: float
    slots: int

    def least_share(self, pace: Seconds) -> Seconds:
        """Return the least part of an engine that a reply takes at a pace; at 1 it has an engine of its own."""
        if self.batch <= 1.0:  # replies together are no faster than one after the other
            return pace
        fullest = 1.0 / (1.0 + (self.slots - 1) / self.batch)
        alone = np.maximum(pace, fullest)
        return np.where(pace <= fullest, pace / (fullest * self.slots), alone / (self.batch - (self.batch - 1) * alone))


def turnover(groups: Sequence[GroupDemand], engines: EngineCapacity, ranks: float, after_s: float) -> float:
    """Return the least seconds from a cohort's weights to those of the next one.

    `ranks` devices share the gradients; `after_s` follows the last of these: its fixed part, the step and the load.
    """
    gradients = np.array([group.gradient_s / ranks for group in groups])
    settles = np.array([group.settles_s for group in groups])
    order = np.argsort(settles, kind="stable")
    behind = np.cumsum(gradients[order][::-1])[::-1]
    paths = float(np.max(settles[order] + behind)) + after_s
    return max(paths, _crowded(groups, gradients, engines, after_s))


def _crowded(groups: Sequence[GroupDemand], gradients: Seconds, engines: EngineCapacity, after_s: float) -> float:
    """Return the least time in which the engines have room for all replies, each done in time for its gradient."""
    rows = [
        (own.fixed_s, own.chain_s, own.beside_s, gradient)
        for group, gradient in zip(groups, gradients, strict=True)
        for own in group.episodes
    ]
    fixed, chain, beside, gradient = np.array(rows).T
    least = engines.least_share(np.full(1, 1e-12))[0] / 1e-12
    low = float(np.max(fixed + chain + gradient))
    high = low + float(np.sum(chain + beside)) + CLOSE

    def fits(due: float) -> bool:
        within = np.maximum(due - fixed - gradient, 1e-300)
        taken = within * engines.least_share(np.minimum(chain / within, 1.0)) + least * beside
        return bool(np.sum(taken) <= engines.engines * due)

    while high - low > CLOSE * high:
        middle = (low + high) / 2.0
        low, high = (low, middle) if fits(middle) else (middle, high)
    return low + after_s
