"""Cutting: settled groups become micro-batches, whose membership and advantages are fixed for good.

Invariants: a row is cut once; a micro-batch holds whole groups; its number is never reused. While a cohort plays,
every full slice is cut at once (`micro_batch`) or nothing is (`batch`); when the cohort is settled the rest is cut.
Ordered runs slice by draw number and cut slices in that order, so that sums are always taken in the same order.
"""

from flexmarl.contracts.commands import CutMicroBatch
from flexmarl.contracts.wire import CutSample, MicroBatchRef
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.state import Cohort, MicroBatchState, PendingGroup, Pin


def cut_ready(ctx: Context, cohort: Cohort) -> None:
    """Cut every slice that is complete now."""
    if not ctx.plan.streaming and cohort.settled_at is None:
        return
    take = _next_by_draw if ctx.plan.ordered else _next_by_arrival
    while (groups := take(ctx, cohort)) is not None:
        for policy in cohort.policies:
            _cut(ctx, cohort, policy, groups)


def _next_by_arrival(ctx: Context, cohort: Cohort) -> list[PendingGroup] | None:
    """Take the oldest pending groups: a full slice, or the rest of a settled cohort."""
    size = ctx.plan.slice_groups
    if not cohort.pending or (len(cohort.pending) < size and cohort.settled_at is None):
        return None
    groups, cohort.pending = cohort.pending[:size], cohort.pending[size:]
    return groups


def _next_by_draw(ctx: Context, cohort: Cohort) -> list[PendingGroup] | None:
    """Take the next slice of draw numbers once all its draws are settled, without those that were not kept."""
    size = ctx.plan.slice_groups
    start = cohort.first_draw + cohort.next_slice * size
    end = min(start + size, cohort.first_draw + ctx.plan.groups)
    if start >= end or any(draw in cohort.open for draw in range(start, end)):
        return None
    cohort.next_slice += 1
    groups = sorted((g for g in cohort.pending if g.draw < end), key=lambda group: group.draw)
    cohort.pending = [group for group in cohort.pending if group.draw >= end]
    return groups


def _cut(ctx: Context, cohort: Cohort, policy: str, groups: list[PendingGroup]) -> None:
    """Fix one policy's micro-batch of a slice; none when the slice has no row of it."""
    samples = tuple(
        CutSample(draw=g.draw, member=m, attempt=a, role=role, turn=turn, advantage=advantage, weight=weight)
        for g in groups
        for m, a, role, turn, advantage, weight, _ in g.rows.get(policy, ())
    )
    if not samples:
        return
    state, own = ctx.state.policies[policy], cohort.policies[policy]
    ref = MicroBatchRef(policy=policy, no=state.next_micro_batch)
    state.next_micro_batch += 1
    tokens = sum(row[-1] for group in groups for row in group.rows.get(policy, ()))
    own.micro_batches.append(MicroBatchState(ref.no, len(samples), tokens))
    own.own_lag = max(own.own_lag, _lag(state.version, cohort.pins[policy]))
    ctx.emit(CutMicroBatch(ref=ref, cohort=cohort.no, samples=samples))
    stop_idling(ctx, cohort)


def _lag(version: int | None, pin: Pin) -> int:
    return (version or 0) - pin.version


def stop_idling(ctx: Context, cohort: Cohort) -> None:
    """End the trainer's wait for samples: there is work, or there will be none."""
    if cohort.idle_since is not None:
        cohort.idle_s += ctx.now - cohort.idle_since
        cohort.idle_since = None
