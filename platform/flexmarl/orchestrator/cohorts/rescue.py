"""Rescue: where all members of a group fail, a stored success of its task stands in for one of them.

Invariants: what is injected was trained before, by an earlier cohort, and is cut into micro-batches of its own when its
cohort is settled, as replayed rows are: a step that is done again takes the same rows, and their tokens are delivered
once. The group is compared with the success in it; the member that makes room, the lowest one, is recorded and not
trained. Only what a step is taken on comes into the pool, and before the first one what was imported of another run, as
old as version 0. A run that begins a new attempt begins with an empty pool.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from flexmarl.algorithms.replay import ArchivedGroup, Row
from flexmarl.algorithms.rescue import StoredSuccess, episode_of, expire, in_order, store, success_of, usable
from flexmarl.contracts.imported_rows import ImportedSuccess
from flexmarl.contracts.rulings import RulingKind
from flexmarl.contracts.wire import EpisodeOutcome
from flexmarl.orchestrator.cohorts.task_choice import task_of
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.state.cohort import Cohort, PendingGroup


@dataclass(frozen=True, slots=True)
class Rescued:
    """A failed group with a success in the place of a member."""

    task: int
    stored: StoredSuccess
    fresh: Sequence[EpisodeOutcome]
    """Its own members that are compared."""
    success: EpisodeOutcome
    left_out: int
    """The member that makes room."""

    @property
    def compared(self) -> list[EpisodeOutcome]:
        """Return the group as it is compared, the success last."""
        return [*self.fresh, self.success]


def rescued(ctx: Context, cohort: Cohort, draw: int, finished: Sequence[EpisodeOutcome]) -> Rescued | None:
    """Return what a group becomes of which nobody solved the task; None: it stays as it is."""
    rule = ctx.plan.spec.sampling.replay
    task = task_of(ctx, cohort, draw) if rule.rescues else None
    if task is None or len(finished) < 2:
        return None
    if any(episode.solved for episode in finished):
        return None
    stored = ctx.state.choice.successes.get(task)
    if stored is None or not usable(stored, cohort.no, _versions(ctx, cohort), rule.max_age, rule.max_uses):
        return None
    left_out = min(episode.member for episode in finished)
    fresh = [episode for episode in finished if episode.member != left_out]
    return Rescued(task, stored, fresh, episode_of(stored, left_out), left_out)


def inject(ctx: Context, cohort: Cohort, group: PendingGroup, found: Rescued, rows: dict[str, list[Row]]) -> None:
    """Let the rows of a success be trained with a group, and say so. `rows`: those of the success, by policy."""
    stored, weight = found.stored, ctx.plan.spec.sampling.replay.weight
    for policy, own in rows.items():
        if policy in stored.oldest:
            named = [(stored.member, *row[1:5], weight, row[6]) for row in own]
            group.injected[policy] = ArchivedGroup(stored.oldest[policy], stored.draw, cohort.no, named)
    stored.uses, stored.last = stored.uses + 1, cohort.no
    who = f"member {stored.member} of group {stored.draw}, played by version {min(stored.oldest.values())},"
    if stored.draw < 0:
        who = "an imported success of it"
    text = (
        f"nobody of group {group.draw} solved task {found.task}: {who} is injected in the place of member "
        f"{found.left_out}"
    )
    ctx.rule(RulingKind.GROUP_RESCUED, text, cohort=cohort.no, target=f"draw:{group.draw}", cause="injected")


def begin_with(ctx: Context, successes: Sequence[ImportedSuccess]) -> None:
    """Let the pool begin with successes of another run: of each policy that has rows of them, as old as version 0."""
    for one in successes:
        success = success_of([one.episode], one.draw, -1)
        assert success is not None
        for sample in one.episode.samples:
            if sample.tokens and sample.role in ctx.plan.trained_roles:
                policy = ctx.plan.policy_of[sample.role]
                success.oldest[policy] = 0
                success.rows[policy] = success.rows.get(policy, 0) + (not sample.follows)
        ctx.state.choice.successes.setdefault(one.task, success)


def offer(ctx: Context, cohort: Cohort, group: PendingGroup, kept: Sequence[EpisodeOutcome]) -> None:
    """Let a kept group give a success to the pool, once it is cut."""
    task = task_of(ctx, cohort, group.draw) if ctx.plan.spec.sampling.replay.rescues else None
    if task is not None:
        group.success, group.task = success_of(kept, group.draw, cohort.no), task


def keep(ctx: Context, cohort: Cohort, policy: str, groups: Sequence[PendingGroup]) -> None:
    """Take the successes of a policy's micro-batch into the pool, and what is injected with it into its cohort."""
    for group in groups:
        if policy in group.injected:
            cohort.policies[policy].rows.injected.append(group.injected[policy])
        success = group.success
        if success is None:
            continue
        own = [row for row in group.rows[policy] if row[0] == success.member]
        if own:
            pool = ctx.state.choice.successes
            store(pool, group.task, success, policy, group.ages[policy].oldest)
            if pool[group.task].draw == group.draw:
                pool[group.task].rows[policy] = len(own)


def drawn(ctx: Context, cohort: Cohort, policy: str) -> list[ArchivedGroup]:
    """Return what is injected into a settled cohort's step of a policy, in the order in which it is trained."""
    rule = ctx.plan.spec.sampling.replay
    expire(ctx.state.choice.successes, _versions(ctx, cohort), rule.max_age, rule.max_uses)
    return in_order(cohort.policies[policy].rows.injected)


def _versions(ctx: Context, cohort: Cohort) -> dict[str, int]:
    """Return the newest versions from which a cohort may step: each open one before it makes one more."""
    before = sum(other.no < cohort.no for other in ctx.state.cohorts)
    return {name: (ctx.state.policies[name].version or 0) + before for name in ctx.plan.trainable}
