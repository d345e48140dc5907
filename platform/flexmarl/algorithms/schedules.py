"""Coefficients that change over a run: pure functions of the step number."""

from flexmarl.contracts.specification.algorithm import EntropyBonus
from flexmarl.contracts.specification.team import AdamW


def linear(start: float, end: float, step: int, steps: int) -> float:
    """Go from `start` at step 0 to `end` at step `steps` in a line, then stay."""
    return start + (end - start) * min(1.0, step / steps)


def entropy_coefficient(spec: EntropyBonus, step: int) -> float:
    """Return the entropy bonus's coefficient of a step, from 0."""
    return linear(spec.start, spec.start * spec.end_share, step, spec.decay_steps)


def learning_rate(spec: AdamW, step: int, train_steps: int) -> float:
    """Return the learning rate of a step, from 0, of a run of `train_steps`."""
    return linear(spec.learning_rate, spec.learning_rate * spec.final_learning_rate_share, step, train_steps)
