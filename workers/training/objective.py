"""The normal form on one batch: sum_i c_i sum_t m_it (w_it l_it + kl_coef K_it - entropy_coef H_it),
un-normalised.

Distributions are those the engine drew from: softmax over the allowed ids of logits divided by the temperature. The
entropy bonus and the penalty K for leaving a reference are weighed by the same c_i: one Z closes all at the step.

Two ratios are told apart. Where the trained version itself made a token, trainer and engine should agree: what they
differ by is the mismatch. Where an older version made it, the ratio is that of an update as well, and is counted apart.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from flexmarl.algorithms.aggregation import Aggregation, aggregation_of
from flexmarl.algorithms.losses import LOG_RATIO_LIMIT, Corrector, Loss, Rows, TokenTerms
from flexmarl.contracts.specification.algorithm import AlgorithmSpec
from flexmarl.contracts.specification.corrections import NoCorrectionOptions
from flexmarl.contracts.specification.losses import LossOptions, RowLossOptions
from flexmarl.contracts.wire import UNKNOWN_LOGPROB
from workers.training.losses import CORRECTIONS, KL_ESTIMATORS, LOSSES
from workers.training.packing import PackedTokens
from workers.training.trained_model import TokenScorer, TrainedModel

if TYPE_CHECKING:
    import numpy as np
    import torch


@dataclass(frozen=True, slots=True)
class Objective:
    """A loss with its correction and its row weights."""

    loss: Loss[Any]
    aggregate: Aggregation
    algorithm: AlgorithmSpec
    corrector: Corrector[Any] | None = None
    """None: rows count as they were sampled."""
    since: int = 0
    """Steps taken on the rows' cohort before this one."""

    @property
    def paired(self) -> bool:
        """Tell whether rows are weighed in pairs before they are taken one by one."""
        return bool(self.loss.options.paired)

    @property
    def clones(self) -> bool:
        """Tell whether advantages are weights of what is imitated, by whose sum a step divides."""
        return self.algorithm.advantage.clones

    @property
    def entropy_quantile(self) -> float:
        """Return the quantile of entropies below which tokens carry no policy gradient; 0: all of them do."""
        options = self.loss.options
        return options.entropy_quantile if isinstance(options, RowLossOptions) else 0.0

    @classmethod
    def of(cls, settings: LossOptions, algorithm: AlgorithmSpec | None = None) -> "Objective":
        """Make the objective of a loss, with the correction of an algorithm around it."""
        algorithm = algorithm or AlgorithmSpec(loss=settings)
        plain = isinstance(algorithm.correction, NoCorrectionOptions)
        corrector = None if plain else CORRECTIONS.make(algorithm.correction)
        return cls(LOSSES.make(settings), aggregation_of(settings), algorithm, corrector)

    def after(self, since: int) -> "Objective":
        """Return the same for rows of a cohort on which so many steps were taken."""
        return self if since == self.since else replace(self, since=since)

    def compared(self, rows: Sequence[Rows]) -> "Objective":
        """Return the same for a micro-batch of these rows, of which only what engines reported is known yet."""
        return replace(self, loss=self.loss.compared(rows)) if self.loss.options.compares else self

    @property
    def surveys(self) -> bool:
        """Tell whether a whole micro-batch must be seen before any of its rows is corrected."""
        return self.corrector is not None and bool(self.corrector.options.surveys)

    def surveyed(self, rows: Sequence[Rows]) -> "Objective":
        """Return the same for a micro-batch of which these are all rows."""
        return self if self.corrector is None else replace(self, corrector=self.corrector.surveyed(rows))

    def terms(self, rows: Rows) -> TokenTerms:
        """Return each token's term, corrected; `clipped` tells what the loss or the correction cut off."""
        terms = self.loss.terms(rows)
        if self.corrector is None:
            return terms
        correction = self.corrector.correct(rows)
        clipped = correction.touched if terms.clipped is None else terms.clipped | correction.touched
        return TokenTerms(correction.weights * terms.per_token, clipped, correction.touched)


class BatchSums(NamedTuple):
    """What a batch adds to its micro-batch's figures."""

    loss: float = 0.0
    entropy: float = 0.0
    kl_engine: float = 0.0
    logprob_gap: float = 0.0
    clipped: float = 0.0
    older_tokens: float = 0.0
    kl_update: float = 0.0
    logprob_gap_max: float = 0.0
    kl_reference: float = 0.0
    corrected: float = 0.0

    def plus(self, other: "BatchSums") -> "BatchSums":
        widest = max(self.logprob_gap_max, other.logprob_gap_max)
        return BatchSums(*map(float.__add__, self, other))._replace(logprob_gap_max=widest)


