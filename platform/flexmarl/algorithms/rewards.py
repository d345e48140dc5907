"""What a row earned, before it is compared with others.

Invariants: one number per sample, in the order given; a number depends on its own episode alone. A role that the
environment did not score counts as the team.
"""

from collections.abc import Callable, Sequence

from flexmarl.contracts.specification.advantages import AdvantageOptions, TwoLevelOptions
from flexmarl.contracts.wire import EpisodeOutcome, SampleRef

Rewards = list[float]
"""Of an episode's samples, in their order."""

RowRewards = Callable[[EpisodeOutcome], Rewards]
"""Episode -> what its samples earned."""


def role_reward(spec: AdvantageOptions, episode: EpisodeOutcome, role: str) -> float:
    """Mix the team score and the role's own score. A role the environment did not score counts as the team."""
    return mixed(spec, episode.team_score, episode.scores.get(role, episode.team_score))


def mixed(spec: AdvantageOptions, team: float, own: float) -> float:
    """Mix what the team and what a role earned."""
    return spec.team_share * team + (1.0 - spec.team_share) * own


def row_rewards(spec: AdvantageOptions, episode: EpisodeOutcome) -> Rewards:
    """Return what each sample earned: its role's part of the episode's score, or the rewards of turns from it on."""
    if spec.per_turn:
        return joint_to_go(spec, episode) if spec.joint else rewards_to_go(spec, episode)
    by_role: dict[str, float] = {}
    for sample in episode.samples:
        if sample.role not in by_role:
            by_role[sample.role] = role_reward(spec, episode, sample.role)
    return [by_role[sample.role] for sample in episode.samples]


def answer_rewards(episode: EpisodeOutcome) -> Rewards:
    """Return what each answer was scored by itself: the turns after it are not its own, but of whoever carried on."""
    return [sample.reward for sample in episode.samples]


def rewards_to_go(spec: AdvantageOptions, episode: EpisodeOutcome) -> Rewards:
    """Return, per sample, the discounted sum of its role's turn rewards from that turn on."""
    order = sorted(range(len(episode.samples)), key=lambda i: episode.samples[i].turn, reverse=True)
    result = [0.0] * len(episode.samples)
    ahead: dict[str, float] = {}
    for index in order:
        sample = episode.samples[index]
        value = sample.reward + spec.gamma * ahead.get(sample.role, 0.0)
        ahead[sample.role] = result[index] = value
    return result


def matched_returns(spec: TwoLevelOptions, episode: EpisodeOutcome) -> Rewards:
    """Return, per sample, the discounted sum of its role's turn rewards up to the next turn without the full reward.

    Behind such a turn an episode goes on, if it does, from what replaced it (UI-S1, arXiv 2509.11543).
    """
    result = [0.0] * len(episode.samples)
    ahead: dict[str, float] = {}
    for index in sorted(range(len(episode.samples)), key=lambda i: episode.samples[i].turn, reverse=True):
        sample = episode.samples[index]
        full = sample.reward >= spec.full_reward
        result[index] = sample.reward + (spec.gamma * ahead.get(sample.role, 0.0) if full else 0.0)
        ahead[sample.role] = result[index] if full or spec.counts_last else 0.0
    return result


def as_they_come(spec: AdvantageOptions, episode: EpisodeOutcome) -> Rewards:
    """Return, per sample, what arose at its end: its role's own turn rewards, or the episode's score at the last turn.

    What a turn without a word earned counts for the one before it that said something, or else for the first that did.
    """
    result = [0.0] * len(episode.samples)
    said: dict[str, list[int]] = {}
    for number in sorted(range(len(episode.samples)), key=lambda n: episode.samples[n].turn):
        if episode.samples[number].tokens:
            said.setdefault(episode.samples[number].role, []).append(number)
    for role, numbers in said.items():
        if not spec.per_turn:
            result[numbers[-1]] = role_reward(spec, episode, role)
    if spec.per_turn:
        for sample in episode.samples:
            earlier = [n for n in said.get(sample.role, ()) if episode.samples[n].turn <= sample.turn]
            for number in earlier[-1:] or said.get(sample.role, [])[:1]:
                result[number] += sample.reward
    return result


def joint_to_go(spec: AdvantageOptions, episode: EpisodeOutcome) -> Rewards:
    """Return, per sample, the discounted sum of what the whole team earned from its turn index on."""
    ahead, value = {}, 0.0
    earned = by_turn(episode.samples)
    for turn in range(max(earned, default=-1), -1, -1):
        value = sum(sorted(earned.get(turn, ()))) + spec.gamma * value
        ahead[turn] = value
    return [ahead[sample.turn] for sample in episode.samples]


def by_turn(samples: Sequence[SampleRef]) -> dict[int, list[float]]:
    """Collect the turn rewards of all roles by turn index."""
    earned: dict[int, list[float]] = {}
    for sample in samples:
        earned.setdefault(sample.turn, []).append(sample.reward)
    return earned
