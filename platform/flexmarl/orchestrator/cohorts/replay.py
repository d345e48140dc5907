"""Replay: a settled cohort's step is taken on some groups of earlier steps too (`flexmarl.algorithms.replay`).

Invariants: what is replayed was trained before, by an earlier cohort; it keeps the advantages and the key of its rows,
and is cut into micro-batches of its own, so that a step that is done again takes the same rows. A row's tokens are
delivered once, by its first step; replayed rows are counted by themselves. Only the oldest cohort draws, once for each
policy, when it is settled: what it draws follows from the groups alone, and without a group of its own it draws none. A
run that begins a new attempt begins with an empty archive: samples of an ended run may be deleted. Rows of another run
(`on_rows_imported`) come in once, before the first step, as old as version 0: no step was taken on them here, and
whatever one takes of them is replayed.
"""

from flexmarl.algorithms import rescue as pool
from flexmarl.algorithms.replay import ArchivedGroup, Row, add, ages_of, draw, expire, imported, replayed_groups
from flexmarl.contracts.imported_rows import ImportedRowRef, RowsImported
from flexmarl.orchestrator.cohorts import rescue
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.state.cohort import Cohort, PendingGroup, PolicyCohort
from flexmarl.orchestrator.state.lag import spread


def keep(ctx: Context, cohort: Cohort, policy: str, groups: list[PendingGroup]) -> None:
    """Take the groups of a micro-batch into the archive, once they are cut."""
    if ctx.plan.spec.sampling.replay.type != "archive":
        return
    archive = ctx.state.archive.setdefault(policy, [])
    for group in groups:
        oldest = group.ages[policy].oldest
        add(archive, ArchivedGroup(oldest, group.draw, cohort.no, group.rows[policy]))


def drawn(ctx: Context, cohort: Cohort, policy: str) -> list[ArchivedGroup]:
    """Draw what a policy's step is taken on besides the groups of its settled cohort; nothing if it has drawn."""
    replay, own = ctx.plan.spec.sampling.replay, cohort.policies[policy]
    if not replay.on or not own.micro_batches or own.stepped or own.rows.replayed:
        return []
    version = ctx.state.policies[policy].version or 0
    if replay.rescues:
        groups = rescue.drawn(ctx, cohort, policy)
    else:
        archive = ctx.state.archive.get(policy, [])
        expire(archive, version, replay.max_age)
        count = replayed_groups(cohort.groups.kept - cohort.groups.late, replay.share)
        groups = draw(archive, count, cohort.no, replay.max_uses, replay.order)
    for group in groups:
        age = version - group.oldest
        own.rows.replayed[age] = own.rows.replayed.get(age, 0) + len(group.rows)
    return groups


def replay_metrics(ctx: Context, name: str, own: PolicyCohort, step: int) -> None:
    """Write what a step was taken on again, how old it was, and what the archive holds."""
    rows, new = sum(own.rows.replayed.values()), sum(one.new_rows for one in own.micro_batches)
    ctx.metric("replay/rows", float(rows), step, name, stat="sum")
    ctx.metric("replay/share", rows / (rows + new) if rows else 0.0, step, name, stat="share")
    ages = spread(own.rows.replayed)
    if ages is not None:
        ctx.metric("replay/age", ages.mean, step, name)
        ctx.metric("replay/age", ages.max, step, name, stat="max")
    archive, version = ctx.state.archive.get(name, []), ctx.state.policies[name].version or 0
    expire(archive, version, ctx.plan.spec.sampling.replay.max_age)
    groups, oldest = _look(ctx, name, version)
    ctx.metric("replay/archive", float(groups), step, name, stat="last")
    if groups:
        ctx.metric("replay/archive_age", float(oldest), step, name, stat="max")


def on_rows_imported(ctx: Context, event: RowsImported) -> None:
    """Let the archive, or the pool of successes, begin with rows of another run; after a step it is too late."""
    begun = ctx.state.step or ctx.state.lifecycle.attempt.no > 1 or ctx.state.history.imported
    if begun or not ctx.plan.spec.sampling.replay.on:
        return
    rescue.begin_with(ctx, event.successes)
    for group in event.groups:
        for policy, rows in group.rows.items():
            add(ctx.state.archive.setdefault(policy, []), ArchivedGroup(0, group.draw, -1, list(map(_row, rows))))
    for policy in ctx.plan.trainable:
        _look(ctx, policy, 0)
    what = f"{len(event.successes)} successes" if event.successes else f"{len(event.groups)} groups"
    ctx.note(f"{what} of the imported rows {event.name} may be replayed from the first step on: {event.rows} rows")


def _row(row: ImportedRowRef) -> Row:
    return row.member, row.attempt, row.role, row.turn, row.advantages, row.weight, row.tokens


def _look(ctx: Context, name: str, version: int) -> tuple[int, int]:
    """Note what the archive of a policy holds, for pages; returns the number of groups and the age of the oldest."""
    archive, history = ctx.state.archive.get(name, []), ctx.state.history
    others = imported(archive)
    history.archive[name] = ages_of(archive[others:], version)
    theirs = others, sum(len(group.rows) for group in archive[:others])
    if ctx.plan.spec.sampling.replay.rescues:
        history.archive[name] = pool.ages_of(ctx.state.choice.successes, name, version)
        theirs = pool.imported(ctx.state.choice.successes, name)
    history.imported.pop(name, None)
    if theirs[0]:
        history.imported[name] = version, *theirs
    ages = [*history.archive[name], *([version] if theirs[0] else [])]
    return theirs[0] + sum(groups for groups, _ in history.archive[name].values()), max(ages, default=0)
