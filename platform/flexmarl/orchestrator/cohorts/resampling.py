"""Tasks drawn in the place of refused ones: a cohort plays on until it has as many kept groups as a step needs.

Invariants: what is drawn again belongs to the cohort that lost a group and plays under its pinned vector; kept, dropped
and open groups together are never more than a step needs; a cohort never proposes more than the limit of the
specification. Only refused groups are drawn again: one whose episodes failed says nothing of its task, and is lost to
the step as in any run. Which tasks an ordered run draws does not depend on the order of arrival: draws follow each
other without a gap, until so many of them are not refused.
"""

from flexmarl.contracts.decisions import NoteLevel
from flexmarl.orchestrator.cohorts.member_counts import count_members
from flexmarl.orchestrator.cohorts.task_choice import choose_tasks
from flexmarl.orchestrator.cohorts.turn_limits import limit_turns
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.rollout.group_commands import open_draws
from flexmarl.orchestrator.state.cohort import Cohort


def draw_again(ctx: Context, cohort: Cohort) -> str:
    """Propose another task for a group that was just refused; returns what became of it, in words.

    It is issued once the refused group is closed.
    """
    plan, state = ctx.plan, ctx.state
    if not plan.settlement.group_filter.draws_again:
        return ""
    if cohort.size >= plan.cohort.most_draws:
        return f"; nothing is drawn in its place: the limit of {plan.cohort.most_draws} groups is reached"
    draw = state.numbers.draw
    state.numbers.draw += 1
    cohort.size += 1
    cohort.open |= open_draws(ctx, draw, 1, 1)
    choose_tasks(ctx, cohort, [draw])
    members = count_members(ctx, cohort, [draw])
    limit_turns(ctx, cohort, [draw])
    # What is open while the run is frozen is proposed when it goes on.
    if not state.lifecycle.pause.frozen:
        state.totals.train_episodes.proposed += members
    return f"; group {draw} is drawn in its place"


def drawn_text(ctx: Context, cohort: Cohort) -> str:
    """Say of a settled cohort how much was drawn for what it keeps; people are told where that was too little."""
    plan, groups = ctx.plan.cohort, cohort.groups
    if not ctx.plan.settlement.group_filter.draws_again:
        return ""
    if cohort.size >= plan.most_draws and groups.kept + groups.dropped < plan.groups:
        ctx.note(
            f"step {cohort.no + 1} continues with {groups.kept} of {plan.groups} groups: {cohort.size} were drawn, "
            "which is the limit; use easier or harder tasks, or raise sampling.group_filter.draw_limit",
            NoteLevel.WARNING,
            target=f"cohort:{cohort.no}",
        )
    return f"; {cohort.size} were drawn for the {plan.groups} of a step"