def evaluate(
    decoder: TrainedModel,
    batch: PackedTokens,
    objective: Objective,
    entropy_coef: float,
    reference: TokenScorer | None = None,
) -> "tuple[torch.Tensor, BatchSums]":
    """Return the batch's un-normalised objective, ready for `backward`, and its figures."""
    import torch

    logprobs, entropy = token_scores(decoder, batch)
    near = None
    if reference is not None:
        with torch.no_grad():
            near = token_scores(reference, batch)[0]
    rows = rows_of(batch, logprobs, objective, near)
    return total(rows, entropy, _Placer(logprobs)(batch.coefficients), objective, entropy_coef)


def rows_of(
    batch: PackedTokens, logprobs: "torch.Tensor", objective: Objective, reference: "torch.Tensor | None" = None
) -> Rows:
    """Return a batch as plug-ins see it, with the log-probabilities [rows, tokens] of the trained weights."""
    place = _Placer(logprobs)
    behaviour, lags, unknown = place(batch.behaviour), place(batch.lags), batch.behaviour > 0.5 * UNKNOWN_LOGPROB
    if unknown.any():
        # Of shared rows: as if the trained weights had said them, and none of those that tell of the engine's mismatch.
        others = place(unknown) > 0
        behaviour, lags = logprobs.detach().where(others, behaviour), lags.clamp(min=1.0).where(others, lags)
    return Rows.masked(
        logprobs, behaviour, place(batch.present), place(batch.advantages), lags, reference, objective.since
    )


def recorded(batches: Sequence[PackedTokens], objective: Objective) -> list[Rows]:
    """Return batches before any forward pass, with the engine's log-probabilities in the place of the trained ones."""
    import torch

    return [rows_of(batch, torch.from_numpy(batch.behaviour), objective) for batch in batches]


def survey(
    decoder: TrainedModel, batches: Sequence[PackedTokens], objective: Objective, beat: Callable[[], object]
) -> Objective:
    """Return the objective of a micro-batch, after one more forward pass of its batches, without gradient."""
    import torch

    seen = []
    for batch in batches:
        with torch.no_grad():
            seen.append(rows_of(batch, token_scores(decoder, batch)[0], objective))
        beat()
    return objective.surveyed(seen) if seen else objective


def total(
    rows: Rows, entropy: "torch.Tensor", coefficients: "torch.Tensor", objective: Objective, entropy_coef: float
) -> "tuple[torch.Tensor, BatchSums]":
    """Weigh and add up the terms of rows; `entropy` is [rows, tokens], `coefficients` are c_i [rows, 1]."""
    import torch

    terms = objective.terms(rows)
    weights, present = coefficients * rows.present, rows.present
    entropy = entropy.masked_fill(present == 0, 0.0)
    loss_sum = (weights * terms.per_token).sum()
    value = loss_sum
    if entropy_coef:
        value = value - entropy_coef * (weights * entropy).sum()
    distance = torch.zeros_like(rows.logprobs)
    if rows.reference is not None:
        kl = objective.algorithm.kl
        distance = KL_ESTIMATORS[kl.estimator](rows.logprobs - rows.reference, rows.log_ratio())
        value = value + kl.coefficient * (weights * distance).sum()
    with torch.no_grad():
        gap = rows.logprobs - rows.behaviour
        k3 = gap.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).expm1() - gap
        older = present * (rows.lags > 0)
        fresh = present - older
        clipped, corrected = (
            gap.new_zeros(()) if those is None else (those * present).sum()
            for those in (terms.clipped, terms.corrected)
        )
        widest = (gap.abs() * fresh).max() if gap.numel() else gap.new_zeros(())
        figures = (
            loss_sum.detach(), (entropy * present).sum(), (k3 * fresh).sum(), (gap.abs() * fresh).sum(), clipped,
            older.sum(), (k3 * older).sum(), widest, (distance.detach() * present).sum(),
            corrected,
        )  # fmt: skip
        return value, BatchSums(*torch.stack(figures).double().tolist())


def token_scores(decoder: TokenScorer, batch: PackedTokens) -> "tuple[torch.Tensor, torch.Tensor]":
    """Return log-probability and entropy [B, R] of every response token of the batch's rows; padding repeats some."""
    import torch

    logprobs, entropy = decoder.scores(batch)
    table, drawn_at = (torch.from_numpy(each).to(logprobs.device) for each in (batch.table, batch.drawn_at))
    return logprobs[table], entropy[drawn_at][table]


class _Placer:
    """Brings NumPy tables to the type and device of the computation."""

    def __init__(self, like: "torch.Tensor") -> None:
        self._like = like

    def __call__(self, table: "np.ndarray") -> "torch.Tensor":
        import torch

        return torch.from_numpy(table).to(device=self._like.device, dtype=self._like.dtype)
