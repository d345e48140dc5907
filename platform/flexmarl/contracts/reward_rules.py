"""Reward functions that an installation has."""

from collections.abc import Collection

from flexmarl.contracts.problems import Problem, nearest
from flexmarl.contracts.specification.reward import FUNCTIONS, FunctionReward, RewardOptions


def unknown_function(reward: RewardOptions, installed: Collection[str]) -> list[Problem]:
    """Find that a reward names a function which this installation does not have."""
    if not isinstance(reward, FunctionReward) or reward.name in installed:
        return []
    close = nearest(reward.name, installed)
    known = f"Installed: {', '.join(sorted(installed))}." if installed else "None is installed."
    return [
        Problem(
            pointer="/reward/name",
            code="unknown_value",
            detail=f"{FUNCTIONS} has no entry point named {reward.name}.",
            hint=f"Did you mean {close}? {known}" if close else f"{known} Other types need none: brevity, service.",
        )
    ]
