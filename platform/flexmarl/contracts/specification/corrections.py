"""Corrections of rows that other weights sampled than those that are trained. Code: `workers.training.losses`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from flexmarl.contracts.plugins import Kind, PluginOptions
from flexmarl.contracts.problems import Problem
from flexmarl.contracts.specification.micro_batches import parted

if TYPE_CHECKING:
    from flexmarl.contracts.specification.experiment import ExperimentSpec


class CorrectionOptions(PluginOptions):
    """Off-policy correction: weights, for a loss without a ratio of its own, or masks, for every loss."""

    weighs: ClassVar[bool] = False
    """Whether it is the ratio p / p_engine: beside a loss with a ratio it would count it twice."""
    surveys: ClassVar[bool] = False
    """Whether it compares the tokens of a whole micro-batch with each other before it corrects any."""

    def refusals(self, spec: "ExperimentSpec") -> Iterator[Problem]:
        """Refuse a ratio that counts twice, and a comparison of what no rank sees."""
        loss = spec.algorithm.loss
        if self.weighs and loss.has_ratio:
            yield Problem(
                pointer="/algorithm/correction/type",
                code="ratio_counted_twice",
                detail=f"{loss.type} has its own ratio; a second weight per token would apply it twice.",
                hint="Set none, or loss: {type: policy_gradient}.",
            )
        if self.surveys:
            yield from parted(spec, "/algorithm/correction/type", self.type, "none")


class NoCorrectionOptions(CorrectionOptions):
    """Rows count as they were sampled."""

    type: Literal["none"] = "none"


class ImportanceOptions(CorrectionOptions):
    """Weights p / p_engine, for a loss without a ratio of its own."""

    level: Literal["token", "sequence"] = "token"
    """Ratio per token, or per row (product over its tokens)."""
    limit: float = Field(default=2.0, ge=1.0, le=1000.0)
    """Maximum ratio."""

    weighs: ClassVar[bool] = True


class TruncatedImportanceOptions(ImportanceOptions):
    """The ratio p / p_engine, capped, as weight; for a loss without a ratio of its own."""

    type: Literal["truncated_importance"] = "truncated_importance"


class MaskedImportanceOptions(ImportanceOptions):
    """The ratio p / p_engine as weight; tokens outside floor and limit are masked; for a loss without a ratio."""

    type: Literal["masked_importance"] = "masked_importance"
    floor: float = Field(default=0.5, ge=0.0, le=1.0)
    """Minimum ratio."""


class MaskStaleOptions(CorrectionOptions):
    """Tokens made by weights older than a number of versions are masked."""

    type: Literal["mask_stale"] = "mask_stale"
    stale_after: int = Field(default=0, ge=0, le=64)
    """Maximum age of a token in versions."""

    def refusals(self, spec: "ExperimentSpec") -> Iterator[Problem]:
        """Refuse an age that no row can have."""
        lags = [spec.lag_policy_of(name) for name in spec.trainable_policies()]
        oldest = max((lag.bound for lag in lags), default=0)
        unbounded = any(lag.at_cut == "train" for lag in lags)
        if self.stale_after >= oldest and not (oldest and unbounded):
            fresh = oldest == 0
            yield Problem(
                pointer=f"/algorithm/correction/{'type' if fresh else 'stale_after'}",
                code="needs_bound",
                detail=f"No row is ever more than {oldest} versions old, so none is older than {self.stale_after}.",
                hint="Set none, or a lag policy with a bound of 1 or more." if fresh else f"Set {oldest - 1} or less.",
            )


class SequenceFilterOptions(CorrectionOptions):
    """Rows whose mean ratio is outside floor and limit are masked."""

    type: Literal["sequence_filter"] = "sequence_filter"
    limit: float = Field(default=2.0, ge=1.0, le=1000.0)
    """Maximum ratio."""
    floor: float = Field(default=0.5, ge=0.0, le=1.0)
    """Minimum ratio."""


class OffPolicyFilterOptions(CorrectionOptions):
    """Rows of negative advantage whose mean ratio is below the floor are masked."""

    type: Literal["off_policy_filter"] = "off_policy_filter"
    floor: float = Field(default=0.5, ge=0.0, le=1.0)
    """Minimum ratio."""


class SecondMomentOptions(CorrectionOptions):
    """Tokens that have left the engine's policy furthest are masked, until the mean squared log-ratio of those that
    leave it further is within a limit (M2PO). Experimental."""

    type: Literal["second_moment"] = "second_moment"
    moment_limit: float = Field(default=0.04, gt=0.0, le=400.0)
    """Maximum mean of (log p / p_engine)^2 over the unmasked tokens that a step would move further away: those of
    positive advantage whose ratio is above 1, and of negative advantage whose ratio is below 1. 400: nothing is
    masked."""

    surveys: ClassVar[bool] = True


CORRECTION: Kind[CorrectionOptions] = Kind(
    "correction",
    "/algorithm/correction",
    CorrectionOptions,
    (
        NoCorrectionOptions,
        TruncatedImportanceOptions,
        MaskedImportanceOptions,
        MaskStaleOptions,
        SequenceFilterOptions,
        OffPolicyFilterOptions,
        SecondMomentOptions,
    ),
)
