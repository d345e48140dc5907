"""Advantages of a group whose members continue others: what each turn led to, against what its siblings led to.

A turn's value is the mean score of the episodes that go through it. Where its prefix was continued by others, it is
compared with the turns that these said in its place; elsewhere with the first turns of the episodes that began anew,
or with `nearest` as the last turn before it that was (where there is none, again with the first turns).
Every turn is in one row, that of the member that said it, so that none counts more often than once, however many
episodes go through it. The loss of TRACE (arXiv 2606.11119) is not published; this is a reading of it.

Invariants: a group in which nobody continues another is compared as `grpo` does, to the bit; siblings of equal values
get exactly 0.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from flexmarl.algorithms.advantages import Advantages, Grpo, scale
from flexmarl.algorithms.group_keys import GroupKey
from flexmarl.algorithms.prefix_predictor import leaves
from flexmarl.algorithms.rewards import Rewards, role_reward
from flexmarl.contracts.specification.advantages import GrpoOptions
from flexmarl.contracts.wire import EpisodeOutcome


@dataclass(frozen=True, slots=True)
class _Round:
    """The turns that were asked for at once after a prefix: where they begin in their root, and how many they are."""

    begins: int
    turns: int


class TreeGrpo(Grpo):
    """`grpo` over the tree of a group."""

    def __init__(self, options: GrpoOptions, nearest: bool = False) -> None:
        """Say what turns without siblings are compared with: what the nearest before them is, or the first turns."""
        super().__init__(options)
        self._nearest = nearest

    def estimate(self, key: GroupKey, episodes: Sequence[EpisodeOutcome], rewards: Sequence[Rewards]) -> Advantages:
        """Value minus the mean of the siblings, divided by their standard deviation where the options ask."""
        roots = {one.member: one for one in episodes if one.branch is None or one.branch.root < 0}
        if len(roots) == len(episodes):
            return super().estimate(key, episodes, rewards)
        by_role = {
            role: _Compared(self.options, role, episodes, roots, self._nearest)
            for role in {sample.role for one in episodes for sample in one.samples}
        }
        return [
            [by_role[sample.role].advantage(episode, place) for place, sample in enumerate(episode.samples)]
            for episode in episodes
        ]


class _Compared:
    """What the turns of one role led to."""

    def __init__(
        self,
        options: GrpoOptions,
        role: str,
        episodes: Sequence[EpisodeOutcome],
        roots: dict[int, EpisodeOutcome],
        nearest: bool,
    ) -> None:
        self._episodes = episodes
        self._roots = roots
        self._divides = options.divide_by_std
        self._nearest = nearest
        self._scores = {one.member: role_reward(options, one, role) for one in episodes}
        acted = [one for one in roots.values() if any(sample.role == role for sample in one.samples)]
        # Who acted only where others were continued has nobody to be compared with from the start.
        self._of_roots = scale(sorted(self._value(one, 1) for one in acted), self._divides) if acted else (0.0, 0.0)

    def advantage(self, episode: EpisodeOutcome, place: int) -> float:
        """Return the advantage of the turn at a place of an episode."""
        branch = episode.branch
        if branch is None or branch.root < 0:
            root, begins = episode, _round_at(episode, place).begins
            value = self._value(root, begins + 1)
            branched = [begins, *(range(begins - 1, 0, -1) if self._nearest else ())]
        else:
            root, value = self._roots[branch.root], self._scores[episode.member]
            first = place < _round_at(root, branch.turns).turns
            branched = [branch.turns] if first or self._nearest else []
        mean, factor = next((found for turns in branched if (found := self._siblings(root, turns))), self._of_roots)
        return (value - mean) * factor

    def _siblings(self, root: EpisodeOutcome, turns: int) -> tuple[float, float] | None:
        """Return the scale of what was said after so many turns of a root; None where nobody else went on there."""
        others = [
            self._scores[one.member]
            for one in self._episodes
            if one.branch is not None and one.branch.root == root.member and one.branch.turns == turns
        ]
        return scale(sorted([self._value(root, turns + 1), *others]), self._divides) if others else None

    def _value(self, root: EpisodeOutcome, turns: int) -> float:
        """Return the mean score of the episodes that go through so many turns of a root."""
        scores = sorted(self._scores[one.member] for one in leaves(self._episodes, root, turns))
        return scores[0] if scores[0] == scores[-1] else sum(scores) / len(scores)


def _round_at(root: EpisodeOutcome, place: int) -> _Round:
    """Return the round that a turn of a root is part of."""
    prefixes = root.branch.prefixes if root.branch is not None else ()
    starts = [0, *(prefix.turns for prefix in prefixes), len(root.samples)]
    number = bisect_right(starts, place) - 1
    return _Round(starts[number], starts[number + 1] - starts[number])
