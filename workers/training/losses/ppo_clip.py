"""The clipped surrogate: -min(r A, clip(r, 1 - low, 1 + high) A), r against the engine that sampled."""

from typing import TYPE_CHECKING

from flexmarl.contracts.spec.algorithm import Loss
from workers.training.losses.base import LOG_RATIO_LIMIT, TokenTerms

if TYPE_CHECKING:
    import torch


def ppo_clip(
    logprobs: "torch.Tensor", behaviour: "torch.Tensor", advantages: "torch.Tensor", settings: Loss
) -> TokenTerms:
    import torch

    ratio = (logprobs - behaviour).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    bounded = ratio.clamp(1.0 - settings.clip_low, 1.0 + settings.clip_high)
    clipped = (ratio * advantages > bounded * advantages).detach()
    return TokenTerms(-torch.minimum(ratio * advantages, bounded * advantages), clipped)
