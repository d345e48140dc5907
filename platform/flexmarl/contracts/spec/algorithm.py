"""How rewards become gradients: grouping, advantage, loss, correction, and the sampling family around them."""

from typing import Literal

from pydantic import Field

from flexmarl.contracts.base import Strict


class EntropyBonus(Strict):
    start: float = Field(default=0.05, ge=0.0, le=10.0)
    """Coefficient of the mean token entropy at step 0."""
    end_share: float = Field(default=0.05, ge=0.0, le=1.0)
    """The coefficient decays linearly to this share of `start`."""
    decay_steps: int = Field(default=200, ge=1)


class Advantage(Strict):
    type: Literal["grpo", "reinforce", "reinforce_pp"] = "grpo"
    """`grpo`: reward minus the mean of its group; `reinforce`: the reward itself; `reinforce_pp`: the reward normalised
    over all rows of the policy in the cohort."""
    divide_by_std: bool = False
    """Divide by the group's standard deviation (population, +1e-6); zero-variance groups give 0 either way."""
    per_turn: bool = False
    """Compare the discounted reward-to-go of the same turn index across the group instead of episode scores."""
    gamma: float = Field(default=1.0, gt=0.0, le=1.0)
    """Discount per turn of the reward-to-go; only with `per_turn`."""
    team_share: float = Field(default=1.0, ge=0.0, le=1.0)
    """Share of the team score in a role's reward; the rest is the role's own score."""


class Loss(Strict):
    type: Literal["policy_gradient", "ppo_clip"] = "policy_gradient"
    """Both are equal on strictly on-policy data; `ppo_clip` carries the clipped ratio for bounded staleness."""
    clip_low: float = Field(default=0.2, ge=0.0, lt=1.0)
    clip_high: float = Field(default=0.2, ge=0.0, le=10.0)
    aggregation: Literal["token_mean", "seq_mean_token_mean", "seq_mean_token_sum"] = "token_mean"
    """Row coefficient c_i and normaliser Z: 1 and tokens; 1/len and rows; 1 and rows."""


class AlgorithmSpec(Strict):
    group_key: Literal["episode_group"] = "episode_group"
    advantage: Advantage = Advantage()
    loss: Loss = Loss()
    entropy: EntropyBonus = EntropyBonus()
    correction: Literal["none", "truncated_importance"] = "none"
    """Of rows that older weights sampled: none, or each token weighed by min(p / p_behaviour, importance_limit)."""
    importance_limit: float = Field(default=2.0, ge=1.0, le=1000.0)
    """Largest weight of a token; only with `truncated_importance`."""


class SamplingFamily(Strict):
    task_sampler: Literal["uniform"] = "uniform"
    branch_controller: Literal["none"] = "none"
    group_filter: Literal["none", "drop_zero_variance"] = "none"
    replay: Literal["none"] = "none"


class Batch(Strict):
    tasks_per_step: int = Field(default=32, ge=1, le=4096)
    """Episode groups in a cohort: the global batch."""
    episodes_per_task: int = Field(default=8, ge=2, le=256)
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
