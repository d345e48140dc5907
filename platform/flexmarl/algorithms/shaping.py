"""Reward shaping: what a row earned, seen by more than the score of its episode.

Invariants: a shaper looks at one episode and changes no score that is recorded or that a filter judges by; it returns
one number per sample, in their order. Everything is computed from raw rewards before anything is replaced.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, TypeVar

from flexmarl.algorithms.registry import Plugin, Registry
from flexmarl.algorithms.rewards import Rewards, by_turn
from flexmarl.contracts.specification.shaping import (
    SHAPING,
    MaporlOptions,
    MartiOptions,
    NoShapingOptions,
    OverlongOptions,
    ShapingOptions,
)
from flexmarl.contracts.wire import EpisodeOutcome

ShapingSettings = TypeVar("ShapingSettings", bound=ShapingOptions)


class Shaper(Plugin[ShapingSettings], ABC):
    """A transformation of what an episode's samples earned."""

    @abstractmethod
    def shape(self, limits: Mapping[str, int], episode: EpisodeOutcome, rewards: Rewards) -> Rewards:
        """Return what the samples count as. `limits`: most tokens of a reply by role."""


class NoShaping(Shaper[NoShapingOptions]):
    Options = NoShapingOptions

    def shape(self, limits: Mapping[str, int], episode: EpisodeOutcome, rewards: Rewards) -> Rewards:
        return rewards


class Overlong(Shaper[OverlongOptions]):
    Options = OverlongOptions

    def shape(self, limits: Mapping[str, int], episode: EpisodeOutcome, rewards: Rewards) -> Rewards:
        """Take off what a reply near its longest costs: nothing outside of the buffer, all of it at the end."""
        return [
            reward - self.options.penalty * _over(sample.tokens, limits[sample.role], self.options.buffer_tokens)
            for sample, reward in zip(episode.samples, rewards, strict=True)
        ]


def _over(tokens: int, limit: int, buffer: int) -> float:
    """Return how far a reply has gone into the buffer before its limit, from 0 to 1."""
    return min(1.0, max(0.0, (tokens - (limit - buffer)) / buffer))


class Marti(Shaper[MartiOptions]):
    Options = MartiOptions

    def shape(self, limits: Mapping[str, int], episode: EpisodeOutcome, rewards: Rewards) -> Rewards:
        """Judge a turn's score by the mean of the scores before it; a turn without any before it keeps its own."""
        shaped = []
        for sample in episode.samples:
            own = [other for other in episode.samples if self.options.history == "team" or other.role == sample.role]
            before = sorted(other.reward for other in own if other.turn < sample.turn)
            score = sample.reward
            if before:
                score += self.options.strength * self._judged(score, sum(before) / len(before))
            shaped.append(score)
        return shaped

    def _judged(self, score: float, before: float) -> float:
        if self.options.form == "margin":
            return score - before
        return before * score - (1.0 - before) * (1.0 - score)


class Maporl(Shaper[MaporlOptions]):
    Options = MaporlOptions

    def shape(self, limits: Mapping[str, int], episode: EpisodeOutcome, rewards: Rewards) -> Rewards:
        """Mean of a turn's own score and of what the team scored at later turns, discounted and normalised."""
        scores = {turn: sum(sorted(own)) / len(own) for turn, own in by_turn(episode.samples).items()}
        shaped = []
        for sample in episode.samples:
            later = {turn: self.options.gamma ** (turn - sample.turn) for turn in sorted(scores) if turn > sample.turn}
            total = sample.reward + sum(weight * scores[turn] for turn, weight in later.items())
            shaped.append(total / (1.0 + sum(later.values())))
        return shaped


SHAPERS: Registry[Shaper[Any]] = Registry(SHAPING, (NoShaping, Overlong, Marti, Maporl))
