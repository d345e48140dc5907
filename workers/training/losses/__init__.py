"""Losses per response token, and corrections of tokens that other weights sampled. Each is one function.

They see padded arrays [rows, tokens] and say nothing about how tokens and rows are weighed: that is aggregation's part
of the normal form. A loss either has a ratio of its own, against the engine, or leaves it to a correction: never both,
since the same ratio would count twice (a rule of the specification).
"""

from workers.training.losses.base import CORRECTIONS, REGISTRY, Corrector, Rows, TokenLoss, TokenTerms
from workers.training.losses.cispo import cispo
from workers.training.losses.decoupled_ppo import decoupled_ppo
from workers.training.losses.gspo import gspo
from workers.training.losses.importance import masked, truncated
from workers.training.losses.kl import KL_ESTIMATORS
from workers.training.losses.online_dpo import online_dpo
from workers.training.losses.policy_gradient import policy_gradient
from workers.training.losses.ppo_clip import ppo_clip
from workers.training.losses.row_filters import off_policy_filter, sequence_filter
from workers.training.losses.sapo import sapo
from workers.training.losses.stale import mask_stale
from workers.training.losses.topr import topr
from workers.training.losses.vespo import vespo

for _loss in (policy_gradient, ppo_clip, gspo, cispo, topr, sapo, vespo, decoupled_ppo, online_dpo):
    REGISTRY.add(_loss.__name__, _loss)
CORRECTIONS.add("truncated_importance", truncated)
CORRECTIONS.add("masked_importance", masked)
CORRECTIONS.add("mask_stale", mask_stale)
CORRECTIONS.add("sequence_filter", sequence_filter)
CORRECTIONS.add("off_policy_filter", off_policy_filter)

__all__ = ["CORRECTIONS", "KL_ESTIMATORS", "REGISTRY", "Corrector", "Rows", "TokenLoss", "TokenTerms"]
