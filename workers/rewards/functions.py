"""Reward functions by the type that a specification names."""

import math

from flexmarl.contracts.specification.reward import (
    Brevity,
    QueuedReward,
    RewardOptions,
    ScoringService,
)
from workers.external_access import ExternalAccess
from workers.rewards.base import Earned, Played, RewardFailed, RewardFunction
from workers.rewards.isolated import IsolatedReward
from workers.rewards.service import ServiceReward


class BrevityReward:
    """The environment's scores, less what each role has said."""

    def __init__(self, spec: Brevity) -> None:
        self._cost = spec.cost_per_token

    async def __call__(self, played: Played) -> Earned:
        said = dict.fromkeys(played.scores, 0)
        for turn in played.turns:
            said[turn.role] = said.get(turn.role, 0) + turn.tokens
        scores = {role: score - self._cost * said[role] for role, score in played.scores.items()}
        return Earned(scores, played.team_score - self._cost * sum(said.values()))

    async def close(self) -> None:
        return


def reward_function(spec: RewardOptions, access: ExternalAccess) -> RewardFunction:
    """Return the function that a specification names. Raises LookupError for what is no function."""
    match spec:
        case Brevity():
            return BrevityReward(spec)
        case ScoringService():
            return ServiceReward(spec, access)
        case QueuedReward(implementation=code) if code:
            return IsolatedReward(code, spec.model_dump(mode="json"), spec.timeout_s)
        case _:
            raise LookupError(f"{spec.type} is not a reward function: the environment gives this reward")


def checked(earned: Earned, played: Played) -> Earned:
    """Refuse what nobody can train on. Raises RewardFailed."""
    if set(earned.scores) != set(played.scores):
        wanted, given = sorted(played.scores), sorted(earned.scores)
        raise RewardFailed(f"bad_reply: scores of {given}, where {wanted} have played", may_pass=False)
    if not all(math.isfinite(x) for x in (*earned.scores.values(), earned.team_score, *earned.facts.values())):
        raise RewardFailed("bad_reply: a score is not a finite number", may_pass=False)
    return earned
