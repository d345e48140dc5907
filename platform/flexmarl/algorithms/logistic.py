"""Logistic regression on shares, with a ridge towards weights that are given.

The loss is binary cross-entropy, each row by its own weight, plus half the ridge times the squared distance from the
given weights. It is convex, and few Newton steps from there reach its minimum.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from flexmarl.algorithms.task_belief import Floats

ROUNDS = 8
"""Newton steps of a fit."""
HALVINGS = 20
"""Of a step that leads too far."""


def fitted(features: "Floats", targets: "Floats", counts: "Floats", centre: "Floats", ridge: float) -> "Floats":
    """Return the weights of a fit: features [rows, n], targets and counts [rows], centre [n]."""
    weights = centre.copy()
    for _ in range(ROUNDS):
        found = chances(features @ weights)
        slope = features.T @ (counts * (targets - found)) - ridge * (weights - centre)
        curve = (features * (counts * found * (1.0 - found))[:, None]).T @ features + ridge * np.eye(len(centre))
        step = np.asarray(np.linalg.solve(curve, slope), np.float64)
        weights = _descended(weights, step, lambda at: _loss(features, targets, counts, at, centre, ridge))
    return weights


def chances(values: "Floats") -> "Floats":
    """Return the logistic function of values."""
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(values, -30.0, 30.0))))


def _descended(weights: "Floats", step: "Floats", loss: "Callable[[Floats], float]") -> "Floats":
    """Return the weights after a step, halved until it lowers the loss: a whole one may lead further and further away
    where features say nothing of targets."""
    before = loss(weights)
    for _ in range(HALVINGS):
        if loss(weights + step) <= before:
            return weights + step
        step = step / 2.0
    return weights


def _loss(
    features: "Floats", targets: "Floats", counts: "Floats", weights: "Floats", centre: "Floats", ridge: float
) -> float:
    values = features @ weights
    penalty = 0.5 * ridge * float(((weights - centre) ** 2).sum())
    return float((counts * (np.logaddexp(0.0, values) - targets * values)).sum()) + penalty
