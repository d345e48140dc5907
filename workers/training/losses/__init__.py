"""Losses per response token. Each is one function in one file; the trainer knows none by name.

A loss sees padded arrays [rows, tokens] and says nothing about how tokens and rows are weighed: that is aggregation's
part of the normal form. Padding is masked by the caller.
"""

from workers.training.losses.base import REGISTRY, TokenLoss, TokenTerms
from workers.training.losses.policy_gradient import policy_gradient
from workers.training.losses.ppo_clip import ppo_clip

REGISTRY.add("policy_gradient", policy_gradient)
REGISTRY.add("ppo_clip", ppo_clip)

__all__ = ["REGISTRY", "TokenLoss", "TokenTerms"]
