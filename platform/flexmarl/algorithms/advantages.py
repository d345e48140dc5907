"""Advantages of an episode group: what each row did better or worse than its peers.

Invariants: the result is aligned with the samples of the given episodes and depends on nothing else; permuting the
episodes permutes it; it is finite (a non-finite reward raises). A baseline is the mean over the episodes in which the
role acted, each counted once however often it acted, unless the spec counts rows. Rows without a peer, and rows whose
peers all got the same reward, get exactly 0.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import isfinite, sqrt
from typing import Any, TypeVar

from flexmarl.algorithms.group_keys import GROUP_KEYS, GroupKey
from flexmarl.algorithms.registry import Plugin, Registry
from flexmarl.algorithms.rewards import Rewards, as_they_come, matched_returns, row_rewards
from flexmarl.contracts.specification.advantages import (
    ADVANTAGE,
    AdvantageOptions,
    BestWorstOptions,
    GaeOptions,
    GrpoOptions,
    HabcOptions,
    ReinforceOptions,
    ReinforcePpOptions,
    RlooOptions,
    TwoLevelOptions,
)
from flexmarl.contracts.wire import EpisodeOutcome

STD_EPSILON = 1e-6
"""Added to the population standard deviation, as GRPO does."""

Advantages = list[list[float]]
"""One list per episode, one number per sample, in the order given."""

AdvantageSettings = TypeVar("AdvantageSettings", bound=AdvantageOptions)


class Advantage(Plugin[AdvantageSettings], ABC):
    """How rewards become advantages."""

    def rewards(self, episode: EpisodeOutcome) -> Rewards:
        """Return what each sample of an episode earned."""
        return row_rewards(self.options, episode)

    @abstractmethod
    def estimate(self, key: GroupKey, episodes: Sequence[EpisodeOutcome], rewards: Sequence[Rewards]) -> Advantages:
        """Return the advantages of a group. `key`: which rows are compared; `rewards`: what their samples earned."""

    def normalise(self, values: Sequence[float]) -> list[float]:
        """Make the advantages of all rows of a policy in a cohort comparable, in their order.

        Only an advantage that needs the whole batch may do anything here.
        """
        return list(values)


@dataclass(slots=True)
class _Peers:
    """Rewards that are compared with each other, by the episode they come from."""

    by_episode: dict[int, list[float]] = field(default_factory=dict)

    def values(self) -> list[float]:
        # Sorted, so that the order of arrival cannot change a bit of a sum.
        return sorted(value for own in self.by_episode.values() for value in own)


class Grpo(Advantage[GrpoOptions]):
    Options = GrpoOptions

    def estimate(self, key: GroupKey, episodes: Sequence[EpisodeOutcome], rewards: Sequence[Rewards]) -> Advantages:
        """Reward minus the mean of its peers, divided by their standard deviation where the options ask."""
        peers = dict(_compared(self.options, key, episodes, rewards))
        scales = {row_key: scale(own.values(), self.options.divide_by_std) for row_key, own in peers.items()}
        return [
            [(reward - scales[row_key][0]) * scales[row_key][1] for row_key, reward in zip(keys, own, strict=True)]
            for keys, own in zip(_keys(self.options, key, episodes), rewards, strict=True)
        ]


class Rloo(Advantage[RlooOptions]):
    Options = RlooOptions

    def estimate(self, key: GroupKey, episodes: Sequence[EpisodeOutcome], rewards: Sequence[Rewards]) -> Advantages:
        """Reward minus the mean over the other episodes: a baseline that knows nothing of the row it judges."""
        peers = dict(_compared(self.options, key, episodes, rewards))
        means = {row_key: _means_of_others(own) for row_key, own in peers.items()}
        return [
            [reward - means[row_key].get(number, reward) for row_key, reward in zip(keys, own, strict=True)]
            for number, (keys, own) in enumerate(zip(_keys(self.options, key, episodes), rewards, strict=True))
        ]


class TwoLevel(Advantage[TwoLevelOptions]):
    """Source: UI-S1, arXiv 2509.11543."""

    Options = TwoLevelOptions

    def estimate(self, key: GroupKey, episodes: Sequence[EpisodeOutcome], rewards: Sequence[Rewards]) -> Advantages:
        """Add what an episode did better than its peers, and what each turn did better than the same turn of others.

        An episode that reached a turn alone has no peer there: that part is 0.
        """
        found, options = self._part(key, episodes, rewards), self.options
        if options.step_weight:
            returns = [matched_returns(options, episode) for episode in episodes]
            turns = self._part(GROUP_KEYS["agent_turn"], episodes, returns)
            found = [
                [whole + options.step_weight * turn for whole, turn in zip(*both, strict=True)]
                for both in zip(found, turns, strict=True)
            ]
        return self._of_wide_groups(key, episodes, rewards, found) if options.least_std else found

    def _part(self, key: GroupKey, episodes: Sequence[EpisodeOutcome], rewards: Sequence[Rewards]) -> Advantages:
        """Return rewards minus the mean of their peers, over the deviation of these where the options ask."""
        peers, others = dict(_compared(self.options, key, episodes, rewards)), self.options.leave_one_out
        scales = {row_key: scale(own.values(), self.options.divide_by_std) for row_key, own in peers.items()}
        means = {row_key: _means_of_others(own) if others else {} for row_key, own in peers.items()}
        return [
            [
                (reward - means[row_key].get(number, scales[row_key][0])) * scales[row_key][1]
                for row_key, reward in zip(keys, own, strict=True)
            ]
            for number, (keys, own) in enumerate(zip(_keys(self.options, key, episodes), rewards, strict=True))
        ]

    def _of_wide_groups(
        self, key: GroupKey, episodes: Sequence[EpisodeOutcome], rewards: Sequence[Rewards], found: Advantages
    ) -> Advantages:
        """Return 0 for rows whose peers' rewards differ too little."""
        peers = _compared(self.options, key, episodes, rewards)
        wide = {row_key: _deviation(own.values()) > self.options.least_std for row_key, own in peers}
        return [
            [value if wide[row_key] else 0.0 for row_key, value in zip(keys, own, strict=True)]
            for keys, own in zip(_keys(self.options, key, episodes), found, strict=True)
        ]


