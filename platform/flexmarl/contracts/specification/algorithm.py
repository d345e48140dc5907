"""How rewards become gradients: grouping, advantage, loss, correction, and the sampling family around them."""

from typing import Annotated, Literal

from pydantic import Field

from flexmarl.contracts.base import Strict
from flexmarl.contracts.plugins import OneOf
from flexmarl.contracts.specification.advantages import ADVANTAGE, AdvantageOptions, GrpoOptions
from flexmarl.contracts.specification.arrangers import ARRANGER, ArrangerOptions, NoArrangerOptions
from flexmarl.contracts.specification.branch_controllers import (
    BRANCH_CONTROLLER,
    BranchControllerOptions,
    NoBranchesOptions,
)
from flexmarl.contracts.specification.corrections import CORRECTION, CorrectionOptions, NoCorrectionOptions
from flexmarl.contracts.specification.losses import LOSS, LossOptions, PolicyGradientOptions
from flexmarl.contracts.specification.member_counts import MEMBER_COUNT, EqualOptions, MemberCountOptions
from flexmarl.contracts.specification.reading import is_no_such, is_such, none_of, one_of, read_when
from flexmarl.contracts.specification.reference import AnyReference, FirstVersion
from flexmarl.contracts.specification.replay import ReplayOptions
from flexmarl.contracts.specification.shaping import SHAPING, NoShapingOptions, ShapingOptions
from flexmarl.contracts.specification.sharing import SharingOptions
from flexmarl.contracts.specification.task_choice import (
    GROUP_FILTER,
    TASK_SAMPLER,
    GroupFilterOptions,
    NoFilterOptions,
    TaskSamplerOptions,
    UniformOptions,
)
from flexmarl.contracts.specification.turn_limits import TurnLimitOptions

_BY_ROWS = is_no_such(LOSS, "paired")
_BONUS = read_when((none_of("start", 0),))


class EntropyBonus(Strict):
    start: float = Field(default=0.05, ge=0.0, le=10.0)
    """Coefficient of the mean token entropy at step 0."""
    end_share: float = Field(default=0.05, ge=0.0, le=1.0, json_schema_extra=_BONUS)
    """Final coefficient as a ratio of `start`, reached linearly after `decay_steps`."""
    decay_steps: int = Field(default=200, ge=1, json_schema_extra=_BONUS)


class ReferenceKl(Strict):
    """A KL penalty against an earlier version of the policy: its initial version, or a later one."""

    coefficient: float = Field(default=0.0, ge=0.0, le=100.0, json_schema_extra=read_when((_BY_ROWS,)))
    """Weight of the KL penalty; 0: none, and no reference weights are held."""
    estimator: Literal["k2", "k3", "k3_weighted"] = Field(
        default="k3", json_schema_extra=read_when((_BY_ROWS, none_of("coefficient", 0)))
    )
    """Of KL(policy || reference) from sampled tokens. k2: half the squared log-ratio, whose gradient is that of the KL
    for fresh tokens; k3: p_ref / p - 1 - log p_ref / p, an unbiased value; k3_weighted: k3 times p / p_engine, whose
    gradient is that of the KL for older tokens too."""
    reference: AnyReference = Field(
        default=FirstVersion(),
        json_schema_extra=read_when(
            (_BY_ROWS, none_of("coefficient", 0)),
            (is_such(LOSS, "paired"), none_of("/algorithm/loss/reference_share", 0)),
        ),
    )
    """Reference version: version 0 (`first`), a given one as soon as it exists (`version`), or the newest one every so
    many steps (`renewed`). `online_dpo` uses it too."""


class AlgorithmSpec(Strict):
    group_key: Literal["episode_group", "agent_turn", "team"] = Field(
        default="episode_group",
        json_schema_extra=read_when((_BY_ROWS, none_of("/algorithm/advantage/type", "gae", "habc"))),
    )
    """Rows that share a baseline: those of one role (with `per_turn`, of one turn index); always of one turn index
    (`agent_turn`); or of all roles (`team`)."""
    shaping: Annotated[ShapingOptions, OneOf(SHAPING)] = NoShapingOptions()
    """How a row's reward is transformed before advantages are computed."""
    advantage: Annotated[AdvantageOptions, OneOf(ADVANTAGE)] = GrpoOptions()
    """What a row did better or worse than expected."""
    loss: Annotated[LossOptions, OneOf(LOSS)] = PolicyGradientOptions()
    """What a token's advantage becomes in the objective. All losses are equal on strictly on-policy data, except for
    aggregation; for bounded staleness most use the ratio p / p_engine."""
    entropy: EntropyBonus = EntropyBonus()
    kl: ReferenceKl = ReferenceKl()
    correction: Annotated[CorrectionOptions, OneOf(CORRECTION)] = Field(
        default=NoCorrectionOptions(), json_schema_extra=read_when((_BY_ROWS,))
    )
    """Off-policy correction: weights, for a loss without a ratio of its own, or masks, for every loss."""

    @property
    def needs_reference(self) -> bool:
        """Tell whether trained policies are compared with the reference of `kl`."""
        return self.kl.coefficient > 0 or self.loss.reference_weight > 0

    @property
    def most_compared(self) -> int:
        """Most earlier versions of a policy that one is compared with while it is trained."""
        return int(self.needs_reference) + self.loss.most_opponents

    def compared_with(self, version: int) -> dict[int, float]:
        """Return the versions that one is compared with while it is trained, with the weight of the log-probabilities
        of each: the reference first, then opponents from the newest on. None is a later one."""
        weights = {self.kl.reference.of(version): self.loss.reference_weight or 1.0} if self.needs_reference else {}
        for number, weight in self.loss.opponents_of(version).items():
            weights[number] = weights.get(number, 0.0) + weight
        return weights

    def reference_of(self, version: int) -> int:
        """Return the version that one is compared with while it is trained; never a later one."""
        return self.kl.reference.of(version)


