"""Which turns of a group are certain enough to be left out of its gradient (the step filter of DART, 2509.23866).

DART keeps the steps whose mean token entropy reaches the 20th percentile of their group. Not every engine tells
entropies; what is compared here is the mean of -log p over the tokens that were sampled in a turn, which the entropy is
the expectation of.
"""

from collections.abc import Sequence

from flexmarl.algorithms.advantages import Advantages
from flexmarl.contracts.wire import EpisodeOutcome


def masked(episodes: Sequence[EpisodeOutcome], advantages: Advantages, quantile: float) -> Advantages:
    """Return advantages that are 0 for the turns of each role below a quantile of the group's turns of that role.

    Between neighbours the quantile is interpolated linearly; turns that reach it, ties included, keep theirs, and so do
    those of episodes without figures, which were not played for the group.
    """
    if not quantile:
        return advantages
    figures: dict[str, list[float]] = {}
    for episode in episodes:
        for sample, figure in zip(episode.samples, episode.surprisals, strict=False):
            if sample.tokens:
                figures.setdefault(sample.role, []).append(figure)
    least = {role: _quantile(sorted(own), quantile) for role, own in figures.items()}
    return [
        [
            0.0 if figure is not None and figure < least.get(sample.role, figure) else advantage
            for sample, figure, advantage in zip(episode.samples, _padded(episode), own, strict=True)
        ]
        for episode, own in zip(episodes, advantages, strict=True)
    ]


def _padded(episode: EpisodeOutcome) -> Sequence[float | None]:
    return episode.surprisals or [None] * len(episode.samples)


def _quantile(values: Sequence[float], quantile: float) -> float:
    """Return a quantile of sorted values."""
    place = quantile * (len(values) - 1)
    below = int(place)
    above = min(below + 1, len(values) - 1)
    return values[below] + (place - below) * (values[above] - values[below])
