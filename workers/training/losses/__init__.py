"""Losses per response token, and corrections of tokens that other weights sampled. Each is one class.

They see padded arrays [rows, tokens] and say nothing about how tokens and rows are weighed: that is aggregation's part
of the normal form. A loss either has a ratio of its own, against the engine, or leaves it to a correction: never both,
since the same ratio would count twice (a rule of the specification).
"""

from typing import Any

from flexmarl.algorithms.losses import Corrector, Loss
from flexmarl.algorithms.registry import Registry
from flexmarl.contracts.specification.corrections import CORRECTION
from flexmarl.contracts.specification.losses import LOSS
from workers.training.losses.cispo import Cispo
from workers.training.losses.confidence_clip import ConfidenceClip
from workers.training.losses.decoupled_ppo import DecoupledPpo
from workers.training.losses.gspo import Gspo
from workers.training.losses.importance import MaskedImportance, TruncatedImportance
from workers.training.losses.kl import KL_ESTIMATORS
from workers.training.losses.online_dpo import OnlineDpo
from workers.training.losses.policy_gradient import PolicyGradient
from workers.training.losses.ppo_clip import PpoClip
from workers.training.losses.row_filters import OffPolicyFilter, SequenceFilter
from workers.training.losses.sapo import Sapo
from workers.training.losses.second_moment import SecondMoment
from workers.training.losses.stale import MaskStale
from workers.training.losses.topr import Topr
from workers.training.losses.unweighed import NoCorrection
from workers.training.losses.vespo import Vespo

LOSSES: Registry[Loss[Any]] = Registry(
    LOSS, (PolicyGradient, PpoClip, Gspo, Cispo, ConfidenceClip, Topr, Sapo, Vespo, DecoupledPpo, OnlineDpo)
)
CORRECTIONS: Registry[Corrector[Any]] = Registry(
    CORRECTION,
    (NoCorrection, TruncatedImportance, MaskedImportance, MaskStale, SequenceFilter, OffPolicyFilter, SecondMoment),
)

__all__ = ["CORRECTIONS", "KL_ESTIMATORS", "LOSSES"]
