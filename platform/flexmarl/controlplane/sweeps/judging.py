"""Which runs are weak. Pure: curves of the objective in, a reason out.

The median rule is that of Golovin et al. 2017 (Vizier); halving is the asynchronous one of Li et al. 2020 (ASHA) in its
stopping form: no run waits for others at a rung.
"""

from collections.abc import Sequence
from statistics import fmean, median

from flexmarl.controlplane.sweeps.plan import SearchPlan

LEAST_OTHERS = 3
"""Runs that the median rule needs beside the one that it judges."""
LAST_SHARE = 0.1
Curve = Sequence[tuple[float, float]]
"""(step, value), by step."""


def objective(curve: Curve, until: float | None = None) -> float | None:
    """Return the mean over the last tenth of the steps up to one; None before the first point."""
    seen = [(step, value) for step, value in curve if until is None or step <= until]
    if not seen:
        return None
    bound = seen[-1][0] * (1 - LAST_SHARE)
    return fmean(value for step, value in seen if step >= bound)


def below_median(plan: SearchPlan, curve: Curve, others: Sequence[Curve]) -> str:
    """Say why a run is weak by the median rule; empty when it is not, or nothing can be said."""
    step = curve[-1][0] if curve else 0
    if step < plan.grace_steps:
        return ""
    reached = [found for one in others if one and one[-1][0] >= step and (found := objective(one, step)) is not None]
    own = objective(curve, step)
    if own is None or len(reached) < LEAST_OTHERS:
        return ""
    middle = median(reached)
    if plan.sign * own >= plan.sign * middle:
        return ""
    return f"{plan.metric} was {own:.4g} at step {step:g}, the median of {len(reached)} others {middle:.4g}."


def next_rung(plan: SearchPlan, judged: int) -> int:
    """Return the step of the rung after those that were judged."""
    return plan.grace_steps * int(plan.reduction**judged)


def weak_at_rung(plan: SearchPlan, curve: Curve, others: Sequence[Curve], step: int) -> str:
    """Say why a run that reached a rung does not go on; empty when it does."""
    own = objective(curve, step)
    if own is None:
        return ""
    reached = [found for one in others if one and one[-1][0] >= step and (found := objective(one, step)) is not None]
    better = sum(plan.sign * found > plan.sign * own for found in reached)
    kept = max(1, (len(reached) + 1) // plan.reduction)
    if better < kept:
        return ""
    return f"{plan.metric} was {own:.4g} at the rung of step {step}; {better} of {len(reached)} others were better."
