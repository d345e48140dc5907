"""More groups than a step needs: when it has enough, and what becomes of the others.

Invariants: a cohort that has enough kept groups is settled, one that plays ahead as well as the one that is trained,
and every group it leaves has one fate: it joined, it plays on in the next cohort, or its episodes are counted as
cancelled. Each cohort proposes surplus of its own, but where that goes on: there what plays on is the next one's, and
what settled beyond a step's groups waits for the next one as well, so that every step trains as many: more only where
groups would grow too old. A group that settles after it was cancelled is counted by what is in the store: kept for the
next step where the policy says so, else recorded, never trained. Nothing is left behind that would grow too old where
its policy waits for it. A task that was deferred is played by one later cohort, a long round, which waits for all it
plays and so defers nothing.
"""

from collections.abc import Mapping

from flexmarl.contracts.events import GroupSettled
from flexmarl.contracts.rulings import RulingKind
from flexmarl.orchestrator.cohorts.credit import unfilled
from flexmarl.orchestrator.cohorts.cutting import lacking
from flexmarl.orchestrator.cohorts.overlapping import is_last
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.state.cohort import Cohort, PendingGroup, playing
from flexmarl.orchestrator.state.group_counts import count_tokens, finished_of
from flexmarl.orchestrator.state.lag import must_wait
from flexmarl.orchestrator.state.tokens import Undelivered

REMEMBERED_COHORTS = 2
"""Cohorts trained after its own for which a group that settles after it was cancelled is still expected."""
_ONCE_TRAINED = frozenset({"continue", "pause", "join"})
"""Fates of surplus that are decided when its cohort is trained; the others are as soon as a cohort has enough."""


def groups_to_open(ctx: Context) -> int:
    """Return how many groups a new cohort proposes: fewer when the open ones hold surplus that it will be given."""
    plan = ctx.plan
    held = sum(cohort.size - plan.cohort.groups for cohort in ctx.state.cohorts) if plan.cohort.surplus_continues else 0
    return plan.cohort.groups + max(plan.cohort.extra_groups - held, 0)


def begin_long_round(ctx: Context) -> list[int]:
    """Return the draws whose tasks the next cohort plays as a long round: those that wait longest, if it is time."""
    waiting, size = ctx.state.backlog.deferred, ctx.plan.cohort.groups
    if len(waiting) < size:
        return []
    due = waiting[:size]
    del waiting[:size]
    return due


def enough(ctx: Context, cohort: Cohort) -> bool:
    """Tell whether a cohort may be settled although some of its groups still play."""
    plan = ctx.plan
    if not plan.cohort.extra_groups or unfilled(ctx, cohort):
        return False
    if cohort is not ctx.state.cohort and plan.spec.mechanisms.redundancy.fate in _ONCE_TRAINED:
        return False
    if cohort.groups.kept - cohort.groups.late + cohort.groups.refused < plan.cohort.groups:
        return False
    if plan.spec.mechanisms.redundancy.fate == "join":
        # What settles until the gradients are done belongs to the step: it costs nobody a moment.
        return all(own.accumulated == len(own.micro_batches) for own in cohort.policies.values())
    return not any(_awaited(ctx, cohort, draw) for draw in cohort.open)


def _awaited(ctx: Context, cohort: Cohort, draw: int) -> bool:
    """Tell whether a playing group must be in this step, since it would be too old for the next.

    Behind the last step there is none to be too old for: what is left then is surplus, and nobody waits for it.
    """
    plan = ctx.plan
    if not plan.spec.mechanisms.redundancy.goes_on or is_last(ctx):
        return False
    pins = cohort.older.get(draw, cohort.pins)
    return _too_old_next(ctx, {name: pins[name].version for name in plan.trainable})


def _too_old_next(ctx: Context, oldest: Mapping[str, int]) -> bool:
    """Tell whether the next step would make rows too old that a policy rather waits for."""
    policies, spec = ctx.state.policies, ctx.plan.spec
    return any(
        must_wait(version, policies[name].version or 0, spec.lag_policy_of(name)) for name, version in oldest.items()
    )


def beyond(ctx: Context, cohort: Cohort) -> list[PendingGroup]:
    """List the settled groups beyond those that a step needs and that may wait for the next, the youngest of them."""
    if not ctx.plan.cohort.surplus_continues:
        return []
    number = len(cohort.pending) - lacking(ctx, cohort)
    may_wait = [
        group
        for group in cohort.pending
        if not _too_old_next(ctx, {name: ages.oldest for name, ages in group.ages.items()})
    ]
    return may_wait[-number:] if number > 0 else []


