"""The clipped surrogate with a range for each row, wide where it was said with doubt (ECHO, arXiv 2602.02150).

The range is e = least + (most - least) sigmoid(slope (c0 - C)). C is the confidence of a row: the mean probability that
the engine reported for the last tokens that it sampled. c0 is the median of the micro-batch.

The paper has 1 for c0 and takes C from the mean of the five largest probabilities. That is 0.2 at most, so e is between
0.194 and 0.197 for its settings, whatever is said. With the median half of the rows are above the middle of the range.
"""

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from flexmarl.algorithms.losses import Loss, Rows, TokenTerms
from flexmarl.contracts.specification.losses import ConfidenceClipOptions

if TYPE_CHECKING:
    import torch


class ConfidenceClip(Loss[ConfidenceClipOptions]):
    Options = ConfidenceClipOptions

    def __init__(self, options: ConfidenceClipOptions, middle: float | None = None) -> None:
        """`middle` is c0; None: that of the rows that are at hand."""
        super().__init__(options)
        self.middle = middle

    def compared(self, rows: Sequence[Rows]) -> Self:
        return type(self)(self.options, self._median(rows))

    def terms(self, rows: Rows) -> TokenTerms:
        import torch

        ratio, advantages, width = rows.log_ratio().exp(), rows.advantages, self.widths(rows)
        bounded = ratio.clamp((1.0 - width).to(ratio.dtype), (1.0 + width).to(ratio.dtype))
        clipped = (ratio * advantages > bounded * advantages).detach()
        return TokenTerms(-torch.minimum(ratio * advantages, bounded * advantages), clipped)

    def widths(self, rows: Rows) -> "torch.Tensor":
        """Return each row's e [rows, 1], in fp64."""
        options = self.options
        middle = self._median([rows]) if self.middle is None else self.middle
        share = (options.slope * (middle - self._confidences(rows))).sigmoid()
        return options.clip_least + (options.clip_most - options.clip_least) * share

    def _confidences(self, rows: Rows) -> "torch.Tensor":
        """Return each row's C [rows, 1], in fp64; 0 of a row without tokens."""
        present = rows.present.double()
        behind = present.flip(1).cumsum(1).flip(1)
        tail = present * (behind <= self.options.tail_tokens)
        return (rows.behaviour.double().exp() * tail).sum(1, keepdim=True) / tail.sum(1, keepdim=True).clamp(min=1.0)

    def _median(self, rows: Sequence[Rows]) -> float:
        """Return c0 over all rows with tokens whose probabilities are known; 0 without any."""
        found: list[float] = []
        for each in rows:
            known = (each.present.sum(1) > 0) & (each.behaviour <= 0).all(1)
            found += self._confidences(each)[known].flatten().tolist()
        return statistics.median(found) if found else 0.0