class SamplingFamily(Strict):
    task_sampler: Annotated[TaskSamplerOptions, OneOf(TASK_SAMPLER)] = UniformOptions()
    """Which task an episode group plays."""
    members: Annotated[MemberCountOptions, OneOf(MEMBER_COUNT)] = EqualOptions()
    """How many members each group has."""
    branch_controller: Annotated[BranchControllerOptions, OneOf(BRANCH_CONTROLLER)] = NoBranchesOptions()
    """How the members of a group branch."""
    group_filter: Annotated[GroupFilterOptions, OneOf(GROUP_FILTER)] = NoFilterOptions()
    """Which groups are trained on."""
    keep_members: int | None = Field(default=None, ge=2, le=4096)
    """Train only on this many members of a group, by `keep_rule`. Absent: all members."""
    keep_rule: Literal["variance", "pairs"] = Field(
        default="variance", json_schema_extra=read_when((none_of("keep_members", None),))
    )
    """`variance` (PODS): those whose team scores have the largest variance, compared with each other alone. `pairs`
    (Shuffle-R1; experimental): the best half with the worst half, with the advantages of the whole group."""
    turn_quantile: float = Field(default=0.0, ge=0.0, le=0.99)
    """Turns of a role that were said with less surprise, the mean of -log p over their tokens, than this quantile of
    the role's turns in the group get advantage 0; 0: none. DART takes 0.2 of entropies. Experimental."""
    turn_limit: TurnLimitOptions = TurnLimitOptions()
    """How many turns an episode may have."""
    arranger: Annotated[ArrangerOptions, OneOf(ARRANGER)] = NoArrangerOptions()
    """How often each row counts in a step."""
    replay: ReplayOptions = ReplayOptions()
    """Earlier groups of the run that are trained again."""
    sharing: SharingOptions = SharingOptions()
    """Rollouts that are exchanged with other installations."""

    @property
    def branches(self) -> bool:
        """Tell whether the members of a group answer the turns of one episode."""
        return self.branch_controller.branches

    @property
    def copies(self) -> bool:
        """Tell whether members go on from copies of an episode."""
        return self.branch_controller.branches or self.branch_controller.continues


class Batch(Strict):
    tasks_per_step: int = Field(default=32, ge=1, le=4096)
    """Episode groups in a cohort: the global batch."""
    episodes_per_task: int = Field(default=8, ge=1, le=256)
    """Members of an episode group; 1 only if no plug-in compares episodes."""
    micro_batch_groups: int = Field(default=8, ge=1, le=4096)
    """Episode groups whose samples make one micro-batch of a policy."""
    rollout_groups: int = Field(default=8, ge=1, le=4096)
    """Episode groups in one rollout command, played together on one event loop."""
    min_members: int | None = Field(default=None, ge=2)
    """Minimum finished members of a complete group; all members when absent."""
    incomplete_group: Literal["drop_group", "score"] = "drop_group"
    """Incomplete groups are dropped, or their failed members get `failed_score` (`score`)."""
    failed_score: float = Field(
        default=0.0, ge=-1e6, le=1e6, json_schema_extra=read_when((one_of("incomplete_group", "score"),))
    )
    """Reward of a failed member, for every role; only with `score`."""
    mini_batches: int = Field(
        default=4,
        ge=1,
        le=4096,
        json_schema_extra=read_when((one_of("/mechanisms/trainer_protocol", "mini_batch"),)),
    )
    """Optimizer steps per cohort; only with the protocol `mini_batch`."""
    min_rows: int = Field(
        default=1,
        ge=1,
        le=1_000_000,
        json_schema_extra=read_when((none_of("/mechanisms/trainer_protocol", "mini_batch"),)),
    )
    """Minimum rows for an optimizer step; with fewer, the policy's gradient is carried into the next cohort."""
    max_carry: int = Field(default=4, ge=0, le=1000)
    """Maximum consecutive cohorts to carry a gradient; then the policy steps with what it has, or records a null
    step."""
    settle: Literal["group", "episode"] = "group"
    """Unit that settles at once: a whole group, or each episode, so that its rows are trained while the others are
    still playing. `episode` needs plug-ins that never compare episodes, such as `reinforce`."""
    max_attempts: int = Field(default=3, ge=1, le=10)
    """Maximum attempts per episode before it counts as failed."""
    episode_timeout_s: float = Field(default=600.0, gt=0.0, le=86_400.0)
    """Maximum time of an attempt, with that in which its turns wait for engines; one that needs longer has failed. A
    bound for what is stuck: chat models on a busy machine may need minutes."""
    weights_timeout_s: float = Field(default=3600.0, gt=0.0, le=604_800.0)
    """Maximum time a turn waits for committed weights to be served before its episode counts as failed; not included in
    `episode_timeout_s`."""
