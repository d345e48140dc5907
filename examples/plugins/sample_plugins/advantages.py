"""Reward minus the median of the group: one episode that went very well or very badly moves nobody else's."""

from collections.abc import Sequence
from math import isfinite
from statistics import median

from flexmarl.algorithms.advantages import Advantage, Advantages
from flexmarl.algorithms.group_keys import GroupKey
from flexmarl.algorithms.rewards import Rewards
from flexmarl.contracts.wire import EpisodeOutcome
from sample_plugins.options import MedianBaselineOptions


class MedianBaseline(Advantage[MedianBaselineOptions]):
    def estimate(self, key: GroupKey, episodes: Sequence[EpisodeOutcome], rewards: Sequence[Rewards]) -> Advantages:
        keys = [[key(sample, self.options.per_turn) for sample in episode.samples] for episode in episodes]
        peers: dict[tuple[str, int], list[float]] = {}
        for own_keys, own in zip(keys, rewards, strict=True):
            for row_key, reward in zip(own_keys, own, strict=True):
                if not isfinite(reward):
                    raise ValueError("a reward is not a finite number")
                peers.setdefault(row_key, []).append(reward)
        middle = {row_key: median(values) for row_key, values in peers.items()}
        return [
            [self._bounded(reward - middle[row_key]) for row_key, reward in zip(own_keys, own, strict=True)]
            for own_keys, own in zip(keys, rewards, strict=True)
        ]

    def _bounded(self, advantage: float) -> float:
        return min(max(advantage, -self.options.bound), self.options.bound)