def pass_on(ctx: Context, cohort: Cohort, following: Cohort | None) -> None:
    """Let settled groups that a step does not need wait for the next one; behind the last they are recorded."""
    groups = beyond(ctx, cohort)
    if not groups or (following is None and not is_last(ctx)):
        return
    draws = {group.draw for group in groups}
    cohort.pending = [group for group in cohort.pending if group.draw not in draws]
    cohort.groups.kept -= len(groups)
    cohort.size -= len(groups)
    if following is None:
        for group in groups:
            _record(ctx, cohort, group)
        return
    following.pending += groups
    following.groups.kept += len(groups)
    following.size += len(groups)
    cohort.groups.handed_on += len(groups)


def _record(ctx: Context, cohort: Cohort, group: PendingGroup) -> None:
    """Count a settled group that no step will train."""
    rows = sum(len(own) for own in group.rows.values())
    ctx.state.totals.samples_recorded += rows
    ctx.state.totals.tokens.lose(Undelivered.SURPLUS, sum(row[-1] for own in group.rows.values() for row in own))
    text = f"group {group.draw} is not needed by the last step: {rows} rows are recorded"
    ctx.rule(RulingKind.GROUP_SURPLUS, text, cohort=cohort.no, target=f"draw:{group.draw}", rows=rows)


def hand_on(ctx: Context, cohort: Cohort, following: Cohort) -> None:
    """Let the groups that a settled cohort leaves play on for the next one."""
    for draw, key in cohort.open.items():
        following.open[draw] = key
        following.older[draw] = cohort.older.pop(draw, cohort.pins)
        if draw in cohort.ended:
            following.ended[draw] = cohort.ended.pop(draw)
        if draw in cohort.tasks:
            following.tasks[draw] = cohort.tasks[draw]
    following.size += len(cohort.open)
    cohort.groups.handed_on += len(cohort.open)
    _leave(cohort)


def cancel(ctx: Context, cohort: Cohort) -> None:
    """Cancel the groups that a settled cohort leaves, and count their episodes; their tasks may wait for a round."""
    state = ctx.state
    if ctx.plan.spec.mechanisms.redundancy.fate == "defer":
        state.backlog.deferred += [cohort.tasks.get(draw, draw) for draw in cohort.open]
    for draw, key in cohort.open.items():
        ctx.withdraw(key)
        state.failures.pop(key, None)
        state.backlog.cancelled[draw] = cohort.no
    # Where episodes settle one by one, some of a group may be counted already.
    cancelled = playing(cohort, ctx.plan.members_of(cohort.long_round), state.choice.members)
    if not state.lifecycle.pause.frozen:
        state.totals.train_episodes.cancelled += cancelled
    cohort.tally.cancelled += cancelled
    cohort.groups.cancelled = len(cohort.open)
    oldest = state.cohorts[0].no
    for draw in [draw for draw, no in state.backlog.cancelled.items() if no + REMEMBERED_COHORTS < oldest]:
        del state.backlog.cancelled[draw]
    _leave(cohort)


def _leave(cohort: Cohort) -> None:
    cohort.size -= len(cohort.open)
    for draw in cohort.open:
        # Nobody is served by the vector it played under any more: engines need not keep it.
        cohort.older.pop(draw, None)
        cohort.ended.pop(draw, None)
    cohort.open.clear()


def take_late(ctx: Context, event: GroupSettled) -> None:
    """See to a group that settled after it was cancelled: kept for the step that is gathered now, or recorded."""
    state = ctx.state
    cohort = state.backlog.cancelled.pop(event.draw, None)
    if cohort is None:
        return
    gathering = next((cohort for cohort in state.cohorts if cohort.times.settled_at is None), None)
    if (
        ctx.plan.spec.mechanisms.redundancy.fate == "keep"
        and gathering is not None
        and not state.lifecycle.pause.frozen
    ):
        gathering.open[event.draw] = ""
        gathering.size += 1
        state.totals.train_episodes.cancelled -= ctx.plan.members_of(gathering.long_round)
        return
    account = state.totals.tokens
    account.lose(Undelivered.SURPLUS, count_tokens(account, event.episodes, ctx.plan.trained_roles))
    chains = [
        sample.role for episode in finished_of(event.episodes) for sample in episode.samples if not sample.follows
    ]
    state.totals.samples_recorded += len(chains)
    text = f"group {event.draw} settled after it was cancelled: {len(chains)} rows are recorded"
    ctx.note(text, target=f"draw:{event.draw}")
    rows = sum(role in ctx.plan.trained_roles for role in chains)
    ctx.rule(RulingKind.GROUP_SURPLUS, text, cohort=cohort, target=f"draw:{event.draw}", rows=rows)
