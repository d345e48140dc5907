"""Points of the series that a finished train step adds. Step numbers count from 1; evaluations carry the step after
which they were played, from 0."""

from flexmarl.algorithms.filters import Signal
from flexmarl.orchestrator.cohorts.staleness import lag_metrics
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.state.totals import TrainTotals
from flexmarl.orchestrator.state.tree import Cohort, PolicyCohort, Tally

POLICY_VERSION = "policy/version"
"""Version that a policy had when the step ended: what the x axis `version` of its other series is made of."""
RECENT_STEPS = 20
"""Step durations kept for the median and the estimate of the end."""


def step_metrics(ctx: Context, cohort: Cohort) -> None:
    """Write what is known once every policy has stepped."""
    step, tally = ctx.state.step, cohort.tally
    if tally.finished:
        _rewards(ctx, tally, step)
        _lengths(ctx, tally, step)
    _signals(ctx, tally, step)
    ctx.metric("episodes/failed", float(tally.failed), step, stat="sum")
    if ctx.plan.spares:
        ctx.metric("episodes/replaced", float(tally.replaced), step, stat="sum")
    ctx.metric("groups/dropped", float(cohort.dropped), step, stat="sum")
    if ctx.plan.group_filter.draws_again:
        ctx.metric("groups/drawn", float(cohort.size), step, stat="sum")
        if cohort.kept:
            ctx.metric("groups/drawn_per_kept", cohort.size / cohort.kept, step)
    if ctx.plan.extra_groups:
        ctx.metric("groups/handed_on", float(cohort.handed_on), step, stat="sum")
        ctx.metric("groups/cancelled", float(cohort.cancelled), step, stat="sum")
    if ctx.plan.spec.mechanisms.redundancy.fate == "defer":
        ctx.metric("groups/deferred", float(len(ctx.state.deferred)), step, stat="last")
    for name, own in cohort.policies.items():
        _training(ctx, name, own, cohort.no, step)


def _rewards(ctx: Context, tally: Tally, step: int) -> None:
    history, count = ctx.state.history, tally.finished
    reward = tally.team_sum / count
    ctx.metric("reward/team", reward, step)
    if tally.team_min is not None and tally.team_max is not None:
        ctx.metric("reward/team", tally.team_min, step, stat="min")
        ctx.metric("reward/team", tally.team_max, step, stat="max")
    ctx.metric("solved", tally.solved / count, step)
    history.reward = reward
    history.reward_first = reward if history.reward_first is None else history.reward_first
    for role in ctx.plan.policy_of:
        if role in tally.role_sum:
            own = tally.role_sum[role] / count
            ctx.metric("reward/agent", own, step, role)
            history.role_reward[role] = own
    for name, total in tally.facts.items():
        ctx.metric(f"fact/{name}", total / tally.fact_counts[name], step)


def _lengths(ctx: Context, tally: Tally, step: int) -> None:
    for role in ctx.plan.policy_of:
        turns = tally.role_turns.get(role, 0)
        if turns:
            ctx.metric("length/response", tally.role_tokens[role] / turns, step, role)


def _signals(ctx: Context, tally: Tally, step: int) -> None:
    total = sum(tally.signals.values())
    if total:
        for signal in Signal:
            ctx.metric(f"groups/{signal}", tally.signals.get(signal, 0) / total, step, stat="share")


def _training(ctx: Context, name: str, own: PolicyCohort, cohort_no: int, step: int) -> None:
    lag_metrics(ctx, name, own, step)
    version = ctx.state.policies[name].version
    if version is not None:
        ctx.metric(POLICY_VERSION, float(version), step, name, stat="last")
    totals = own.trained
    if own.null_step or not totals.tokens:
        return
    if totals.z:
        ctx.metric("train/loss", totals.loss_sum / totals.z, step, name)
    ctx.metric("train/entropy", totals.entropy_sum / totals.tokens, step, name)
    _ratios(ctx, name, totals, step)
    ctx.metric("train/clipped", totals.clipped_sum / totals.tokens, step, name, stat="share")
    ctx.metric("train/grad_norm", own.grad_norm, step, name)
    ctx.metric("train/learning_rate", own.learning_rate, step, name)
    ctx.metric("train/entropy_coef", ctx.plan.entropy_coefficient(cohort_no), step, name)
    ctx.metric("time/train", totals.seconds + own.step_seconds, step, name, stat="sum")


def _ratios(ctx: Context, name: str, totals: TrainTotals, step: int) -> None:
    """Write what trainer and engine differ by, and, apart from it, what updates since have made of the ratio."""
    fresh = totals.tokens - totals.older_tokens
    if fresh:
        ctx.metric("train/kl_engine", totals.kl_engine_sum / fresh, step, name)
        ctx.metric("train/logprob_gap", totals.logprob_gap_sum / fresh, step, name)
        ctx.metric("train/logprob_gap", totals.logprob_gap_max, step, name, stat="max")
    if ctx.plan.spec.algorithm.kl.coefficient:
        ctx.metric("train/kl_reference", totals.kl_reference_sum / totals.tokens, step, name)
    if totals.value_rows:
        ctx.metric("train/value_loss", totals.value_loss_sum / totals.value_rows, step, name)
    if totals.older_tokens:
        ctx.metric("train/kl_update", totals.kl_update_sum / totals.older_tokens, step, name)


def publish_metrics(ctx: Context, cohort: Cohort) -> None:
    """Write the times once the new weights are served: a step lasts from its first task to there."""
    step, history = ctx.state.step, ctx.state.history
    settled = cohort.settled_at if cohort.settled_at is not None else ctx.now
    stepped = cohort.stepped_at if cohort.stepped_at is not None else ctx.now
    # Where cohorts overlap, a step lasts from the end of the one before.
    seconds = ctx.now - max(cohort.opened_at, ctx.state.closed_at or cohort.opened_at)
    ctx.metric("time/step", seconds, step)
    ctx.metric("time/rollout", settled - cohort.opened_at, step)
    ctx.metric("time/train_tail", stepped - settled, step)
    ctx.metric("time/publish", ctx.now - stepped, step)
    ctx.metric("time/wait_samples", cohort.idle_s, step)
    if ctx.state.tokens.sampled:
        ctx.metric("tokens/delivered", ctx.state.tokens.delivered / ctx.state.tokens.sampled, step, stat="share")
    if ctx.state.tokens.breaks:
        ctx.metric("chains/broken", float(sum(ctx.state.tokens.breaks.values())), step, stat="sum")
    if seconds > 0:
        ctx.metric("throughput/tokens", cohort.tally.tokens / seconds, step)
        ctx.metric("throughput/samples", sum(cohort.tally.role_turns.values()) / seconds, step)
        for role in ctx.plan.policy_of:
            ctx.metric("throughput/tokens", cohort.tally.role_tokens.get(role, 0) / seconds, step, role)
            ctx.metric("throughput/samples", cohort.tally.role_turns.get(role, 0) / seconds, step, role)
    history.step_seconds.append(seconds)
    del history.step_seconds[:-RECENT_STEPS]
