"""Admission by credit: how many groups may be on their way, in groups rather than in cohorts.

Where a lag policy admits what is `trained`, a cohort's groups are proposed once every older one has made its steps and
the weights of these are served; what older cohorts left playing counts among them. With the surplus that plays on, no
more than the groups of a step and the surplus are ever on their way: a bound in fractions of a step.

Invariants: a cohort that takes surplus over before its own groups may be proposed, by credit or as any bound admits
them, is not filled: it neither settles nor steps, since engines would not be given the weights of a step on the way; a
run that begins no more work fills none. A group whose rows grew too old for its step gives its credit back at once:
another one is drawn under the same vector.
"""

from collections.abc import Sequence

from flexmarl.contracts.status import RunStatus
from flexmarl.orchestrator.cohorts.admission import may_fill
from flexmarl.orchestrator.cohorts.dispatch import in_order
from flexmarl.orchestrator.cohorts.member_counts import count_members
from flexmarl.orchestrator.cohorts.task_choice import choose_tasks
from flexmarl.orchestrator.cohorts.turn_limits import limit_turns
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.rollout.group_commands import drive_rollout, open_draws
from flexmarl.orchestrator.serving.weight_sync import served
from flexmarl.orchestrator.state.cohort import Cohort


def propose(ctx: Context, cohort: Cohort, groups: int, deferred: Sequence[int] = ()) -> None:
    """Add so many groups to a cohort and send them to play: deferred tasks, or those to be played again first."""
    state, first = ctx.state, ctx.state.numbers.draw
    draws = open_draws(ctx, first, groups, ctx.plan.spec.batch.rollout_groups)
    cohort.open |= draws
    again = dict(zip(draws, deferred or state.backlog.repeated, strict=False))
    cohort.tasks |= again
    choose_tasks(ctx, cohort, [draw for draw in draws if draw not in again])
    members = count_members(ctx, cohort, list(draws))
    limit_turns(ctx, cohort, list(draws))
    for draw, key in in_order(ctx, cohort, draws).items():
        del cohort.open[draw]  # it goes behind those that are sent before it
        cohort.open[draw] = key
    if not deferred:
        del state.backlog.repeated[: len(again)]
    cohort.size += groups
    state.numbers.draw += groups
    if not state.lifecycle.pause.frozen:  # what is open while the run is frozen is proposed when it goes on
        state.totals.train_episodes.proposed += members
        drive_rollout(ctx, cohort)


def missing(ctx: Context) -> int:
    """Count the groups that may be proposed now for the last of the open cohorts."""
    state, plan = ctx.state, ctx.plan
    if not state.cohorts or state.lifecycle.status is not RunStatus.RUNNING or state.lifecycle.pause.frozen:
        return 0
    last = state.cohorts[-1]
    if last.times.settled_at is not None or not _admits(ctx, last):
        return 0
    on_their_way = len(last.open) + last.groups.kept + last.groups.refused + last.groups.dropped - last.groups.late
    return max(plan.cohort.groups + plan.cohort.extra_groups - on_their_way, 0)


def _admits(ctx: Context, last: Cohort) -> bool:
    """Tell whether the last cohort may propose anything: by credit, or all that it lacks if it is not filled."""
    if not ctx.plan.lag.by_credit:
        return not last.filled and may_fill(ctx)
    if any(cohort.times.stepped_at is None for cohort in ctx.state.cohorts[:-1]):
        return False
    return last.filled or served(ctx)


def top_up(ctx: Context) -> bool:
    """Propose what the credit allows. Returns whether the last of the open cohorts was filled by it."""
    groups = missing(ctx)
    if not groups:
        return False
    cohort = ctx.state.cohorts[-1]
    filled = not cohort.filled
    if filled:
        cohort.pins, cohort.filled = ctx.state.vector(), True
    propose(ctx, cohort, groups)
    return filled


def unfilled(ctx: Context, cohort: Cohort) -> bool:
    """Tell whether a cohort waits for groups of its own."""
    return not cohort.filled and ctx.state.lifecycle.status is RunStatus.RUNNING
