"""Importance weights p / p_engine, held fixed, for rows that something else sampled than the weights that are trained.

`truncated_importance` caps them; `masked_importance` leaves out what lies outside of a range. Of single tokens, or of
whole rows, whose ratio is the product of their tokens'. Z is not touched: it counts the tokens that were there.
"""

from typing import TYPE_CHECKING

from flexmarl.contracts.spec.algorithm import AlgorithmSpec
from workers.training.losses.base import Correction, Rows

if TYPE_CHECKING:
    import torch


def truncated(rows: Rows, settings: AlgorithmSpec) -> Correction:
    ratio = _ratio(rows, settings)
    return Correction(ratio.clamp(max=settings.importance_limit), ratio > settings.importance_limit)


def masked(rows: Rows, settings: AlgorithmSpec) -> Correction:
    ratio = _ratio(rows, settings)
    outside = (ratio < settings.importance_floor) | (ratio > settings.importance_limit)
    return Correction(ratio.masked_fill(outside, 0.0), outside)


def _ratio(rows: Rows, settings: AlgorithmSpec) -> "torch.Tensor":
    log_ratio = rows.log_ratio() if settings.importance_level == "token" else rows.row_log_ratio()
    return log_ratio.detach().exp()
