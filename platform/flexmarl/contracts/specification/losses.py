"""Losses: what a token's advantage becomes in the objective. Their code is in `workers.training.losses`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from flexmarl.contracts.plugins import Kind, PluginOptions
from flexmarl.contracts.problems import Problem
from flexmarl.contracts.specification.micro_batches import parted
from flexmarl.contracts.specification.reading import none_of, one_of, read_when
from flexmarl.contracts.specification.reference import ends_of_rounds

if TYPE_CHECKING:
    from flexmarl.contracts.specification.experiment import ExperimentSpec

PLAIN_NORM = 1024
"""`norm_tokens` where nobody says otherwise."""
WIDEST_ROW_CLIP = 0.05
"""Above this a clip of row ratios never bites: they are means over a row's tokens, within thousandths of 1."""


class LossOptions(PluginOptions):
    """What a token's advantage becomes in the objective."""

    has_ratio: ClassVar[bool] = True
    """Whether it accounts for rows of older weights itself, so that a correction by the same ratio counts it twice."""
    paired: ClassVar[bool] = False
    """Whether it compares two members of a group, better and worse, instead of taking rows one by one."""
    compares: ClassVar[bool] = False
    """Whether it compares what engines reported of all rows of a micro-batch before it takes the first."""

    @property
    def reference_weight(self) -> float:
        """Weight of the log-probabilities of `kl.reference` in what the loss itself compares with; 0: not compared."""
        return 1.0 if self.paired else 0.0

    @property
    def most_opponents(self) -> int:
        """Most earlier versions that it compares with besides the reference."""
        return 0

    def opponents_of(self, version: int) -> dict[int, float]:
        """Return the versions that one is compared with besides the reference, and the weight of each."""
        return {}

    def round_of(self, version: int) -> int:
        """Return the number of the round that a version is in; 0 where there are no rounds."""
        return 0


