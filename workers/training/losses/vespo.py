"""Variational sequence-level soft policy optimisation: a row's ratio w weighs its policy gradient by e^l w^k e^(-l w).

The weight is 1 at ratio 1, falls off smoothly on both sides and is held fixed; k and l are 2 and 3 for rows that did
well, 3 and 2 for others, as published.
"""

from typing import TYPE_CHECKING

from flexmarl.algorithms.losses import LOG_RATIO_LIMIT, Loss, Rows, TokenTerms
from flexmarl.contracts.specification.losses import VespoOptions

if TYPE_CHECKING:
    import torch

SMALLEST = 1e-8
"""A row's ratio counts as this where it is smaller."""


class Vespo(Loss[VespoOptions]):
    Options = VespoOptions

    def terms(self, rows: Rows) -> TokenTerms:
        return TokenTerms(-_weight(rows) * rows.advantages * rows.logprobs)


def _weight(rows: Rows) -> "torch.Tensor":
    """Return the weight of each row [rows, 1]."""
    import torch

    log_ratio = rows.log_ratio().detach().sum(1, keepdim=True)
    log_ratio = log_ratio.clamp(min=torch.tensor(SMALLEST).log().item(), max=LOG_RATIO_LIMIT)
    well = rows.advantages >= 0
    power = torch.where(well, 2.0, 3.0).to(log_ratio.dtype)
    decay = torch.where(well, 3.0, 2.0).to(log_ratio.dtype)
    return (decay + power * log_ratio - decay * log_ratio.exp()).exp()
