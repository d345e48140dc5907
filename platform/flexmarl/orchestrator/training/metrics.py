"""Points of the series that a finished train step adds. Step numbers count from 1; evaluations carry the step after
which they were played, from 0."""

from flexmarl.algorithms.filters import Signal
from flexmarl.contracts.events import DeviceUse
from flexmarl.orchestrator.cohorts.dispatch import dispatch_metrics
from flexmarl.orchestrator.cohorts.replay import replay_metrics
from flexmarl.orchestrator.cohorts.sharing import sharing_metrics
from flexmarl.orchestrator.cohorts.staleness import lag_metrics
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.state.cohort import Cohort, PolicyCohort, Tally
from flexmarl.orchestrator.state.tokens import TokenCounts
from flexmarl.orchestrator.state.totals import TrainTotals

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
    if ctx.plan.cohort.spares:
        ctx.metric("episodes/replaced", float(tally.replaced), step, stat="sum")
    _groups(ctx, cohort, step)
    if ctx.plan.engines.most > ctx.plan.engines.least:
        _fleet(ctx, step)
    for name, own in cohort.policies.items():
        _training(ctx, name, own, cohort.no, step)


def _groups(ctx: Context, cohort: Cohort, step: int) -> None:
    """Write what became of a step's groups, as far as its options make that a question."""
    if ctx.plan.spec.abandon_bounds():
        ctx.metric("episodes/abandoned", float(cohort.groups.members_abandoned), step, stat="sum")
    if ctx.plan.spec.sampling.sharing.on:
        sharing_metrics(ctx, cohort, step)
    ctx.metric("groups/dropped", float(cohort.groups.dropped), step, stat="sum")
    if ctx.plan.spec.sampling.keep_members is not None and cohort.groups.members:
        share = cohort.groups.members_kept / cohort.groups.members
        ctx.metric("groups/members_kept", share, step, stat="share")
    if ctx.plan.settlement.group_filter.draws_again:
        ctx.metric("groups/drawn", float(cohort.size), step, stat="sum")
        if cohort.groups.kept:
            ctx.metric("groups/drawn_per_kept", cohort.size / cohort.groups.kept, step)
    if ctx.plan.tasks.ranked_from:
        dispatch_metrics(ctx, step)
    if ctx.plan.cohort.extra_groups:
        ctx.metric("groups/handed_on", float(cohort.groups.handed_on), step, stat="sum")
        ctx.metric("groups/cancelled", float(cohort.groups.cancelled), step, stat="sum")
    if ctx.plan.spec.mechanisms.redundancy.fate == "defer":
        ctx.metric("groups/deferred", float(len(ctx.state.backlog.deferred)), step, stat="last")


def _fleet(ctx: Context, step: int) -> None:
    """Write how many engines an elastic fleet has, and how few and many it had since the step before."""
    fleet = ctx.state.fleet
    count = len(fleet.at_work(DeviceUse.ENGINE))
    ctx.metric("fleet/engines", float(count), step, stat="last")
    ctx.metric("fleet/engines", float(min(fleet.size.fewest, count)), step, stat="min")
    ctx.metric("fleet/engines", float(max(fleet.size.most, count)), step, stat="max")
    fleet.size.fewest = fleet.size.most = count


def _rewards(ctx: Context, tally: Tally, step: int) -> None:
    history, count = ctx.state.history, tally.finished
    reward = tally.team.total / count
    ctx.metric("reward/team", reward, step)
    if tally.team.lowest is not None and tally.team.highest is not None:
        ctx.metric("reward/team", tally.team.lowest, step, stat="min")
        ctx.metric("reward/team", tally.team.highest, step, stat="max")
    ctx.metric("solved", tally.solved / count, step)
    history.reward = reward
    history.reward_first = reward if history.reward_first is None else history.reward_first
    for role in ctx.plan.policy_of:
        if role in tally.roles.scores:
            own = tally.roles.scores[role] / count
            ctx.metric("reward/agent", own, step, role)
            history.role_reward[role] = own
    for name, total in tally.facts.totals.items():
        ctx.metric(f"fact/{name}", total / tally.facts.counts[name], step)


