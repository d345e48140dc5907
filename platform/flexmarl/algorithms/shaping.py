"""Reward shaping: what a row earned, seen by more than the score of its episode.

Invariants: a shaper looks at one episode and changes no score that is recorded or that a filter judges by; it returns
one number per sample, in their order. Everything is computed from raw rewards before anything is replaced.
"""

from collections.abc import Callable, Mapping

from flexmarl.algorithms.registry import Registry
from flexmarl.algorithms.rewards import Rewards, by_turn
from flexmarl.contracts.spec.shaping import Maporl, Marti, NoShaping, Overlong, Shaping
from flexmarl.contracts.wire import EpisodeOutcome

Shaper = Callable[[Shaping, Mapping[str, int], EpisodeOutcome, Rewards], Rewards]
"""(settings, most tokens of a reply by role, episode, what its samples earned) -> what they count as."""


def unshaped(settings: Shaping, limits: Mapping[str, int], episode: EpisodeOutcome, rewards: Rewards) -> Rewards:
    """Leave rewards as they are."""
    assert isinstance(settings, NoShaping)
    return rewards


def overlong(settings: Shaping, limits: Mapping[str, int], episode: EpisodeOutcome, rewards: Rewards) -> Rewards:
    """Take off what a reply near its longest costs: nothing outside of the buffer, all of it at the end."""
    assert isinstance(settings, Overlong)
    return [
        reward - settings.penalty * _over(sample.tokens, limits[sample.role], settings.buffer_tokens)
        for sample, reward in zip(episode.samples, rewards, strict=True)
    ]


def _over(tokens: int, limit: int, buffer: int) -> float:
    """Return how far a reply has gone into the buffer before its limit, from 0 to 1."""
    return min(1.0, max(0.0, (tokens - (limit - buffer)) / buffer))


def marti(settings: Shaping, limits: Mapping[str, int], episode: EpisodeOutcome, rewards: Rewards) -> Rewards:
    """Judge a turn's score by the mean of the scores before it; a turn without any before it keeps its own."""
    assert isinstance(settings, Marti)
    shaped = []
    for sample in episode.samples:
        own = [other for other in episode.samples if settings.history == "team" or other.role == sample.role]
        before = sorted(other.reward for other in own if other.turn < sample.turn)
        score = sample.reward
        if before:
            score += settings.strength * _judged(settings, score, sum(before) / len(before))
        shaped.append(score)
    return shaped


def _judged(settings: Marti, score: float, before: float) -> float:
    if settings.form == "margin":
        return score - before
    return before * score - (1.0 - before) * (1.0 - score)


def maporl(settings: Shaping, limits: Mapping[str, int], episode: EpisodeOutcome, rewards: Rewards) -> Rewards:
    """Mean of a turn's own score and of what the team scored at later turns, discounted and normalised."""
    assert isinstance(settings, Maporl)
    scores = {turn: sum(sorted(own)) / len(own) for turn, own in by_turn(episode.samples).items()}
    shaped = []
    for sample in episode.samples:
        later = {turn: settings.gamma ** (turn - sample.turn) for turn in sorted(scores) if turn > sample.turn}
        total = sample.reward + sum(weight * scores[turn] for turn, weight in later.items())
        shaped.append(total / (1.0 + sum(later.values())))
    return shaped


SHAPERS: Registry[Shaper] = Registry(
    "shaping", {"none": unshaped, "overlong": overlong, "marti": marti, "maporl": maporl}
)
