"""The tokens that have left the engine's policy furthest are left out, as in M2PO (arXiv 2510.01161).

With d = log p / p_engine, the set that is judged are the tokens of a micro-batch that a step would move further away:
A > 0 and d > 0, or A < 0 and d < 0. M2 is the mean of d^2 over the set. The largest d^2 are left out, one after the
other, until M2 of the rest is at most the limit; of equal ones all or none, so that no order matters. Tokens outside of
the set are never left out. Z is not touched.

The mean is one over the tokens that remain. The authors' program bounds the sum of min(d^2, t^2) by the limit times the
size of the set instead, which leaves out more, and never masks ratios from 0.7 to 1.5.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from flexmarl.algorithms.losses import Correction, Corrector, Rows
from flexmarl.contracts.specification.corrections import SecondMomentOptions

if TYPE_CHECKING:
    import torch


class SecondMoment(Corrector[SecondMomentOptions]):
    Options = SecondMomentOptions

    def __init__(self, options: SecondMomentOptions, bound: float = math.inf) -> None:
        """`bound` is what the d^2 of a judged token may be; nothing is left out before a micro-batch is surveyed."""
        super().__init__(options)
        self.bound = bound

    def surveyed(self, rows: Sequence[Rows]) -> Self:
        import torch

        squares = [_squares(each)[_leaving(each)].double().cpu() for each in rows]
        return type(self)(self.options, bound_of(torch.cat(squares), self.options.moment_limit))

    def correct(self, rows: Rows) -> Correction:
        out = _leaving(rows) & (_squares(rows) > self.bound)
        return Correction((~out).to(rows.logprobs.dtype), out)


def bound_of(squares: "torch.Tensor", limit: float) -> float:
    """Return a value below which the mean of non-negative numbers [n] is at most `limit`; no number equals it.

    It stands halfway between the largest that is kept and the least that is not, so that the last bit of a repeated
    forward pass decides nothing; infinite where all are kept.
    """
    import torch

    rising = squares.sort().values
    means = rising.cumsum(0) / torch.arange(1, len(rising) + 1, dtype=rising.dtype)
    beyond = (means > limit).nonzero()
    if not len(beyond):
        return math.inf
    first = float(rising[beyond[0, 0]])
    kept = rising[rising < first]
    return (first + (float(kept[-1]) if len(kept) else 0.0)) / 2


def _squares(rows: Rows) -> "torch.Tensor":
    return rows.log_ratio().detach().square()


def _leaving(rows: Rows) -> "torch.Tensor":
    """Tell which tokens a step would move further away from the engine's policy."""
    return (rows.log_ratio().detach() * rows.advantages > 0) & (rows.present > 0)
