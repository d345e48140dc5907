"""What a loss and a correction are given and return, for those that are built in and for others.

Invariant: whatever lies under the mask is 0 before a plug-in sees it (`Rows.masked`), so garbage or NaN there reaches
neither a loss nor a gradient, and a sum over a row's tokens needs no further care.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypeVar

from flexmarl.algorithms.registry import Plugin
from flexmarl.contracts.specification.corrections import CorrectionOptions
from flexmarl.contracts.specification.losses import LossOptions

if TYPE_CHECKING:
    import torch

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to this before they are exponentiated."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a batch as plug-ins see them: [rows, tokens] of what was sampled, padded on the right.

    A row is a chain: all that one policy said in an episode while its context only grew. So a ratio of a row is one of
    all its turns. Advantages may be [rows, 1] where each row has one.
    """

    logprobs: "torch.Tensor"
    """Of the emitted tokens under the weights that are trained, with gradient."""
    behaviour: "torch.Tensor"
    """Of the same under the engine that sampled them, as it reported."""
    present: "torch.Tensor"
    """1 for a token the policy emitted, 0 for padding."""
    advantages: "torch.Tensor"
    """What each token is to weigh: that of its turn, of which a row has several where agents speak in messages."""
    lags: "torch.Tensor"
    """How many versions older than the trained one the weights were that made a token."""
    reference: "torch.Tensor | None" = None
    """Log-probabilities under the reference policy, where there is one."""
    since: float = 0.0
    """Steps taken on the rows' cohort before this one: how much newer the trained version is than the proximal one."""

    @classmethod
    def masked(
        cls,
        logprobs: "torch.Tensor",
        behaviour: "torch.Tensor",
        present: "torch.Tensor",
        advantages: "torch.Tensor",
        lags: "torch.Tensor",
        reference: "torch.Tensor | None" = None,
        since: float = 0.0,
    ) -> "Rows":
        """Take tables in with zeros under the mask, whatever stood there."""
        absent = present == 0
        clean, known = logprobs.masked_fill(absent, 0.0), behaviour.masked_fill(absent, 0.0)
        near = None if reference is None else reference.masked_fill(absent, 0.0)
        return cls(clean, known, present, advantages, lags.masked_fill(absent, 0.0), near, since)

    def lengths(self) -> "torch.Tensor":
        """Count each row's tokens [rows, 1]; at least 1, so that a row without tokens divides nothing by zero."""
        return self.present.sum(1, keepdim=True).clamp(min=1.0)

    def log_ratio(self) -> "torch.Tensor":
        """Return log p / p_engine per token, clamped, with gradient."""
        return (self.logprobs - self.behaviour).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)

    def row_log_ratio(self) -> "torch.Tensor":
        """Return the sum of a row's log-ratios [rows, 1], clamped, with gradient."""
        whole = (self.logprobs - self.behaviour).sum(1, keepdim=True)
        return whole.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)

    def row_mean_log_ratio(self) -> "torch.Tensor":
        """Return the mean of a row's log-ratios [rows, 1], clamped, with gradient."""
        whole = (self.logprobs - self.behaviour).sum(1, keepdim=True) / self.lengths()
        return whole.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


@dataclass(frozen=True, slots=True)
class TokenTerms:
    per_token: "torch.Tensor"
    """l_it of the normal form: [rows, tokens], or [rows, 1] for all tokens of a row; with gradient."""
    clipped: "torch.Tensor | None" = None
    """bool of the same shape: what was clipped; None when the loss has no ratio."""
    corrected: "torch.Tensor | None" = None
    """bool of the same shape: what the correction truncated or left out; None without one."""


LossSettings = TypeVar("LossSettings", bound=LossOptions)
CorrectionSettings = TypeVar("CorrectionSettings", bound=CorrectionOptions)


class Loss(Plugin[LossSettings], ABC):
    """A loss per token of a reply. How tokens and rows are averaged is not its concern."""

    def compared(self, rows: Sequence[Rows]) -> Self:
        """Return the loss of one micro-batch, of which these are all rows, in any number of batches.

        Only one whose options say `compares` is asked, before any row has gone through the trained weights: the rows'
        `logprobs` are those of `behaviour`, which is above 0 where nobody knows them.
        """
        return self

    @abstractmethod
    def terms(self, rows: Rows) -> TokenTerms:
        """Return l_it of the normal form."""


@dataclass(frozen=True, slots=True)
class Correction:
    weights: "torch.Tensor"
    """[rows, tokens] or [rows, 1], without gradient: what a token's term is multiplied by. Z stays what it is."""
    touched: "torch.Tensor"
    """bool of the same shape: weights that were truncated, tokens that were left out."""


class Corrector(Plugin[CorrectionSettings], ABC):
    """An off-policy correction of a loss."""

    def surveyed(self, rows: Sequence[Rows]) -> Self:
        """Return the correction of one micro-batch, of which these are all rows, in any number of batches.

        Only one whose options say `surveys` is asked, before any row of the micro-batch is corrected.
        """
        return self

    @abstractmethod
    def correct(self, rows: Rows) -> Correction:
        """Weigh tokens that were not sampled by the weights that are trained."""