class RowLossOptions(LossOptions):
    """A loss that takes rows one by one, averaged in one of several ways."""

    aggregation: Literal["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "constant_norm"] = "token_mean"
    """Row coefficient c_i and normaliser Z: 1 and tokens; 1/len and rows; 1 and rows; 1/`norm_tokens` and rows."""
    norm_tokens: int = Field(
        default=PLAIN_NORM,
        ge=1,
        le=1_000_000,
        json_schema_extra=read_when((one_of("aggregation", "constant_norm"),)),
    )
    """Constant length by which every row is normalised; only with `constant_norm`."""
    entropy_quantile: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Only tokens whose entropy reaches this quantile of their micro-batch carry the policy gradient: 0.8 keeps the
    upper fifth (experimental). 0: all tokens."""

    def refusals(self, spec: "ExperimentSpec") -> Iterator[Problem]:
        """Refuse a normaliser that the aggregation does not use, and a quantile of what no rank sees."""
        if self.aggregation != "constant_norm" and self.norm_tokens != PLAIN_NORM:
            yield Problem(
                pointer="/algorithm/loss/norm_tokens",
                code="not_read",
                detail=f"norm_tokens is {self.norm_tokens}, and aggregation {self.aggregation} does not use it.",
                hint=f"Remove it, or set {PLAIN_NORM}.",
            )
        if self.entropy_quantile:
            yield from parted(spec, "/algorithm/loss/entropy_quantile", "entropy_quantile", "0")


class ClippedLossOptions(RowLossOptions):
    """A loss that bounds the ratio p / p_engine."""

    clip_low: float = Field(default=0.2, ge=0.0, le=1.0)
    """The ratio's lower bound is 1 - clip_low; 1 disables it. For `gspo` about a thousand times smaller, e.g.
    0.0003."""
    clip_high: float = Field(default=0.2, ge=0.0, le=10.0)
    """The ratio's upper bound is 1 + clip_high. For `gspo` about a thousand times smaller, e.g. 0.0004."""


class PolicyGradientOptions(RowLossOptions):
    """The advantage times the log-probability: the gradient of every other loss on strictly on-policy data."""

    type: Literal["policy_gradient"] = "policy_gradient"

    has_ratio: ClassVar[bool] = False


class PpoClipOptions(ClippedLossOptions):
    """The ratio p / p_engine, clipped per token."""

    type: Literal["ppo_clip"] = "ppo_clip"
    dual_clip: float | None = Field(default=None, gt=1.0, le=100.0)
    """Maximum ratio for tokens of negative advantage, at least 1 + clip_high. Absent: no bound."""

    def refusals(self, spec: "ExperimentSpec") -> Iterator[Problem]:
        """Refuse a bound on bad tokens inside of the range that good ones may move in."""
        yield from super().refusals(spec)
        least = round(1.0 + self.clip_high, 9)
        if self.dual_clip is not None and self.dual_clip < least:
            yield Problem(
                pointer="/algorithm/loss/dual_clip",
                code="out_of_range",
                detail=f"dual_clip is {self.dual_clip}, below 1 + clip_high = {least:g}: it would drop the gradient of "
                "bad tokens that are still within the clip range.",
                hint=f"Set at least {least:g}, or remove it.",
            )


class GspoOptions(ClippedLossOptions):
    """The ratio of a row, the geometric mean of its tokens', clipped as a whole."""

    type: Literal["gspo"] = "gspo"

    def refusals(self, spec: "ExperimentSpec") -> Iterator[Problem]:
        """Refuse a token's clip range, which would switch the clipping of rows off."""
        yield from super().refusals(spec)
        for name, published in (("clip_low", 0.0003), ("clip_high", 0.0004)):
            value = getattr(self, name)
            if value > WIDEST_ROW_CLIP:
                yield Problem(
                    pointer=f"/algorithm/loss/{name}",
                    code="out_of_range",
                    detail=f"gspo clips the geometric mean of a row's ratios, which is close to 1; {name} "
                    f"{value} would clip nothing.",
                    hint=f"Set {published}, or at most {WIDEST_ROW_CLIP}.",
                )


class CispoOptions(ClippedLossOptions):
    """The clipped ratio as a fixed weight of the policy gradient: no token loses its gradient."""

    type: Literal["cispo"] = "cispo"


class ConfidenceClipOptions(RowLossOptions):
    """The ratio p / p_engine, clipped in a range of its row: wider for one said with doubt (ECHO). Experimental."""

    type: Literal["confidence_clip"] = "confidence_clip"
    clip_least: float = Field(default=0.05, ge=0.0, le=1.0)
    """Range of a row that was said with the most confidence: the ratio is kept within 1 - e and 1 + e."""
    clip_most: float = Field(default=0.2, ge=0.0, le=1.0)
    """Range of a row that was said with the most doubt; `clip_least` makes it the same for all rows."""
    slope: float = Field(default=4.0, ge=0.0, le=1000.0)
    """How fast the range narrows with confidence, around the median of the micro-batch; 0: not at all."""
    tail_tokens: int = Field(default=16, ge=1, le=1_000_000)
    """Last sampled tokens of a row whose mean probability is its confidence."""

    compares: ClassVar[bool] = True

    def refusals(self, spec: "ExperimentSpec") -> Iterator[Problem]:
        """Refuse a range that is narrower for doubt, and a median of what no rank sees."""
        yield from super().refusals(spec)
        if self.clip_least > self.clip_most:
            yield Problem(
                pointer="/algorithm/loss/clip_least",
                code="out_of_range",
                detail=f"clip_least is {self.clip_least}, above clip_most, which is {self.clip_most}.",
                hint=f"Set {self.clip_most} or less.",
            )
        if self.clip_least != self.clip_most:
            yield from parted(spec, "/algorithm/loss/type", "confidence_clip", "ppo_clip")


class ToprOptions(RowLossOptions):
    """Rows of negative advantage are tapered by their ratio; others count fully."""

    type: Literal["topr"] = "topr"


class SapoOptions(RowLossOptions):
    """A smooth gate per token instead of a clip."""

    type: Literal["sapo"] = "sapo"
    gate_positive: float = Field(default=1.0, gt=0.0, le=100.0)
    """Steepness of the gate for positive advantages."""
    gate_negative: float = Field(default=1.05, gt=0.0, le=100.0)
    """Steepness of the gate for other advantages."""


class VespoOptions(RowLossOptions):
    """A smooth gate per row instead of a clip."""

    type: Literal["vespo"] = "vespo"


class DecoupledPpoOptions(ClippedLossOptions):
    """A capped weight up to the policy at the cohort's first step, clipped from there on."""

    type: Literal["decoupled_ppo"] = "decoupled_ppo"
    weight_limit: float = Field(default=5.0, ge=1.0, le=1000.0)
    """Maximum weight p_proximal / p_engine of a token."""

    def refusals(self, spec: "ExperimentSpec") -> Iterator[Problem]:
        """Where a cohort is one step, it is taken at the proximal policy itself, and the clip never bites."""
        yield from super().refusals(spec)
        if spec.mechanisms.trainer_protocol != "mini_batch" or spec.batch.mini_batches == 1:
            yield Problem(
                pointer="/algorithm/loss/type",
                code="needs_mini_batch",
                detail="decoupled_ppo clips the later optimizer steps of a cohort relative to the first, but here a "
                "cohort has one step.",
                hint="Set trainer_protocol: mini_batch in /mechanisms, or loss: policy_gradient with correction: "
                "truncated_importance, which is then equivalent.",
            )


MOST_OPPONENTS = 2
_IS_MNPO = one_of("form", "mnpo")
_WITH_OPPONENTS = (_IS_MNPO, none_of("reference_share", 1))
_MNPO, _OPPONENTS = read_when((_IS_MNPO,)), read_when(_WITH_OPPONENTS)


class OnlineDpoOptions(LossOptions):
    """Prefers the best member of a group to its worst, relative to the reference; experimental."""

    type: Literal["online_dpo"] = "online_dpo"
    beta: float = Field(default=0.1, gt=0.0, le=100.0)
    """Strength of the pull towards what the lead is measured from: larger is stronger. The eta of `mnpo`, published as
    0.0075."""
    form: Literal["sigmoid", "ipo", "mnpo"] = "sigmoid"
    """`sigmoid`: any lead of the better member over the worse one is made larger. `ipo` (arXiv 2310.12036): the lead is
    drawn to 1 / (2 `beta`), from both sides, so that it stays bounded where one member is always preferred. `mnpo`
    (arXiv 2509.23102; experimental): the same, with the lead measured from the reference and from the policies at the
    ends of the last rounds together."""
    reference_share: float = Field(default=1 / 3, ge=0.0, le=1.0, json_schema_extra=_MNPO)
    """Weight of the reference in what `mnpo` compares with; the rest is that of the opponents. 1: it is `ipo`."""
    history: int = Field(default=MOST_OPPONENTS, ge=0, le=MOST_OPPONENTS, json_schema_extra=_OPPONENTS)
    """Maximum opponents of `mnpo`: the versions at the ends of the last rounds."""
    newest_share: float = Field(
        default=0.5, gt=0.0, lt=1.0, json_schema_extra=read_when((*_WITH_OPPONENTS, one_of("history", 2)))
    )
    """Weight of the newer one of two opponents; the rest is that of the older one. A single one has all."""
    round_steps: int = Field(
        default=20, ge=1, le=1_000_000, json_schema_extra=read_when((*_WITH_OPPONENTS, none_of("history", 0)))
    )
    """Optimizer steps of a round of `mnpo`. In the first one the opponent is version 0."""

    has_ratio: ClassVar[bool] = False
    paired: ClassVar[bool] = True

    @property
    def reference_weight(self) -> float:
        """All of what a pair is seen from, or the part that opponents leave."""
        return self.reference_share if self.form == "mnpo" else super().reference_weight

    @property
    def most_opponents(self) -> int:
        """None but in `mnpo`."""
        return self.history if self._leaves_some else 0

    @property
    def _leaves_some(self) -> bool:
        """Whether the reference leaves a part of what is compared with to opponents."""
        return self.form == "mnpo" and self.reference_share < 1.0

    def opponents_of(self, version: int) -> dict[int, float]:
        """Return the ends of the last rounds, newest first, with weights that add up to the opponents' share."""
        ends = ends_of_rounds(version, self.round_steps, self.most_opponents)
        weights = (self.newest_share, 1.0 - self.newest_share)[: len(ends)]
        return {
            end: (1.0 - self.reference_share) * (weight / sum(weights))
            for end, weight in zip(ends, weights, strict=True)
        }

    def round_of(self, version: int) -> int:
        """Return the number of the round that a version is in, from 0."""
        return version // self.round_steps

    def _unread(self) -> Iterator[tuple[str, str]]:
        """Return settings that are not the default and say nothing here, each with why."""
        default = {name: field.default for name, field in type(self).model_fields.items()}
        reasons = {
            "reference_share": (self.form == "mnpo", f"form {self.form} compares with the reference alone"),
            "history": (self._leaves_some, "nothing is left for opponents"),
            "newest_share": (self.most_opponents == MOST_OPPONENTS, "there are no two opponents"),
            "round_steps": (self.most_opponents > 0, "there are no opponents"),
        }
        for name, (read, why) in reasons.items():
            if not read and getattr(self, name) != default[name]:
                yield name, why

    def _rounds(self, spec: "ExperimentSpec") -> Iterator[Problem]:
        """A round that is longer than the run has no end, and one that is too short is let go before it is needed."""
        if not self.most_opponents:
            return
        steps, kept = spec.version_steps, spec.mechanisms.durability.every
        if steps <= self.round_steps and steps > 1:
            yield Problem(
                pointer="/algorithm/loss/round_steps",
                code="out_of_range",
                detail=f"A round has {self.round_steps} steps and the run {steps}: no step would have another opponent "
                "than version 0.",
                hint=f"Set {steps - 1} or less, or form: ipo.",
            )
        if self.round_steps < kept:
            yield Problem(
                pointer="/algorithm/loss/round_steps",
                code="out_of_range",
                detail=f"After a failure, steps are repeated from a training state up to {kept} versions old, with the "
                "opponents of each, so rounds must be at least as long.",
                hint=f"Set {kept} or more, or a lower every in /mechanisms/durability.",
            )

    def refusals(self, spec: "ExperimentSpec") -> Iterator[Problem]:
        """A preference is one between what a role said in two whole episodes of a group, seen from the reference."""
        for name, why in self._unread():
            yield Problem(
                pointer=f"/algorithm/loss/{name}",
                code="not_read",
                detail=f"{name} is {getattr(self, name):g}, and {why}.",
                hint=f"Remove it, or set {type(self).model_fields[name].default:g}.",
            )
        yield from self._rounds(spec)
        algorithm, advantage = spec.algorithm, spec.algorithm.advantage
        demands = (
            ("/algorithm/advantage/type", advantage.type, "best_worst",
             "compares the best member of a group with its worst"),
            ("/algorithm/advantage/per_turn", advantage.per_turn, False, "compares whole episodes of a role"),
            ("/algorithm/group_key", algorithm.group_key, "episode_group",
             "compares a role with itself, episode by episode"),
            ("/algorithm/correction/type", algorithm.correction.type, "none",
             "weights pairs of rows, whichever version sampled them"),
            ("/algorithm/kl/coefficient", algorithm.kl.coefficient, 0.0, "uses beta for the distance to the reference"),
        )  # fmt: skip
        for pointer, value, wanted, why in demands:
            if value != wanted:
                said, legal = (str(word).lower() if isinstance(word, bool) else word for word in (value, wanted))
                name = pointer.removesuffix("/type").rpartition("/")[2]
                yield Problem(
                    pointer=pointer,
                    code="not_with_pairs",
                    detail=f"{self.type} {why}; {name} is {said}.",
                    hint=f"Set {legal}, or another loss than {self.type}.",
                )


LOSS: Kind[LossOptions] = Kind(
    "loss",
    "/algorithm/loss",
    LossOptions,
    (
        PolicyGradientOptions,
        PpoClipOptions,
        GspoOptions,
        CispoOptions,
        ConfidenceClipOptions,
        ToprOptions,
        SapoOptions,
        VespoOptions,
        DecoupledPpoOptions,
        OnlineDpoOptions,
    ),
)
