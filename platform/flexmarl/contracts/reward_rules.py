"""What a reward function cannot be combined with: rewards of single turns, and the promise of bits."""

from collections.abc import Iterator

from flexmarl.contracts.problems import Problem
from flexmarl.contracts.spec.experiment import ExperimentSpec
from flexmarl.contracts.spec.reward import EnvironmentReward, ScoringService


def reward_rules(spec: ExperimentSpec) -> Iterator[Problem]:
    """Return what the reward of a specification breaks."""
    reward = spec.reward
    if isinstance(reward, EnvironmentReward):
        return
    if spec.algorithm.advantage.per_turn:
        yield Problem(
            pointer="/algorithm/advantage/per_turn",
            code="needs_environment_reward",
            detail=f"per_turn compares the rewards of turns, and {reward.type} gives an episode one for the whole.",
            hint="Set false, or reward.type: environment.",
        )
    if reward.wait_s < reward.timeout_s:
        yield Problem(
            pointer="/reward/wait_s",
            code="out_of_range",
            detail=f"wait_s must be at least timeout_s, which is {reward.timeout_s:g}; it is {reward.wait_s:g}.",
            hint=f"Set {reward.timeout_s:g}.",
        )
    if isinstance(reward, ScoringService) and spec.mechanisms.ordered:
        yield Problem(
            pointer="/mechanisms/ordered",
            code="not_with_service",
            detail="An ordered run promises bits, and nobody can promise those of a scoring service.",
            hint="Set false.",
        )
