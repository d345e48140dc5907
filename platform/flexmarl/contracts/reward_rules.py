"""What a reward function cannot be combined with: rewards of single turns, and the promise of bits."""

from collections.abc import Collection, Iterator

from flexmarl.contracts.problems import Problem, nearest
from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.contracts.specification.reward import (
    FUNCTIONS,
    EnvironmentReward,
    FunctionReward,
    RewardSpec,
    ScoringService,
)


def reward_rules(spec: ExperimentSpec) -> Iterator[Problem]:
    """Return what the reward of a specification breaks."""
    reward = spec.reward
    if isinstance(reward, EnvironmentReward):
        return
    if spec.algorithm.advantage.per_turn:
        yield Problem(
            pointer="/algorithm/advantage/per_turn",
            code="needs_environment_reward",
            detail=f"per_turn compares rewards of turns, but {reward.type} rewards whole episodes.",
            hint="Set false, or reward.type: environment.",
        )
    if reward.wait_s < reward.timeout_s:
        yield Problem(
            pointer="/reward/wait_s",
            code="out_of_range",
            detail=f"wait_s must be at least timeout_s, which is {reward.timeout_s:g}; it is {reward.wait_s:g}.",
            hint=f"Set {reward.timeout_s:g}.",
        )
    if isinstance(reward, ScoringService | FunctionReward) and spec.mechanisms.ordered:
        yield Problem(
            pointer="/mechanisms/ordered",
            code="not_with_foreign_reward",
            detail=f"Ordered runs must be bitwise reproducible; a {reward.type} reward is not.",
            hint="Set false.",
        )


def unknown_function(reward: RewardSpec, installed: Collection[str]) -> list[Problem]:
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