class Reinforce(Advantage[ReinforceOptions]):
    Options = ReinforceOptions

    def estimate(self, key: GroupKey, episodes: Sequence[EpisodeOutcome], rewards: Sequence[Rewards]) -> Advantages:
        """Take the reward itself: a row needs no peer."""
        return _as_earned(rewards)


class ReinforcePp(Advantage[ReinforcePpOptions]):
    Options = ReinforcePpOptions

    def estimate(self, key: GroupKey, episodes: Sequence[EpisodeOutcome], rewards: Sequence[Rewards]) -> Advantages:
        """Take the reward itself; it is compared once the whole batch is known."""
        return _as_earned(rewards)

    def normalise(self, values: Sequence[float]) -> list[float]:
        """Subtract the mean over the batch and divide by its standard deviation; equal values give 0."""
        if not values or max(values) == min(values):
            return [0.0] * len(values)
        # Sorted, so that the order of arrival cannot change a bit of the sums.
        mean = sum(sorted(values)) / len(values)
        variance = sum(sorted((value - mean) ** 2 for value in values)) / len(values)
        return [(value - mean) / (sqrt(variance) + STD_EPSILON) for value in values]


class Gae(Advantage[GaeOptions]):
    Options = GaeOptions

    def rewards(self, episode: EpisodeOutcome) -> Rewards:
        """Return what arose at each turn: the critic adds up what later turns earn."""
        return as_they_come(self.options, episode)

    def estimate(self, key: GroupKey, episodes: Sequence[EpisodeOutcome], rewards: Sequence[Rewards]) -> Advantages:
        """Hand on what each row earned: its advantage is what the trainer's critic did not expect of it."""
        return _as_earned(rewards)


class Habc(Advantage[HabcOptions]):
    """Source: hierarchical advantage-weighted behaviour cloning, read for turns of a language model."""

    Options = HabcOptions

    def rewards(self, episode: EpisodeOutcome) -> Rewards:
        """Return whether the episode was solved, 1 or -1, at each of its turns."""
        return [1.0 if episode.solved else -1.0] * len(episode.samples)

    def estimate(self, key: GroupKey, episodes: Sequence[EpisodeOutcome], rewards: Sequence[Rewards]) -> Advantages:
        """Hand on how each row's episode ended: the trainer's heads make weights of it."""
        return _as_earned(rewards)


