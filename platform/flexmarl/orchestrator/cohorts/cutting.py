"""Cutting: settled groups become micro-batches, whose membership and advantages are fixed for good.

Invariants: a row is cut once; a micro-batch holds whole groups of one optimizer step; its number is never reused. Only
the oldest cohort is cut, so the weights its rows are trained on are known. While it plays, every full slice is cut at
once (streaming protocols) or nothing is (`batch`); when it is settled the rest is cut. Where surplus goes on into the
next step, no more is cut before that than a step needs. Ordered runs slice by draw number and cut slices in that order,
so that sums are always taken in the same order. Rows of a policy that has stepped by its own clock are overtaken:
dropped, counted, recorded. What a settled cohort trains again is cut last (`replay`).
"""

from itertools import islice

from flexmarl.algorithms.replay import Row
from flexmarl.algorithms.seeds import derive
from flexmarl.contracts.base import known
from flexmarl.contracts.commands import CutMicroBatch
from flexmarl.contracts.rulings import RulingKind
from flexmarl.contracts.wire import CutSample, MicroBatchRef
from flexmarl.orchestrator.cohorts import replay, rescue
from flexmarl.orchestrator.cohorts.staleness import swept
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.state.cohort import Cohort, MicroBatchState, PendingGroup
from flexmarl.orchestrator.state.tokens import Undelivered

OVERTAKEN = "overtaken"
"""Cause of rows that settled after their policy had stepped by its own clock."""
_SAMPLE = set(CutSample.model_fields)


def cut_ready(ctx: Context, cohort: Cohort) -> None:
    """Cut every slice that is complete now."""
    if not ctx.plan.cutting.streaming and cohort.times.settled_at is None:
        return
    if not ctx.plan.cutting.streaming:
        _normalise(ctx, cohort)
        _arrange(ctx, cohort)
    take = _next_by_draw if ctx.plan.ordered else _next_by_arrival
    while (found := take(ctx, cohort)) is not None:
        part, groups = found
        taken = [_cut(ctx, cohort, policy, part, groups) for policy in cohort.policies]
        if not ctx.plan.cutting.by_episode:
            cohort.groups.late += len({group.draw for group in groups if any(group.rows.values())}.difference(*taken))
    if cohort.times.settled_at is not None:
        for policy in cohort.policies:
            _cut_replayed(ctx, cohort, policy)


def part_complete(ctx: Context, cohort: Cohort, part: int) -> bool:
    """Tell whether no more rows can come into a part: the groups of one optimizer step."""
    if cohort.times.settled_at is not None:
        return True
    return part < _last_part(ctx) and cohort.groups.cut >= (part + 1) * ctx.plan.cutting.part_groups


