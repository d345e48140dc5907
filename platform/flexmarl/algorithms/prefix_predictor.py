"""A small model of how likely an episode is solved that goes on from a given beginning: logistic regression.

TRACE (arXiv 2606.11119) allocates continuations by a predictor whose architecture and loss are not published. This one
has five weights: for 1, for the logit of the share of the group's other episodes that were solved, for the logarithm of
1 + the turns of the prefix, for the mean log-probability of what was said last in it, and for the share of the best
score that its turns earned. Once a step's groups are known it is fitted to their prefixes, with a ridge towards the
weights before: binary cross-entropy on backed-up values, each prefix as often as episodes go through it. It allocates,
and enters no gradient.

Invariants: before the first fit every prefix has the chance one half; a fit depends on no order of arrival.
"""

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from flexmarl.algorithms import logistic
from flexmarl.contracts.wire import EpisodeOutcome, Prefix

LOWEST, HIGHEST = 0.01, 0.99
"""Bounds of what is predicted."""
RIDGE = 4.0
PRIOR = (0.0, 1.0, 0.0, 0.0, 0.0)
"""The share of the others that were solved, itself."""

Example = list[float]
"""Features of a prefix, its backed-up value, and the episodes that go through it."""


@dataclass(slots=True)
class PrefixBelief:
    """What is known of prefixes. Plain values, which go to the run's snapshot and back."""

    weights: list[float] = field(default_factory=list)
    """Empty: nothing is known."""
    waiting: dict[int, dict[int, list[Example]]] = field(default_factory=dict)
    """Open cohort -> settled draw -> what the next fit looks at."""
    recent: list[Example] = field(default_factory=list)
    """Where replies are continued at tokens: the last ones of the run, see `token_branching`."""


def predicted(weights: Sequence[float], features: Sequence[float]) -> float:
    """Return the chance of success after a prefix, from `LOWEST` to `HIGHEST`; one half without weights."""
    if not weights:
        return 0.5
    value = math.fsum(map(operator.mul, weights, features))
    chance = 1.0 / (1.0 + math.exp(-min(max(value, -30.0), 30.0)))
    return min(max(chance, LOWEST), HIGHEST)


def features_of(
    episode: EpisodeOutcome, prefixes: Sequence[Prefix], others: Sequence[EpisodeOutcome], best_score: float
) -> list[list[float]]:
    """Return what is known of each prefix of an episode, by what the others of its group that began anew came to."""
    solved = sum([one.solved for one in others])
    of_others = math.log((solved + 1.0) / (len(others) - solved + 1.0))
    rewards = [sample.reward for sample in episode.samples]
    return [
        [1.0, of_others, math.log1p(one.turns), one.logprob, math.fsum(rewards[: one.turns]) / best_score]
        for one in prefixes
    ]


def examples_of(episodes: Sequence[EpisodeOutcome], best_score: float) -> list[Example]:
    """Return every prefix of a group with its backed-up value: the mean outcome of the episodes that go through it."""
    ranked = sorted(episodes, key=lambda one: one.member)
    roots = [one for one in ranked if one.branch is not None and one.branch.root < 0]
    found = []
    for root in roots:
        prefixes = root.branch.prefixes if root.branch is not None else ()
        features = features_of(root, prefixes, [one for one in roots if one is not root], best_score)
        later = [one for one in ranked if one.branch is not None and one.branch.root == root.member]
        for prefix, own in zip(prefixes, features, strict=True):
            outcomes = [float(one.solved) for one in leaves(later, root, prefix.turns)]
            found.append([*own, sum(outcomes) / len(outcomes), float(len(outcomes))])
    return found


def leaves(episodes: Sequence[EpisodeOutcome], root: EpisodeOutcome, turns: int) -> list[EpisodeOutcome]:
    """Return the episodes that go through the first `turns` turns of a root: itself, and what continues it later."""
    later = [
        one
        for one in episodes
        if one.branch is not None and one.branch.root == root.member and one.branch.turns >= turns
    ]
    return [root, *later]


def learn(belief: PrefixBelief, cohort: int) -> None:
    """Fit the weights to what a cohort showed, draw by draw in their order."""
    groups = belief.waiting.pop(cohort, {})
    rows = [row for draw in sorted(groups) for row in groups[draw]]
    if not rows:
        return
    table = np.array(rows, np.float64)
    centre = np.array(belief.weights or PRIOR, np.float64)
    belief.weights = logistic.fitted(table[:, :-2], table[:, -2], table[:, -1], centre, RIDGE).tolist()
