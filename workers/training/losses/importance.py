"""Truncated importance weights: a loss of rows that older weights sampled, seen from the weights it trains.

Each token's term is weighed by min(p / p_behaviour, limit), held fixed. Z is not touched: it counts tokens.
"""

from typing import TYPE_CHECKING

from flexmarl.contracts.spec.algorithm import Loss
from workers.training.losses.base import LOG_RATIO_LIMIT, TokenLoss, TokenTerms

if TYPE_CHECKING:
    import torch


def truncated(loss: TokenLoss, limit: float) -> TokenLoss:
    """Weigh a loss per token; `clipped` tells which weights were truncated."""

    def weighed(
        logprobs: "torch.Tensor", behaviour: "torch.Tensor", advantages: "torch.Tensor", settings: Loss
    ) -> TokenTerms:
        ratio = (logprobs.detach() - behaviour).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
        terms = loss(logprobs, behaviour, advantages, settings)
        return TokenTerms(ratio.clamp(max=limit) * terms.per_token, ratio > limit)

    return weighed
