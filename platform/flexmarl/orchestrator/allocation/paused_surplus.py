"""Surplus that stands still while a step trains, where the specification pauses it.

Invariant: what rollout commands play stands still exactly while the cohort that took it over waits for groups of its
own, which it is given when the weights of the step before are served; a run that does not go on holds nothing back. So
what is told follows from the state alone, however it came about: a command that is issued anew for a held draw is held
as the one before it was. What stands still keeps no engine from its trainer.
"""

from flexmarl.contracts.commands import HoldGroups
from flexmarl.contracts.status import RunStatus
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.state.cohort import Cohort


def stands_still(ctx: Context, cohort: Cohort) -> bool:
    """Tell whether the open groups of a cohort are not to play now."""
    paused = ctx.plan.spec.mechanisms.redundancy.fate == "pause"
    return paused and not cohort.filled and ctx.state.lifecycle.status is RunStatus.RUNNING


def hold_surplus(ctx: Context) -> None:
    """Tell which rollout commands are to stand still, and which of those that do are to go on."""
    state = ctx.state
    wanted = _wanted(ctx)
    if not wanted and not state.backlog.held_commands:
        return
    under_way = {command.no for command in state.outstanding.values() if command.kind == "play_groups"}
    before = under_way.intersection(state.backlog.held_commands)
    if fresh := sorted(wanted - before):
        ctx.emit(HoldGroups(commands=tuple(fresh), hold=True))
    if free := sorted(before - wanted):
        ctx.emit(HoldGroups(commands=tuple(free), hold=False))
    state.backlog.held_commands = sorted(wanted)


def _wanted(ctx: Context) -> set[int]:
    """Return the numbers of the commands that are to stand still."""
    keys = [key for cohort in ctx.state.cohorts if stands_still(ctx, cohort) for key in cohort.open.values()]
    return {ctx.state.outstanding[key].no for key in keys if key in ctx.state.outstanding}
