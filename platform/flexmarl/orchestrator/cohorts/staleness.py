"""Where the lag policy meets the run: ages of settled rows, the sweep before a cut, and what of it becomes a series.

Invariant: nothing reaches a micro-batch but through `swept`, so own lag never exceeds a policy's bound, but where that
is one of admission alone (`at_cut: train`).
"""

from collections.abc import Sequence

from flexmarl.contracts.events import GroupSettled
from flexmarl.contracts.rulings import RulingKind
from flexmarl.contracts.wire import TOO_OLD, EpisodeOutcome
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.state import lag
from flexmarl.orchestrator.state.cohort import Cohort, PendingGroup, PolicyCohort
from flexmarl.orchestrator.state.group_counts import said_by
from flexmarl.orchestrator.state.tokens import Undelivered

STALE = "stale"
"""Cause of rows that grew older than their policy's bound before they could be trained."""


def count_made(ctx: Context, cohort: Cohort, finished: Sequence[EpisodeOutcome]) -> None:
    """Count the trainable rows that were generated, whatever becomes of them."""
    for episode in finished:
        for sample in episode.samples:
            if sample.tokens and sample.role in ctx.plan.trained_roles:
                own = cohort.policies[ctx.plan.policy_of[sample.role]]
                own.rows.generated += 1
                own.rows.generated_tokens += sample.tokens


def ages_of(
    ctx: Context, cohort: Cohort, event: GroupSettled, finished: Sequence[EpisodeOutcome]
) -> dict[str, lag.Ages]:
    """Return the versions that made a group's trainable rows, by policy."""
    plan, state = ctx.plan, ctx.state
    ages: dict[str, lag.Ages] = {}
    for episode in finished:
        for sample in episode.samples:
            if sample.tokens and sample.role in plan.trained_roles:
                name = plan.policy_of[sample.role]
                if name not in ages:
                    ages[name] = lag.Ages(done=state.policies[name].version or 0)
                pinned = event.versions.get(name, cohort.pins[name].version)
                lag.add_row(ages[name], pinned, sample.tokens, sample.segments)
    return ages


def abandoned_of(episodes: Sequence[EpisodeOutcome]) -> list[EpisodeOutcome]:
    """Return the members that were given up between two turns."""
    return [episode for episode in episodes if episode.abandoned]


def give_up(
    ctx: Context,
    cohort: Cohort,
    event: GroupSettled,
    finished: Sequence[EpisodeOutcome],
    abandoned: Sequence[EpisodeOutcome],
) -> None:
    """Rule out a group that too few members finished since others were too old, as the sweep would have done later.

    Its credit is given back at once: it counts as kept, cut, and too old for that.
    """
    plan, groups = ctx.plan, cohort.groups
    groups.kept += 1
    groups.cut += 1
    groups.late += 1
    ctx.state.totals.tokens.lose(Undelivered.STALE, sum(said_by(episode, plan.trained_roles) for episode in finished))
    own = (sample for episode in finished for sample in episode.samples if sample.role in plan.trained_roles)
    text = (
        f"group {event.draw} is too old for any step: {len(abandoned)} of its episodes were abandoned between two "
        f"turns ({abandoned[0].reason.removeprefix(TOO_OLD).strip()[:200]})"
    )
    ctx.rule(
        RulingKind.GROUP_DROPPED,
        text,
        cohort=cohort.no,
        target=f"draw:{event.draw}",
        rows=sum(not sample.follows for sample in own),
        cause=STALE,
    )
    again = any(plan.spec.lag_policy_of(name).at_cut == "refresh" for name in plan.trainable)
    if again:
        _repeat(ctx, cohort, event.draw)


def swept(ctx: Context, cohort: Cohort, policy: str, groups: list[PendingGroup], ahead: int) -> list[PendingGroup]:
    """Take out the groups whose rows are too old for the weights they would train: `ahead` steps from now."""
    own, rule = cohort.policies[policy], ctx.plan.spec.lag_policy_of(policy)
    version = (ctx.state.policies[policy].version or 0) + ahead
    kept = []
    for group in groups:
        rows = len(group.rows.get(policy, ()))
        if not rows:
            continue
        ages = group.ages.get(policy)
        fate = lag.sweep(ages, version, rule)
        if fate == "keep" and ages is not None:
            lag.count(own.lags, ages, version)
            own.own_lag = max(own.own_lag, version - ages.oldest)
            kept.append(group)
            continue
        _drop(ctx, cohort, policy, group, rows, version)
        if fate == "refresh":
            _repeat(ctx, cohort, group.draw)
    return kept


def _repeat(ctx: Context, cohort: Cohort, draw: int) -> None:
    """Let the task of a draw be played again, once for all policies: that of the draw which it repeated itself."""
    first, repeated = cohort.tasks.get(draw, draw), ctx.state.backlog.repeated
    if first not in repeated:
        repeated.append(first)


def _drop(ctx: Context, cohort: Cohort, policy: str, group: PendingGroup, rows: int, version: int) -> None:
    ctx.state.totals.tokens.lose(Undelivered.STALE, sum(row[-1] for row in group.rows[policy]))
    cohort.policies[policy].rows.stale += rows
    ctx.state.totals.rows_dropped[STALE] = ctx.state.totals.rows_dropped.get(STALE, 0) + rows
    ctx.state.totals.samples_recorded += rows
    bound = ctx.plan.spec.lag_policy_of(policy).bound
    text = f"rows of {policy} in group {group.draw} are too old for version {version}: the bound is {bound}"
    ctx.rule(
        RulingKind.ROWS_DROPPED,
        text,
        policy=policy,
        cohort=cohort.no,
        target=f"draw:{group.draw}",
        rows=rows,
        cause=STALE,
    )


def lag_metrics(ctx: Context, name: str, own: PolicyCohort, step: int) -> None:
    """Write how old a step's rows were, what the sweep took out, and whether short rows were favoured."""
    ctx.metric("staleness/own_max", float(own.own_lag), step, name, stat="max")
    spreads = (lag.spread(own.lags.start), lag.spread(own.lags.done), lag.spread(own.lags.token))
    started, done, token = spreads
    if started is not None and done is not None and token is not None:
        _write(ctx, step, name, started, done, token)
    if own.rows.stale or own.rows.overtaken:
        ctx.metric("staleness/dropped", float(own.rows.stale + own.rows.overtaken), step, name, stat="sum")
    trained = (sum(own.lags.start.values()), sum(own.lags.token.values()))
    ratio = lag.length_ratio(trained, (own.rows.generated, own.rows.generated_tokens))
    if ratio is not None:
        ctx.metric("length/trained_ratio", ratio, step, name)


def _write(
    ctx: Context, step: int, name: str, started: lag.LagSummary, done: lag.LagSummary, token: lag.LagSummary
) -> None:
    for stat in ("mean", "p99", "max"):
        ctx.metric("staleness/start", getattr(started, stat), step, name, stat=stat)
        ctx.metric("staleness/completion", getattr(done, stat), step, name, stat=stat)
        ctx.metric("staleness/token", getattr(token, stat), step, name, stat=stat)
