"""Corrections that leave whole rows out and weigh nothing, so that they stand beside a loss with a ratio of its own.

A row is judged by the geometric mean of its tokens' p / p_engine, which does not punish long rows. Z stays.
"""

from typing import TYPE_CHECKING

from flexmarl.algorithms.losses import Correction, Corrector, Rows
from flexmarl.contracts.specification.corrections import OffPolicyFilterOptions, SequenceFilterOptions

if TYPE_CHECKING:
    import torch


class SequenceFilter(Corrector[SequenceFilterOptions]):
    """Leaves out rows whose mean ratio lies outside of the range."""

    Options = SequenceFilterOptions

    def correct(self, rows: Rows) -> Correction:
        ratio = rows.row_mean_log_ratio().detach().exp()
        return _without(rows, (ratio < self.options.floor) | (ratio > self.options.limit))


class OffPolicyFilter(Corrector[OffPolicyFilterOptions]):
    """Leaves out rows that did badly and that the policy has left: to push them away further teaches nothing."""

    Options = OffPolicyFilterOptions

    def correct(self, rows: Rows) -> Correction:
        ratio = rows.row_mean_log_ratio().detach().exp()
        return _without(rows, (rows.advantages < 0) & (ratio < self.options.floor))


def _without(rows: Rows, out: "torch.Tensor") -> Correction:
    return Correction((~out).to(rows.logprobs.dtype), out)
