"""How rewards become gradients: grouping, advantage, loss, correction, and the sampling family around them."""

from typing import Literal

from pydantic import Field

from flexmarl.contracts.base import Strict
from flexmarl.contracts.spec.reference import AnyReference, FirstVersion
from flexmarl.contracts.spec.shaping import AnyShaping, NoShaping


class EntropyBonus(Strict):
    start: float = Field(default=0.05, ge=0.0, le=10.0)
    """Coefficient of the mean token entropy at step 0."""
    end_share: float = Field(default=0.05, ge=0.0, le=1.0)
    """The coefficient decays linearly to this share of `start`."""
    decay_steps: int = Field(default=200, ge=1)


class Advantage(Strict):
    type: Literal["grpo", "rloo", "reinforce", "reinforce_pp", "best_worst", "gae"] = "grpo"
    """`grpo`: reward minus the mean of its group; `rloo`: minus the mean of the others in it; `reinforce`: the reward
    itself; `reinforce_pp`: the reward normalised over all rows of the policy in the cohort; `best_worst`: 1 for the
    best member of a group, -1 for the worst, 0 for the others; `gae`: what a learned critic did not expect, turn by
    turn (generalised advantage estimation)."""
    divide_by_std: bool = False
    """Divide by the group's standard deviation (population, +1e-6); zero-variance groups give 0 either way."""
    baseline_over: Literal["episodes", "rows"] = "episodes"
    """What a group's mean is taken over: each episode once, however often a role acted in it, or every row."""
    per_turn: bool = False
    """Compare the discounted reward-to-go of the same turn index across the group instead of episode scores."""
    turn_rewards: Literal["own", "joint"] = "own"
    """Rewards of turns that count for a role: its own, or those of all roles by turn index; only with `per_turn`."""
    gamma: float = Field(default=1.0, gt=0.0, le=1.0)
    """Discount per turn of the reward-to-go; only with `per_turn`, or `gae`."""
    gae_lambda: float = Field(default=0.95, ge=0.0, le=1.0)
    """How far surprises of later turns count: 0 the next value alone, 1 the whole return; only with `gae`."""
    critic_rate: float = Field(default=0.01, gt=0.0, le=1.0)
    """Learning rate of the critic; only with `gae`."""
    team_share: float = Field(default=1.0, ge=0.0, le=1.0)
    """Share of the team score in a role's reward; the rest is the role's own score."""


LossName = Literal[
    "policy_gradient", "ppo_clip", "gspo", "cispo", "topr", "sapo", "vespo", "decoupled_ppo", "online_dpo"
]
CLIPPED = frozenset({"ppo_clip", "gspo", "cispo", "decoupled_ppo"})
"""Losses that read the clip range."""
PAIRED = frozenset({"online_dpo"})
"""Losses of two members of a group, better and worse, that are compared with the reference."""


