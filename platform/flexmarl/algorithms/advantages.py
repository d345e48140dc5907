"""Advantages of an episode group: what each row did better or worse than its peers.

Invariants: the result is aligned with the samples of the given episodes and depends on nothing else; permuting the
episodes permutes it; it is finite (a non-finite reward raises). A baseline is the mean over the episodes in which the
role acted, each counted once however often it acted (episode-weighted). Rows without a peer, and rows whose peers all
got the same reward, get exactly 0.
"""

from collections.abc import Callable, Sequence
from math import isfinite, sqrt

from flexmarl.algorithms.group_keys import GroupKey
from flexmarl.algorithms.registry import Registry
from flexmarl.contracts.spec.algorithm import Advantage
from flexmarl.contracts.wire import EpisodeOutcome

STD_EPSILON = 1e-6
"""Added to the population standard deviation, as GRPO does."""

Advantages = list[list[float]]
"""One list per episode, one number per sample, in the order given."""

AdvantageEstimator = Callable[[Advantage, GroupKey, Sequence[EpisodeOutcome]], Advantages]


def role_reward(spec: Advantage, episode: EpisodeOutcome, role: str) -> float:
    """Mix the team score and the role's own score. A role the environment did not score counts as the team."""
    own = episode.scores.get(role, episode.team_score)
    return spec.team_share * episode.team_score + (1.0 - spec.team_share) * own


def rewards_to_go(spec: Advantage, episode: EpisodeOutcome) -> list[float]:
    """Return, per sample, the discounted sum of its role's turn rewards from that turn on."""
    order = sorted(range(len(episode.samples)), key=lambda i: episode.samples[i].turn, reverse=True)
    result = [0.0] * len(episode.samples)
    ahead: dict[str, float] = {}
    for index in order:
        sample = episode.samples[index]
        value = sample.reward + spec.gamma * ahead.get(sample.role, 0.0)
        ahead[sample.role] = result[index] = value
    return result


def _row_rewards(spec: Advantage, episode: EpisodeOutcome) -> list[float]:
    if spec.per_turn:
        return rewards_to_go(spec, episode)
    by_role: dict[str, float] = {}
    for sample in episode.samples:
        if sample.role not in by_role:
            by_role[sample.role] = role_reward(spec, episode, sample.role)
    return [by_role[sample.role] for sample in episode.samples]


def grpo(spec: Advantage, key: GroupKey, episodes: Sequence[EpisodeOutcome]) -> Advantages:
    """Reward minus the mean of its peers, divided by their standard deviation where the spec asks."""
    rewards = [_row_rewards(spec, episode) for episode in episodes]
    keys = [[key(sample, spec.per_turn) for sample in episode.samples] for episode in episodes]
    peers: dict[tuple[str, int], list[float]] = {}
    for episode_keys, episode_rewards in zip(keys, rewards, strict=True):
        # A dict counts an episode once per key: without `per_turn` all its rows of a role carry the same reward.
        for row_key, reward in dict(zip(episode_keys, episode_rewards, strict=True)).items():
            peers.setdefault(row_key, []).append(reward)
    scales = {row_key: _baseline(spec, values) for row_key, values in peers.items()}
    return [
        [(reward - scales[row_key][0]) * scales[row_key][1] for row_key, reward in zip(ks, rs, strict=True)]
        for ks, rs in zip(keys, rewards, strict=True)
    ]


def _baseline(spec: Advantage, values: list[float]) -> tuple[float, float]:
    """Return the mean and the factor of one key's rewards; the factor is 0 where nothing can be compared."""
    if not all(map(isfinite, values)):
        raise ValueError("a reward is not a finite number")
    # Sorted, so that the order of arrival cannot change a bit of the sum.
    mean = sum(sorted(values)) / len(values)
    if max(values) == min(values):
        return mean, 0.0
    if not spec.divide_by_std:
        return mean, 1.0
    variance = sum(sorted((value - mean) ** 2 for value in values)) / len(values)
    return mean, 1.0 / (sqrt(variance) + STD_EPSILON)


def reinforce(spec: Advantage, key: GroupKey, episodes: Sequence[EpisodeOutcome]) -> Advantages:
    """Take the reward itself: a row needs no peer."""
    rewards = [_row_rewards(spec, episode) for episode in episodes]
    if not all(isfinite(reward) for row in rewards for reward in row):
        raise ValueError("a reward is not a finite number")
    return rewards


def keep_rows(values: Sequence[float]) -> list[float]:
    """Leave the advantages of a batch as their groups made them."""
    return list(values)


def whiten_rows(values: Sequence[float]) -> list[float]:
    """Subtract the mean over the batch and divide by its standard deviation; equal values give 0."""
    if not values or max(values) == min(values):
        return [0.0] * len(values)
    # Sorted, so that the order of arrival cannot change a bit of the sums.
    mean = sum(sorted(values)) / len(values)
    variance = sum(sorted((value - mean) ** 2 for value in values)) / len(values)
    return [(value - mean) / (sqrt(variance) + STD_EPSILON) for value in values]


BatchNormaliser = Callable[[Sequence[float]], list[float]]
"""Advantages of all rows of a policy in a cohort -> the same in the same order, made comparable over the batch."""

ADVANTAGES: Registry[AdvantageEstimator] = Registry(
    "advantage", {"grpo": grpo, "reinforce": reinforce, "reinforce_pp": reinforce}
)
NORMALISERS: Registry[BatchNormaliser] = Registry(
    "normaliser", {"grpo": keep_rows, "reinforce": keep_rows, "reinforce_pp": whiten_rows}
)
"""What an estimator does once the whole batch is known; only those with readiness `batch` do anything."""
