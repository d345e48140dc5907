"""Corrections that leave whole rows out and weigh nothing, so that they stand beside a loss with a ratio of its own.

A row is judged by the geometric mean of its tokens' p / p_engine, which does not punish long rows. Z stays.
"""

from typing import TYPE_CHECKING

from flexmarl.contracts.spec.algorithm import AlgorithmSpec
from workers.training.losses.base import Correction, Rows

if TYPE_CHECKING:
    import torch


def sequence_filter(rows: Rows, settings: AlgorithmSpec) -> Correction:
    """Leave out rows whose mean ratio lies outside of the range."""
    ratio = rows.row_mean_log_ratio().detach().exp()
    return _without(rows, (ratio < settings.importance_floor) | (ratio > settings.importance_limit))


def off_policy_filter(rows: Rows, settings: AlgorithmSpec) -> Correction:
    """Leave out rows that did badly and that the policy has left: to push them away further teaches nothing."""
    ratio = rows.row_mean_log_ratio().detach().exp()
    return _without(rows, (rows.advantages < 0) & (ratio < settings.importance_floor))


def _without(rows: Rows, out: "torch.Tensor") -> Correction:
    return Correction((~out).to(rows.logprobs.dtype), out)