def _last_part(ctx: Context) -> int:
    """Return the number of a cohort's last optimizer step: what a cohort has beyond its size belongs to it."""
    return -(-ctx.plan.cohort.groups // ctx.plan.cutting.part_groups) - 1


def lacking(ctx: Context, cohort: Cohort) -> int:
    """Count the groups that are to be cut until a step has those that it needs."""
    return max(ctx.plan.cohort.groups - cohort.groups.refused + cohort.groups.late - cohort.groups.cut, 0)


def _normalise(ctx: Context, cohort: Cohort) -> None:
    """Let a plug-in that compares the whole batch have its say, once, before anything of it is cut.

    Its sums run over draw numbers, whatever the order of arrival.
    """
    cohort.pending.sort(key=lambda group: group.draw)
    for policy in cohort.policies:
        groups = [group.rows[policy] for group in cohort.pending if policy in group.rows]
        turns = [advantage for rows in groups for row in rows for advantage in row[4]]
        values = iter(ctx.plan.settlement.advantage.normalise(turns))
        for rows in groups:
            rows[:] = [(*row[:4], tuple(islice(values, len(row[4]))), *row[5:]) for row in rows]


def _arrange(ctx: Context, cohort: Cohort) -> None:
    """Let the arranger say how often each row of a settled cohort counts, before any is cut.

    By a policy's own rows and a seed of the cohort, so a run that is repeated draws the same.
    """
    arranger = ctx.plan.cutting.arranger
    if not arranger.options.arranges:
        return
    for policy, own in cohort.policies.items():
        groups = [group.rows[policy] for group in cohort.pending if policy in group.rows]
        found = arranger.weights(groups, derive(ctx.plan.spec.seed, "arrange", cohort.no, policy))
        for rows, weights in zip(groups, found, strict=True):
            rows[:] = [(*row[:5], row[5] * weight, *row[6:]) for row, weight in zip(rows, weights, strict=True)]
            own.rows.left_out += weights.count(0.0)
            own.rows.most_repeats = max(own.rows.most_repeats, round(max(weights, default=0.0)))


def _slice(ctx: Context, cohort: Cohort) -> tuple[int, int]:
    """Return the part of the next slice and its full size: no slice reaches into the next part."""
    part, done = divmod(cohort.groups.cut, ctx.plan.cutting.part_groups)
    last = _last_part(ctx)
    if part < last:
        return part, min(ctx.plan.cutting.slice_groups, ctx.plan.cutting.part_groups - done)
    return last, ctx.plan.cutting.slice_groups * (ctx.plan.cohort.members if ctx.plan.cutting.by_episode else 1)


def _next_by_arrival(ctx: Context, cohort: Cohort) -> tuple[int, list[PendingGroup]] | None:
    """Take the oldest pending groups: a full slice, or the rest of a settled cohort."""
    part, size = _slice(ctx, cohort)
    if ctx.plan.cohort.surplus_continues and cohort.times.settled_at is None:
        size = min(size, lacking(ctx, cohort))
    if not cohort.pending or not size or (len(cohort.pending) < size and cohort.times.settled_at is None):
        return None
    groups, cohort.pending = cohort.pending[:size], cohort.pending[size:]
    cohort.groups.cut += len(groups)
    return part, groups


def _next_by_draw(ctx: Context, cohort: Cohort) -> tuple[int, list[PendingGroup]] | None:
    """Take the next slice of draw numbers once all its draws are settled, without those that were not kept."""
    part, size = _slice(ctx, cohort)
    start = cohort.first_draw + cohort.groups.cut
    end = min(start + size, cohort.first_draw + cohort.size)
    if start >= end or any(draw in cohort.open for draw in range(start, end)):
        return None
    cohort.groups.cut += end - start
    groups = sorted((g for g in cohort.pending if g.draw < end), key=lambda group: group.draw)
    cohort.pending = [group for group in cohort.pending if group.draw >= end]
    return part, groups


def _cut(ctx: Context, cohort: Cohort, policy: str, part: int, groups: list[PendingGroup]) -> set[int]:
    """Fix one policy's micro-batch of a slice, none without a row of it; returns the draws that are not too old."""
    own = cohort.policies[policy]
    if own.closed or own.stepped:
        _drop_overtaken(ctx, cohort, policy, [row for group in groups for row in group.rows.get(policy, ())])
        return {group.draw for group in groups}
    ahead = len({m.part for m in own.micro_batches if not m.applied and m.part < part}) if part else 0
    fresh = swept(ctx, cohort, policy, groups, ahead)
    rows = [(group.draw, row) for group in fresh for row in group.rows[policy]]
    if not rows:
        return set()
    _emit(ctx, cohort, policy, part, rows)
    replay.keep(ctx, cohort, policy, fresh)
    rescue.keep(ctx, cohort, policy, fresh)
    stop_idling(ctx, cohort)
    return {group.draw for group in fresh}


def _cut_replayed(ctx: Context, cohort: Cohort, policy: str) -> None:
    """Fix the micro-batches of the groups that a settled cohort's step is taken on once more."""
    groups, size = replay.drawn(ctx, cohort, policy), ctx.plan.cutting.slice_groups
    for start in range(0, len(groups), size):
        rows = [(group.draw, row) for group in groups[start : start + size] for row in group.rows]
        _emit(ctx, cohort, policy, _last_part(ctx), rows, replayed=True)


def _emit(
    ctx: Context, cohort: Cohort, policy: str, part: int, rows: list[tuple[int, Row]], replayed: bool = False
) -> None:
    state, own = ctx.state.policies[policy], cohort.policies[policy]
    ref = MicroBatchRef(policy=policy, no=state.next_micro_batch)
    state.next_micro_batch += 1
    tokens = sum(row[-1] for _, row in rows)
    own.micro_batches.append(MicroBatchState(ref.no, len(rows), tokens, part=part, replayed=replayed))
    samples = tuple(_sample(draw, row) for draw, row in rows)
    ctx.emit(CutMicroBatch(ref=ref, cohort=cohort.no, samples=samples, replayed=replayed or None))


def _sample(draw: int, row: Row) -> CutSample:
    member, attempt, role, turn, advantages, weight, _ = row
    values = {
        "draw": draw, "member": member, "attempt": attempt, "role": role, "turn": turn,
        "advantages": tuple(map(float, advantages)), "weight": float(weight),
    }  # fmt: skip
    return known(CutSample, values, _SAMPLE)


def _drop_overtaken(ctx: Context, cohort: Cohort, policy: str, dropped: list[Row]) -> None:
    rows = len(dropped)
    if not rows:
        return
    ctx.state.totals.tokens.lose(Undelivered.OVERTAKEN, sum(row[-1] for row in dropped))
    cohort.policies[policy].rows.overtaken += rows
    ctx.state.totals.rows_dropped[OVERTAKEN] = ctx.state.totals.rows_dropped.get(OVERTAKEN, 0) + rows
    ctx.state.totals.samples_recorded += rows
    text = f"{policy} stepped by its own clock before these rows of step {cohort.no + 1} settled"
    ctx.rule(RulingKind.ROWS_DROPPED, text, policy=policy, cohort=cohort.no, rows=rows, cause=OVERTAKEN)


def stop_idling(ctx: Context, cohort: Cohort) -> None:
    """End the trainer's wait for samples: there is work, or there will be none."""
    if cohort.times.idle_since is not None:
        cohort.times.idle_s += ctx.now - cohort.times.idle_since
        cohort.times.idle_since = None
