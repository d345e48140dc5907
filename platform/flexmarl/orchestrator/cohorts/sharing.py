"""Members that other installations said: what is learned of them, and how many there were."""

from collections.abc import Sequence

from flexmarl.algorithms.advantages import Advantages
from flexmarl.algorithms.shared_members import learned
from flexmarl.contracts.wire import EpisodeOutcome
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.state.cohort import Cohort


def of_others(ctx: Context, cohort: Cohort, episodes: Sequence[EpisodeOutcome], advantages: Advantages) -> Advantages:
    """Return the advantages of a group's members with what is learned of others', and count the latter."""
    options = ctx.plan.spec.sampling.sharing
    if not options.on:
        return advantages
    found = learned(episodes, advantages, options.learn_from)
    for episode, before, after in zip(episodes, advantages, found, strict=True):
        cohort.groups.members_shared += episode.shared
        cohort.groups.members_unlearned += any(before) and not any(after)
    return found


def sharing_metrics(ctx: Context, cohort: Cohort, step: int) -> None:
    """Write how many members of the step's groups others said, and of how many of these nothing was learned."""
    ctx.metric("episodes/shared", float(cohort.groups.members_shared), step, stat="sum")
    if ctx.plan.spec.sampling.sharing.learn_from != "all":
        ctx.metric("episodes/shared_unlearned", float(cohort.groups.members_unlearned), step, stat="sum")
