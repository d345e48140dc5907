"""Groups of other sizes: how many members the groups have that are proposed together.

Invariants: a draw's number of members is fixed when it is proposed and kept until it is settled, whoever plays it; what
is told of a group is what all of its finished members earned, before any filter. Without counting, nothing here is
touched and every group has as many members as the specification says.
"""

from collections.abc import Sequence

from flexmarl.contracts.rulings import RulingKind
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.state.cohort import Cohort


def count_members(ctx: Context, cohort: Cohort, draws: Sequence[int]) -> int:
    """Give draws of a cohort their members; returns how many these are together."""
    usual = ctx.plan.members_of(cohort.long_round)
    if not ctx.plan.spec.sampling.members.counts or not draws:
        return usual * len(draws)
    choice, counter = ctx.state.choice, ctx.plan.tasks.counter
    tasks = [choice.of_draw[cohort.tasks.get(draw, draw)] for draw in draws]
    counted = counter.counts(choice.rates, tasks, usual)
    for draw, task, members in zip(draws, tasks, counted, strict=True):
        if members != usual:
            choice.members[draw] = members
            why = counter.why(choice.rates, task)
            text = f"group {draw} has {members} members instead of {usual}" + (f": {why}" if why else "")
            ctx.rule(RulingKind.GROUP_SIZED, text, cohort=cohort.no, target=f"draw:{draw}")
    return sum(counted)
