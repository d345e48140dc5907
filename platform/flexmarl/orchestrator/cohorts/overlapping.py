"""Cohorts that overlap: when the next one may start before the last one is closed, and under which vector.

Under a lag policy with a bound, admission decides alone. Without one:

Invariants: at most two cohorts are open, and the later one starts only when every group of the earlier is settled.
`wavefront`: it is pinned to the vector that the earlier cohort's steps make, so own lag stays what it was; a version
that is certain and not committed yet is pinned by its number, and turns of its policy wait for it. `delayed`: it is
pinned to the vector the earlier cohort's steps begin from, so own lag grows by these steps; in an ordered run also
where it could not start until the earlier one was closed. What is trained, and in which order, does not depend on it:
only the oldest cohort is cut and stepped.
"""

from flexmarl.contracts.status import RunStatus
from flexmarl.orchestrator.cohorts.admission import may_start
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.serving.weight_sync import all_hold
from flexmarl.orchestrator.state.cohort import Cohort, Pin, PolicyCohort

OPEN_COHORTS = 2
"""The one that is trained and the one that plays."""


def may_overlap(ctx: Context) -> bool:
    """Tell whether the next cohort may start now although the oldest one is not closed."""
    if ctx.plan.lag.bounded:
        return may_start(ctx).allowed
    state, publication = ctx.state, ctx.plan.spec.mechanisms.publication.type
    head = state.cohort
    if publication == "cohort" or head is None or head.times.settled_at is None or len(state.cohorts) >= OPEN_COHORTS:
        return False
    if state.numbers.cohort >= ctx.plan.spec.budget.train_steps:
        return False
    if publication == "delayed":
        return True
    ahead = [own for name, own in head.policies.items() if name in ctx.plan.opening]
    # The vector to come must be known: a policy whose rows are not all cut may still have none.
    certain = not head.pending and all(own.stepped for own in ahead)
    return certain and all_hold(ctx, {name: state.policies[name].version for name in ctx.plan.opening})


def coming_vector(ctx: Context) -> dict[str, Pin]:
    """Return the vector under which an overlapping cohort plays."""
    state, head = ctx.state, ctx.state.cohort
    assert head is not None
    if ctx.plan.lag.bounded:
        return state.vector()
    if ctx.plan.spec.mechanisms.publication.type == "delayed":
        return dict(head.base)
    vector = state.vector()
    for name, own in head.policies.items():
        ahead = steps_to_come(ctx, own)
        if ahead:
            vector[name] = Pin(vector[name].version + ahead, "")
    return vector


def next_vector(ctx: Context) -> dict[str, Pin]:
    """Return the vector under which a cohort plays that starts when no other one is open."""
    past = ctx.state.past_cohorts.base
    return dict(past) if ctx.plan.lag.fixed and past else ctx.state.vector()


def steps_to_come(ctx: Context, own: PolicyCohort) -> int:
    """Return how many more versions a policy makes in a settled cohort that is cut to the end."""
    if own.stepped or carries(ctx, own):
        return 0
    return len({micro_batch.part for micro_batch in own.micro_batches if not micro_batch.applied})


def carries(ctx: Context, own: PolicyCohort) -> bool:
    """Tell whether a policy of a settled cohort has too few rows for a step, and may still wait for more."""
    batch = ctx.plan.spec.batch
    rows = open_rows(own)
    return 0 < rows < batch.min_rows and own.carries < batch.max_carry and not is_last(ctx)


def is_last(ctx: Context) -> bool:
    """Tell whether no cohort follows the one that is trained: what it leaves would never be applied."""
    state = ctx.state
    if state.cohort is None or len(state.cohorts) > 1:
        return False
    return state.cohort.no + 1 >= ctx.plan.spec.budget.train_steps or state.lifecycle.status is RunStatus.STOPPING


def open_rows(own: PolicyCohort) -> int:
    """Count the rows that are cut and not applied."""
    return sum(micro_batch.rows for micro_batch in own.micro_batches if not micro_batch.applied)


def fill_pins(ctx: Context, policy: str) -> None:
    """Complete the pins that waited for a version which is committed now."""
    committed = ctx.state.policies[policy].pin
    for cohort in ctx.state.cohorts:
        pin = cohort.pins.get(policy)
        if pin is not None and not pin.digest and pin.version == committed.version:
            pin.digest = committed.digest


def begin_training(ctx: Context, cohort: Cohort) -> None:
    """Begin to train a cohort: with what policies carry, and from the committed vector."""
    cohort.base = ctx.state.vector()
    for name, own in cohort.policies.items():
        policy = ctx.state.policies[name]
        if policy.carry is not None:
            carried, policy.carry = policy.carry, None
            own.micro_batches = carried.micro_batches + own.micro_batches
            own.accumulated += carried.accumulated
            own.totals = carried.totals
            own.carries = carried.carries + 1
            own.own_lag = carried.own_lag
