"""Importance weights p / p_engine, held fixed, for rows that something else sampled than the weights that are trained.

`truncated_importance` caps them; `masked_importance` leaves out what lies outside of a range. Of single tokens, or of
whole rows, whose ratio is the product of their tokens'. Z is not touched: it counts the tokens that were there.
"""

from typing import TYPE_CHECKING

from flexmarl.algorithms.losses import Correction, Corrector, Rows
from flexmarl.contracts.specification.corrections import (
    ImportanceOptions,
    MaskedImportanceOptions,
    TruncatedImportanceOptions,
)

if TYPE_CHECKING:
    import torch


class TruncatedImportance(Corrector[TruncatedImportanceOptions]):
    Options = TruncatedImportanceOptions

    def correct(self, rows: Rows) -> Correction:
        ratio = _ratio(rows, self.options)
        return Correction(ratio.clamp(max=self.options.limit), ratio > self.options.limit)


class MaskedImportance(Corrector[MaskedImportanceOptions]):
    Options = MaskedImportanceOptions

    def correct(self, rows: Rows) -> Correction:
        ratio = _ratio(rows, self.options)
        outside = (ratio < self.options.floor) | (ratio > self.options.limit)
        return Correction(ratio.masked_fill(outside, 0.0), outside)


def _ratio(rows: Rows, options: ImportanceOptions) -> "torch.Tensor":
    log_ratio = rows.log_ratio() if options.level == "token" else rows.row_log_ratio()
    return log_ratio.detach().exp()
