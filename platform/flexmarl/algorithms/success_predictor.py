"""A small model of how likely a task is solved next: logistic regression on what earlier groups of it earned.

TRACE (arXiv 2606.11119) allocates by a predictor whose architecture and loss are not published. This one has three
weights, for 1, for whether the task was played, and for the logit of the moving mean of its score. It is fitted
to the last groups of the tasks that were played most recently, by what was known before each: binary cross-entropy on
their scores as shares of the best, with a ridge towards the plain moving mean. It allocates, and enters no gradient.

Fits are made anew from the columns of the belief, over tasks in their order, so they depend on no order of arrival:
`solved` is the moving mean before a task's last group, -1 where there was none, and `missed` what that group earned.
"""

from typing import TYPE_CHECKING

import numpy as np

from flexmarl.algorithms import logistic
from flexmarl.algorithms.task_belief import TaskBelief

if TYPE_CHECKING:
    from flexmarl.algorithms.task_belief import Floats, Numbers
    from flexmarl.algorithms.task_sampler import PlayedTask

KEPT = 0.5
"""Share of a moving mean that is kept when its task is played again."""
LOWEST, HIGHEST = 0.01, 0.99
"""Bounds of what is predicted, and of the means that logits are taken of."""
RIDGE = 1.0
LATEST = 4096
"""Tasks that a fit looks at, and those that were played in the same step as the last of them."""
PRIOR = np.array([0.0, 0.0, 1.0])
"""The moving mean itself; of a task that was not played, one half."""


def observe(belief: TaskBelief, played: "PlayedTask") -> None:
    """Take in how a group ended."""
    before, last, as_of = belief.of(played.task)
    known = _moved(before, last) if as_of else -1.0
    share = sum(sorted(played.shares)) / len(played.shares)
    belief.put(played.tasks, played.task, known, share, played.step + 1)


def _moved(before: float, last: float) -> float:
    return last if before < 0.0 else KEPT * before + (1.0 - KEPT) * last


def predicted(belief: TaskBelief, tasks: "Numbers", weights: "Floats | None" = None) -> "Floats":
    """Return the chance of success of tasks, from `LOWEST` to `HIGHEST`; by weights that are fitted, unless given."""
    known = belief.columns()[2]
    if not len(known):
        return np.full(len(tasks), 0.5)
    features = _features(means_of(belief, tasks), known[tasks] > 0)
    return np.clip(logistic.chances(features @ (fitted(belief) if weights is None else weights)), LOWEST, HIGHEST)


def means_of(belief: TaskBelief, tasks: "Numbers") -> "Floats":
    """Return the moving means of the scores of tasks; of one that was not played it says nothing."""
    before, last, _ = belief.columns()
    own = before[tasks].astype(np.float64)
    return np.where(own < 0.0, last[tasks], KEPT * own + (1.0 - KEPT) * last[tasks])


def fitted(belief: TaskBelief) -> "Floats":
    """Return the three weights."""
    before, last, as_of = belief.columns()
    rows = np.flatnonzero(as_of)
    if len(rows) > LATEST:
        oldest = np.partition(as_of[rows], -LATEST)[-LATEST]
        rows = rows[as_of[rows] >= oldest]
    if not len(rows):
        return PRIOR.copy()
    own = before[rows].astype(np.float64)
    features, targets = _features(own, own >= 0.0), last[rows].astype(np.float64)
    return logistic.fitted(features, targets, np.ones(len(rows)), PRIOR, RIDGE)


def _features(means: "Floats", known: "np.ndarray[tuple[int, ...], np.dtype[np.bool_]]") -> "Floats":
    bounded = np.clip(means, LOWEST, HIGHEST)
    logits = np.where(known, np.log(bounded / (1.0 - bounded)), 0.0)
    return np.stack([np.ones(len(means)), known.astype(np.float64), logits], axis=1)