class BestWorst(Advantage[BestWorstOptions]):
    Options = BestWorstOptions

    def estimate(self, key: GroupKey, episodes: Sequence[EpisodeOutcome], rewards: Sequence[Rewards]) -> Advantages:
        """Mark a pair among its peers: 1 for what the best episode said, -1 for the worst one's, 0 for the rest.

        Among equals the lowest member is chosen, so that no order of arrival matters. Who said nothing is nobody's
        peer.
        """
        earned: dict[tuple[str, int], dict[int, list[float]]] = {}
        keys = _keys(self.options, key, episodes)
        for number, (episode, own_keys, own) in enumerate(zip(episodes, keys, rewards, strict=True)):
            _check(own)
            for sample, row_key, reward in zip(episode.samples, own_keys, own, strict=True):
                if sample.tokens:
                    earned.setdefault(row_key, {}).setdefault(number, []).append(reward)
        ends = {
            row_key: _ends({n: _mean(sorted(own)) for n, own in by.items()}, episodes) for row_key, by in earned.items()
        }
        return [
            [
                ends.get(row_key, {}).get(number, 0.0) if sample.tokens else 0.0
                for sample, row_key in zip(episode.samples, own, strict=True)
            ]
            for number, (episode, own) in enumerate(zip(episodes, keys, strict=True))
        ]


def scale(values: Sequence[float], divides: bool) -> tuple[float, float]:
    """Return the mean and the factor of sorted rewards that are compared; the factor is 0 where these are equal."""
    mean = sum(values) / len(values)
    if values[0] == values[-1]:
        return mean, 0.0
    return mean, 1.0 / (_deviation(values) + STD_EPSILON) if divides else 1.0


def _deviation(values: Sequence[float]) -> float:
    """Return the population standard deviation of sorted values."""
    mean = sum(values) / len(values)
    return sqrt(sum(sorted((value - mean) ** 2 for value in values)) / len(values))


def _as_earned(rewards: Sequence[Rewards]) -> Advantages:
    _check(value for own in rewards for value in own)
    return [list(own) for own in rewards]


def _ends(earned: dict[int, float], episodes: Sequence[EpisodeOutcome]) -> dict[int, float]:
    """Return the episode that earned most and the one that earned least; none where all earned the same."""
    ranked = sorted(earned, key=lambda number: (-earned[number], episodes[number].member))
    best, least = ranked[0], earned[ranked[-1]]
    worst = min((n for n in ranked if earned[n] == least), key=lambda number: episodes[number].member)
    return {} if earned[best] == least else {best: 1.0, worst: -1.0}


def _keys(spec: AdvantageOptions, key: GroupKey, episodes: Sequence[EpisodeOutcome]) -> list[list[tuple[str, int]]]:
    return [[key(sample, spec.per_turn) for sample in episode.samples] for episode in episodes]


def _compared(
    spec: GrpoOptions | RlooOptions | TwoLevelOptions,
    key: GroupKey,
    episodes: Sequence[EpisodeOutcome],
    rewards: Sequence[Rewards],
) -> list[tuple[tuple[str, int], _Peers]]:
    """Collect the peers of each key: every row, or what each role (at each turn) of an episode earned, once."""
    found: dict[tuple[str, int], _Peers] = {}
    for number, (episode, keys, own) in enumerate(zip(episodes, _keys(spec, key, episodes), rewards, strict=True)):
        _check(own)
        units: dict[tuple[tuple[str, int], tuple[str | int, ...]], list[float]] = {}
        for place, (sample, row_key, reward) in enumerate(zip(episode.samples, keys, own, strict=True)):
            turn = sample.turn if spec.per_turn else -1
            once: tuple[str | int, ...] = (sample.role, turn) if spec.baseline_over == "episodes" else (place,)
            units.setdefault((row_key, once), []).append(reward)
        for (row_key, _), values in units.items():
            peers = found.setdefault(row_key, _Peers())
            peers.by_episode.setdefault(number, []).append(_mean(sorted(values)))
    return list(found.items())


def _check(values: Iterable[float]) -> None:
    if not all(map(isfinite, values)):
        raise ValueError("a reward is not a finite number")


def _mean(values: Sequence[float]) -> float:
    """Return the mean of sorted values; of equal ones exactly their value."""
    return values[0] if values[0] == values[-1] else sum(values) / len(values)


def _means_of_others(peers: _Peers) -> dict[int, float]:
    """Return per episode the mean over all others; nothing where there is no other, or all are equal."""
    values = peers.values()
    if values[0] == values[-1]:
        return {}
    total, count = sum(values), len(values)
    return {
        number: (total - sum(sorted(own))) / (count - len(own))
        for number, own in peers.by_episode.items()
        if count > len(own)
    }


ADVANTAGES: Registry[Advantage[Any]] = Registry(
    ADVANTAGE, (Grpo, Rloo, TwoLevel, Reinforce, ReinforcePp, BestWorst, Gae, Habc)
)
