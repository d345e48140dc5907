"""What a loss is given and returns."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from flexmarl.algorithms.registry import Registry
from flexmarl.contracts.spec.algorithm import Loss

if TYPE_CHECKING:
    import torch

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to this before they are exponentiated."""


@dataclass(frozen=True, slots=True)
class TokenTerms:
    per_token: "torch.Tensor"
    """[rows, tokens], with gradient."""
    clipped: "torch.Tensor | None" = None
    """[rows, tokens] bool: tokens whose ratio was clipped; None when the loss has no ratio."""


class TokenLoss(Protocol):
    def __call__(
        self, logprobs: "torch.Tensor", behaviour: "torch.Tensor", advantages: "torch.Tensor", settings: Loss
    ) -> TokenTerms:
        """Return l_it of the normal form: current and engine log-probabilities [rows, tokens], advantages [rows, 1]."""


REGISTRY: Registry[TokenLoss] = Registry("loss", {})
