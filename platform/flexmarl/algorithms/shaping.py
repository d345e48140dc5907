"""Reward shaping: what a row earned, seen by more than the score of its episode.

Invariants: a shaper looks at one episode, or at all of a group, and changes no score that is recorded or that a filter
judges by; it returns one number per sample, in their order. Everything is computed from raw rewards before anything is
replaced.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from flexmarl.algorithms.registry import Plugin, Registry
from flexmarl.algorithms.rewards import Rewards, by_turn
from flexmarl.contracts.specification.shaping import (
    SHAPING,
    MajorityVoteOptions,
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

    def shape_group(
        self, limits: Mapping[str, int], episodes: Sequence[EpisodeOutcome], rewards: Sequence[Rewards]
    ) -> list[Rewards]:
        """Return what the samples of a group's episodes count as; each by itself unless members are compared."""
        return [self.shape(limits, episode, own) for episode, own in zip(episodes, rewards, strict=True)]

    def refusal(self, episodes: Sequence[EpisodeOutcome]) -> str:
        """Return why a group is not trained on, in words; empty: it is."""
        return ""

    def figures(self, episodes: Sequence[EpisodeOutcome]) -> dict[str, float]:
        """Return what a group adds to the series, by name."""
        return {}


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


@dataclass(frozen=True, slots=True)
class Vote:
    answer: str
    """The one that more members gave than any other; empty: there is none."""
    share: float
    """Members that gave the most frequent answer, as a share of all, those without an answer among them."""


def counted(episodes: Sequence[EpisodeOutcome]) -> Vote:
    """Count the answers of a group. Where several lead, none is chosen: a draw would be a label by chance."""
    votes = Counter(episode.answer for episode in episodes if episode.answer)
    most = max(votes.values(), default=0)
    leading = [answer for answer, count in votes.items() if count == most]
    return Vote(leading[0] if len(leading) == 1 else "", most / len(episodes) if episodes else 0.0)


class MajorityVote(Shaper[MajorityVoteOptions]):
    """Source: the pseudo-labels of ECHO, arXiv 2602.02150."""

    Options = MajorityVoteOptions

    def shape(self, limits: Mapping[str, int], episode: EpisodeOutcome, rewards: Rewards) -> Rewards:
        """Pay a vote of one."""
        return self.shape_group(limits, [episode], [rewards])[0]

    def shape_group(
        self, limits: Mapping[str, int], episodes: Sequence[EpisodeOutcome], rewards: Sequence[Rewards]
    ) -> list[Rewards]:
        """Pay 1 for every sample of an episode with the answer that most gave, 0 for the others."""
        chosen = counted(episodes).answer
        return [[float(bool(chosen) and episode.answer == chosen)] * len(episode.samples) for episode in episodes]

    def refusal(self, episodes: Sequence[EpisodeOutcome]) -> str:
        vote, members = counted(episodes), len(episodes)
        if vote.share and not vote.answer:
            return f"{round(vote.share * members)} of {members} members agree on one answer, and as many on another"
        if vote.answer and vote.share >= self.options.least_share:
            return ""
        agree = f"{round(vote.share * members)} of {members} members agree on an answer"
        return f"{agree}, and least_share asks for {self.options.least_share:g} of them"

    def figures(self, episodes: Sequence[EpisodeOutcome]) -> dict[str, float]:
        vote = counted(episodes)
        worth = next((one.team_score for one in episodes if vote.answer and one.answer == vote.answer), 0.0)
        return {"vote_share": vote.share, "vote_score": worth}


SHAPERS: Registry[Shaper[Any]] = Registry(SHAPING, (NoShaping, Overlong, Marti, Maporl, MajorityVote))
