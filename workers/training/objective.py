"""The normal form on one batch: sum_i c_i sum_t m_it (l_it - entropy_coef H_it), un-normalised.

Distributions are those the engine drew from: softmax over the allowed ids of logits divided by the temperature. The
entropy bonus is weighed by the same c_i, so one Z closes both at the step.
"""

from typing import TYPE_CHECKING, NamedTuple

from flexmarl.contracts.spec.algorithm import Loss
from workers.training.decoder import Decoder
from workers.training.losses import TokenLoss
from workers.training.losses.base import LOG_RATIO_LIMIT
from workers.training.packing import Batch

if TYPE_CHECKING:
    import numpy as np
    import torch


class Sums(NamedTuple):
    """What a batch adds to its micro-batch's figures."""

    loss: float = 0.0
    entropy: float = 0.0
    kl_engine: float = 0.0
    logprob_gap: float = 0.0
    clipped: float = 0.0

    def plus(self, other: "Sums") -> "Sums":
        return Sums(*map(float.__add__, self, other))


def evaluate(
    decoder: Decoder, batch: Batch, loss: TokenLoss, settings: Loss, entropy_coef: float
) -> "tuple[torch.Tensor, Sums]":
    """Return the batch's un-normalised objective, ready for `backward`, and its figures."""
    import torch

    logprobs, entropy = token_scores(decoder, batch)
    place = _Placer(logprobs)
    present, behaviour = place(batch.present), place(batch.behaviour)
    terms = loss(logprobs, behaviour, place(batch.advantages), settings)
    weights = place(batch.coefficients) * present
    loss_sum = (weights * terms.per_token).sum()
    objective = loss_sum - entropy_coef * (weights * entropy).sum()
    with torch.no_grad():
        gap = (logprobs.detach() - behaviour) * present
        k3 = gap.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).expm1() - gap
        clipped = gap.new_zeros(()) if terms.clipped is None else (terms.clipped * present).sum()
        figures = torch.stack((loss_sum.detach(), (entropy * present).sum(), k3.sum(), gap.abs().sum(), clipped))
    return objective, Sums(*figures.double().tolist())


def token_scores(decoder: Decoder, batch: Batch) -> "tuple[torch.Tensor, torch.Tensor]":
    """Return log-probability and entropy [B, R] of every response token of the batch's rows, padding included."""
    import torch

    device = decoder.device
    ids, window = (torch.from_numpy(table).to(device) for table in (batch.ids, batch.window))
    logits = decoder.logits(ids, window)
    if logits.dtype == torch.bfloat16:
        logits = logits.float()
    place = _Placer(logits)
    if (batch.temperature != 1.0).any():
        logits = logits / place(batch.temperature).view(-1, 1, 1)
    if batch.masks.any():
        mask_of = torch.from_numpy(batch.mask_of).to(device)
        logits = logits + place(batch.masks)[mask_of].unsqueeze(1)
    scores = logits.log_softmax(-1)
    entropy = -(scores.exp() * scores).sum(-1)
    source, targets = (torch.from_numpy(table).to(device) for table in (batch.source, batch.targets))
    inputs, width, vocabulary = scores.shape
    line = source.unsqueeze(1) * width + torch.arange(width, device=device)
    return scores.view(-1)[line * vocabulary + targets], entropy.view(inputs * width)[line]


class _Placer:
    """Brings NumPy tables to the type and device of the computation."""

    def __init__(self, like: "torch.Tensor") -> None:
        self._like = like

    def __call__(self, table: "np.ndarray") -> "torch.Tensor":
        import torch

        return torch.from_numpy(table).to(device=self._like.device, dtype=self._like.dtype)