def _lengths(ctx: Context, tally: Tally, step: int) -> None:
    for role in ctx.plan.policy_of:
        turns = tally.roles.turns.get(role, 0)
        if turns:
            ctx.metric("length/response", tally.roles.tokens[role] / turns, step, role)


def _signals(ctx: Context, tally: Tally, step: int) -> None:
    total = sum(tally.signals.values())
    if total:
        for signal in Signal:
            ctx.metric(f"groups/{signal}", tally.signals.get(signal, 0) / total, step, stat="share")


def _training(ctx: Context, name: str, own: PolicyCohort, cohort_no: int, step: int) -> None:
    lag_metrics(ctx, name, own, step)
    if ctx.plan.spec.sampling.replay.on:
        replay_metrics(ctx, name, own, step)
    if ctx.plan.cutting.arranger.options.arranges:
        _arranged(ctx, name, own, step)
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
    if ctx.plan.spec.algorithm.correction.type != "none":
        ctx.metric("train/corrected", totals.corrected_sum / totals.tokens, step, name, stat="share")
    ctx.metric("train/grad_norm", own.step.grad_norm, step, name)
    ctx.metric("train/learning_rate", own.step.learning_rate, step, name)
    ctx.metric("train/entropy_coef", ctx.plan.entropy_coefficient(cohort_no), step, name)
    ctx.metric("time/train", totals.seconds + own.step.seconds, step, name, stat="sum")


def _arranged(ctx: Context, name: str, own: PolicyCohort, step: int) -> None:
    """Write how often the rows of a step counted."""
    rows = sum(one.new_rows for one in own.micro_batches)
    if rows:
        ctx.metric("rows/most_repeats", float(own.rows.most_repeats), step, name, stat="max")
        ctx.metric("rows/left_out", own.rows.left_out / rows, step, name, stat="share")


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


def _account(ctx: Context, tokens: TokenCounts, step: int) -> None:
    """Write what share of the sampled tokens has reached a loss, and how many chains were broken."""
    if tokens.sampled:
        ctx.metric("tokens/delivered", tokens.delivered / tokens.sampled, step, stat="share")
    if tokens.breaks:
        ctx.metric("chains/broken", float(sum(tokens.breaks.values())), step, stat="sum")


def publish_metrics(ctx: Context, cohort: Cohort) -> None:
    """Write the times once the new weights are served: a step lasts from its first task to there."""
    step, history = ctx.state.step, ctx.state.history
    settled = cohort.times.settled_at if cohort.times.settled_at is not None else ctx.now
    stepped = cohort.times.stepped_at if cohort.times.stepped_at is not None else ctx.now
    # Where cohorts overlap, a step lasts from the end of the one before.
    seconds = ctx.now - max(cohort.times.opened_at, ctx.state.past_cohorts.last_closed_at or cohort.times.opened_at)
    ctx.metric("time/step", seconds, step)
    ctx.metric("time/rollout", settled - cohort.times.opened_at, step)
    ctx.metric("time/train_tail", stepped - settled, step)
    ctx.metric("time/publish", ctx.now - stepped, step)
    ctx.metric("time/wait_samples", cohort.times.idle_s, step)
    _account(ctx, ctx.state.totals.tokens, step)
    if seconds > 0:
        ctx.metric("throughput/tokens", cohort.tally.tokens / seconds, step)
        ctx.metric("throughput/samples", sum(cohort.tally.roles.turns.values()) / seconds, step)
        for role in ctx.plan.policy_of:
            ctx.metric("throughput/tokens", cohort.tally.roles.tokens.get(role, 0) / seconds, step, role)
            ctx.metric("throughput/samples", cohort.tally.roles.turns.get(role, 0) / seconds, step, role)
    history.step_seconds.append(seconds)
    del history.step_seconds[:-RECENT_STEPS]
