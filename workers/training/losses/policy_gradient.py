"""Plain policy gradient: -A log p. The gradient of every clipped loss at ratio 1."""

from typing import TYPE_CHECKING

from flexmarl.contracts.spec.algorithm import Loss
from workers.training.losses.base import TokenTerms

if TYPE_CHECKING:
    import torch


def policy_gradient(
    logprobs: "torch.Tensor", behaviour: "torch.Tensor", advantages: "torch.Tensor", settings: Loss
) -> TokenTerms:
    return TokenTerms(-advantages * logprobs)
