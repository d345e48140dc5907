"""Groups of which too few members finished, where the others are given a score."""

from collections.abc import Sequence

from flexmarl.contracts.wire import EpisodeOutcome, EpisodeStatus, SampleRef
from flexmarl.orchestrator.context import Context


def scored_failures(ctx: Context, members: int, finished: Sequence[EpisodeOutcome]) -> list[EpisodeOutcome]:
    """Give each member that did not finish the declared score: it is compared with, and has no row to train on."""
    score = ctx.plan.spec.batch.failed_score
    present = {episode.member for episode in finished}
    roles = tuple(ctx.plan.policy_of)
    return [
        EpisodeOutcome(
            member=member,
            attempt=1,
            status=EpisodeStatus.FAILED,
            scores=dict.fromkeys(roles, score),
            team_score=score,
            samples=tuple(SampleRef(role=role, turn=0, tokens=0, reward=score) for role in roles),
        )
        for member in range(members)
        if member not in present
    ]
