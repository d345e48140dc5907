"""When the next cohort starts under a lag policy with a bound, and what its start does to older groups.

A cohort is pinned to the committed vector, which every engine must hold already, but for engines that serve one version
at a time: their groups wait until one is free. Older groups play on under theirs, or follow, as each
policy says. How many cohorts are open at once is nobody's setting: it follows from the bounds.
"""

from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.rollout.group_commands import drive_rollout
from flexmarl.orchestrator.serving.weight_sync import served
from flexmarl.orchestrator.state.cohort import Cohort, PolicyCohort, playing
from flexmarl.orchestrator.state.lag import Verdict, admit


def may_start(ctx: Context) -> Verdict:
    """Tell whether a cohort may start beside the open ones, and what it waits for if not."""
    state = ctx.state
    if state.numbers.cohort >= ctx.plan.spec.budget.train_steps:
        return Verdict(False, "the budget has no step left")
    if ctx.plan.lag.by_credit:
        return Verdict(False, "it waits until the open cohorts are trained")
    if state.cohorts and not state.cohorts[-1].filled:
        return Verdict(False, "the previous cohort is not complete yet")
    lags = {name: ctx.plan.spec.lag_policy_of(name) for name in ctx.plan.trainable}
    playing = sum(len(cohort.open) for cohort in state.cohorts)
    verdict = admit(lags, {name: steps_before(ctx, name) for name in lags}, playing)
    if verdict.allowed and not ctx.plan.engines.one_version and not served(ctx):
        return Verdict(False, "the engines do not hold the committed weights yet")
    return verdict


def may_fill(ctx: Context) -> bool:
    """Tell whether groups of its own may be proposed for the cohort that takes over the surplus of the oldest one.

    Where they wait for their credit that is decided group by group.
    """
    if ctx.plan.lag.by_credit:
        return False
    lags = {name: ctx.plan.spec.lag_policy_of(name) for name in ctx.plan.trainable}
    return admit(lags, {name: steps_before(ctx, name) for name in lags}, playing=0).allowed and served(ctx)


def steps_before(ctx: Context, policy: str) -> int:
    """Count the optimizer steps a policy will take before the rows of a cohort that starts now are all trained.

    One that is open and not filled has yet to start.
    """
    per_cohort = -(-ctx.plan.cohort.groups // ctx.plan.cutting.part_groups)
    started = [cohort for cohort in ctx.state.cohorts if cohort.filled]
    open_steps = sum(_left(cohort, cohort.policies[policy], per_cohort) for cohort in started)
    return open_steps + per_cohort - 1


def _left(cohort: Cohort, own: PolicyCohort, per_cohort: int) -> int:
    if own.stepped:
        return 0
    if cohort.times.settled_at is None or cohort.pending:
        return max(per_cohort - own.steps, 1)
    left = (micro_batch.part for micro_batch in own.micro_batches if not micro_batch.applied)
    if per_cohort == 1:  # asked for every policy after most facts: one row that waits says it all
        return int(next(left, None) is not None)
    return len(set(left))


def abandon_older(ctx: Context, policy: str) -> None:
    """Play anew what plays under older weights of a policy that discards it; what has settled is kept."""
    state = ctx.state
    if policy not in ctx.plan.lag.discards:
        return
    for cohort in state.cohorts:
        if not cohort.open or cohort.pins[policy].version >= state.policies[policy].pin.version:
            continue
        cohort.pins[policy] = state.policies[policy].pin
        if state.lifecycle.pause.frozen:
            continue
        episodes = playing(cohort, ctx.plan.members_of(cohort.long_round), state.choice.members)
        state.totals.train_episodes.cancelled += episodes
        state.totals.train_episodes.proposed += episodes
        for key in set(cohort.open.values()):
            ctx.withdraw(key)
        version = cohort.pins[policy].version
        ctx.note(f"{episodes} episodes of step {cohort.no + 1} restart under version {version} of {policy}")
        drive_rollout(ctx, cohort)
