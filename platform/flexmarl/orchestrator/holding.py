"""Surplus that stands still while a step trains, where the specification pauses it.

Invariant: what rollout commands play stands still exactly while the cohort that took it over waits for groups of its
own, which it is given when the weights of the step before are served; a run that does not go on holds nothing back. So
what is told follows from the state alone, however it came about: a command that is issued anew for a held draw is held
as the one before it was.
"""

from flexmarl.contracts.commands import HoldGroups
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.credit import unfilled


def hold_surplus(ctx: Context) -> None:
    """Tell which rollout commands are to stand still, and which of those that do are to go on."""
    state = ctx.state
    if ctx.plan.spec.mechanisms.redundancy.surplus != "pause":
        return
    under_way = {command.no for command in state.outstanding.values() if command.kind == "play_groups"}
    before, wanted = under_way.intersection(state.held), _held(ctx)
    if fresh := sorted(wanted - before):
        ctx.emit(HoldGroups(commands=tuple(fresh), hold=True))
    if free := sorted(before - wanted):
        ctx.emit(HoldGroups(commands=tuple(free), hold=False))
    state.held = sorted(wanted)


def _held(ctx: Context) -> set[int]:
    """Return the numbers of the commands that play for a cohort without groups of its own."""
    keys = (key for cohort in ctx.state.cohorts if unfilled(ctx, cohort) for key in cohort.open.values())
    return {ctx.state.outstanding[key].no for key in keys if key in ctx.state.outstanding}