class Loss(Strict):
    type: LossName = "policy_gradient"
    """All are equal on strictly on-policy data, but for the average over a row. The others carry a ratio p / p_engine
    for bounded staleness: clipped per token (`ppo_clip`) or per row (`gspo`), a clipped weight (`cispo`), a taper for
    bad rows alone (`topr`), a smooth gate per token (`sapo`) or row (`vespo`), or parted (`decoupled_ppo`): a capped
    weight up to where the cohort's first step began, and clipped from there on. `online_dpo` is another thing: the best
    member of a group is preferred to its worst, seen from the reference."""
    clip_low: float = Field(default=0.2, ge=0.0, le=1.0)
    """The ratio's lower bound is 1 less this; 1: none. For `gspo` some thousand times smaller, as 0.0003."""
    clip_high: float = Field(default=0.2, ge=0.0, le=10.0)
    """The ratio's upper bound is 1 plus this. For `gspo` some thousand times smaller, as 0.0004."""
    dual_clip: float | None = Field(default=None, gt=1.0, le=100.0)
    """Largest ratio with which a token of negative advantage counts; only with `ppo_clip`, absent: no such bound."""
    weight_limit: float = Field(default=5.0, ge=1.0, le=1000.0)
    """Largest weight p_proximal / p_engine of a token; only with `decoupled_ppo`."""
    gate_positive: float = Field(default=1.0, gt=0.0, le=100.0)
    """Steepness of the gate for positive advantages; only with `sapo`."""
    gate_negative: float = Field(default=1.05, gt=0.0, le=100.0)
    """Steepness of the gate for other advantages; only with `sapo`."""
    beta: float = Field(default=0.1, gt=0.0, le=100.0)
    """How near a preference keeps the policy to its reference: the larger, the nearer; only with `online_dpo`."""
    aggregation: Literal["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "constant_norm"] = "token_mean"
    """Row coefficient c_i and normaliser Z: 1 and tokens; 1/len and rows; 1 and rows; 1/`norm_tokens` and rows."""
    norm_tokens: int = Field(default=1024, ge=1, le=1_000_000)
    """Tokens that a row counts as, however long it is; only with `constant_norm`."""

    @property
    def has_ratio(self) -> bool:
        """Tell whether rows of older weights are accounted for by the loss itself."""
        return self.type != "policy_gradient" and self.type not in PAIRED


WEIGHTING = frozenset({"truncated_importance", "masked_importance"})
"""Corrections that are the ratio p / p_engine: beside a loss with a ratio they would count it twice."""
CorrectionName = Literal[
    "none", "truncated_importance", "masked_importance", "mask_stale", "sequence_filter", "off_policy_filter"
]


class ReferenceKl(Strict):
    """A penalty for leaving an earlier version of the policy: the one that training began with, or a later one."""

    coefficient: float = Field(default=0.0, ge=0.0, le=100.0)
    """Weight of the divergence beside the loss; 0: none, and no second copy of the weights is held."""
    estimator: Literal["k2", "k3"] = "k3"
    """Of KL(policy || reference) from drawn tokens: half the squared log-ratio, whose gradient is the divergence's; or
    p_ref / p - 1 - log p_ref / p, which is unbiased as a value."""
    reference: AnyReference = FirstVersion()
    """What the policy is compared with: its version 0 (`first`), from the moment that it is there on another one
    (`version`), or every so many steps the newest one (`renewed`). Preferences (`online_dpo`) read it too."""


class AlgorithmSpec(Strict):
    group_key: Literal["episode_group", "agent_turn", "team"] = "episode_group"
    """Rows that share a baseline: those of a role, with `per_turn` of the same turn index; always of the same turn
    index (`agent_turn`); or of all roles (`team`)."""
    shaping: AnyShaping = NoShaping()
    """What a row's reward counts as before it is compared."""
    advantage: Advantage = Advantage()
    loss: Loss = Loss()
    entropy: EntropyBonus = EntropyBonus()
    kl: ReferenceKl = ReferenceKl()
    correction: CorrectionName = "none"
    """Of tokens that were not sampled by the weights they train. Weights, for a loss without a ratio of its own:
    p / p_engine capped at `importance_limit` (`truncated_importance`), or left out beyond floor and limit
    (`masked_importance`). Masks, for every loss: tokens older than `stale_after` versions (`mask_stale`), rows whose
    mean ratio is outside of floor and limit (`sequence_filter`), rows of negative advantage whose mean ratio is below
    the floor (`off_policy_filter`)."""
    importance_level: Literal["token", "sequence"] = "token"
    """Ratio of each token, or of a row: the product of its tokens'. Only with weights."""
    importance_limit: float = Field(default=2.0, ge=1.0, le=1000.0)
    """Largest ratio; with weights and `sequence_filter`."""
    importance_floor: float = Field(default=0.5, ge=0.0, le=1.0)
    """Smallest ratio; with `masked_importance` and the two filters of rows."""
    stale_after: int = Field(default=0, ge=0, le=64)
    """Versions that a token may be old; only with `mask_stale`."""

    @property
    def needs_reference(self) -> bool:
        """Tell whether trained policies are compared with an earlier version."""
        return self.kl.coefficient > 0 or self.loss.type in PAIRED

    def reference_of(self, version: int) -> int:
        """Return the version that one is compared with while it is trained; never a later one."""
        return self.kl.reference.of(version)


class SamplingFamily(Strict):
    task_sampler: Literal["uniform"] = "uniform"
    branch_controller: Literal["none", "at_grpo_tree"] = "none"
    """How the members of a group part: each plays an episode of its own (`none`), or all of them answer every turn of
    one episode from the same state, and one answer carries it on (`at_grpo_tree`)."""
    branch_score: Literal["turn", "played_out"] = "turn"
    """What an answer earns: what the environment gives for the turn, or what the episode comes to when the same agents
    play it on from there; only with `at_grpo_tree`."""
    branch_carry: Literal["best", "first"] = "best"
    """Which answer carries the episode on: the one that earned most, or the first member's, which is a plain draw of
    the policy; only with `at_grpo_tree`."""
    branch_joint: Literal["aligned", "cross"] = "aligned"
    """Where several roles answer at once: member by member, or each answer beside all answers of the others, whose
    mean it earns (as in MAGRPO); only with `at_grpo_tree`."""
    group_filter: Literal["none", "drop_zero_variance", "dynamic_sampling"] = "none"
    """Groups that are trained on: all, those in which some member did better than another (`drop_zero_variance`), or
    those, with another task drawn for each one refused (`dynamic_sampling`)."""
    draw_limit: int = Field(default=10, ge=2, le=1000)
    """Groups drawn at most for each that a step needs; then it goes on with those it has. Only with
    `dynamic_sampling`."""
    keep_members: int | None = Field(default=None, ge=2, le=4096)
    """Members of a group that are trained on: those whose team scores differ most. Absent: all of them."""
    replay: Literal["none"] = "none"

    @property
    def branches(self) -> bool:
        """Tell whether the members of a group answer the turns of one episode."""
        return self.branch_controller != "none"


class Batch(Strict):
    tasks_per_step: int = Field(default=32, ge=1, le=4096)
    """Episode groups in a cohort: the global batch."""
    episodes_per_task: int = Field(default=8, ge=1, le=256)
    """Members of an episode group; one alone only where no row is compared with another episode's."""
    micro_batch_groups: int = Field(default=8, ge=1, le=4096)
    """Episode groups whose samples make one micro-batch of a policy."""
    rollout_groups: int = Field(default=8, ge=1, le=4096)
    """Episode groups in one rollout command, played together on one event loop."""
    min_members: int | None = Field(default=None, ge=2)
    """A group with fewer finished members is not complete; all members are needed when absent."""
    incomplete_group: Literal["drop_group", "score"] = "drop_group"
    """What happens to a group that is not complete: it is dropped, or its failed members are compared with at
    `failed_score`."""
    failed_score: float = Field(default=0.0, ge=-1e6, le=1e6)
    """Reward of a failed member, every role of it; only with `score`."""
    mini_batches: int = Field(default=4, ge=1, le=4096)
    """Optimizer steps per cohort; only with the protocol `mini_batch`."""
    min_rows: int = Field(default=1, ge=1, le=1_000_000)
    """A policy with fewer rows does not step: its gradient is carried into the next cohort."""
    max_carry: int = Field(default=4, ge=0, le=1000)
    """Cohorts in a row that a policy may carry; then it steps with what it has, or records a null step."""
    settle: Literal["group", "episode"] = "group"
    """What settles at once: a whole group, or each of its episodes, whose rows are trained while the others still play.
    `episode` needs plug-ins that compare no row with another episode's, such as `reinforce`."""
    max_attempts: int = Field(default=3, ge=1, le=10)
    """Attempts per episode before it counts as failed."""
    episode_timeout_s: float = Field(default=120.0, gt=0.0, le=86_400.0)
    weights_timeout_s: float = Field(default=3600.0, gt=0.0, le=604_800.0)
    """How long a turn waits for weights that are certain and not served yet, before its episode counts as failed; this
    wait is no part of `episode_timeout_s`."""
