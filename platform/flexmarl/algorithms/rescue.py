"""The pool of rescue: an earlier success takes the place of one member where a whole group failed at its task.

After DART's experience pool (arXiv 2509.23866). Pure functions on plain values: the pool has the newest success of each
task that a step was taken on, and what is taken from it depends on the groups alone, never on the order in which those
of a step settled. A success is never taken for the cohort that played it, and once for a cohort.
"""

from collections.abc import Sequence

import msgspec

from flexmarl.algorithms.replay import ArchivedGroup
from flexmarl.contracts.wire import EpisodeOutcome, EpisodeStatus, SampleRef

Said = tuple[str, int, int, float, int]
"""role, turn, tokens, reward, turns before it in its chain."""


class StoredSuccess(msgspec.Struct, gc=False):
    """An episode that solved its task, with what it is compared by."""

    draw: int
    member: int
    attempt: int
    last: int
    """Cohort in which it was trained last."""
    team_score: float
    scores: dict[str, float]
    samples: list[Said]
    oldest: dict[str, int] = {}
    """Policy whose step was taken on its rows -> version of their oldest token."""
    rows: dict[str, int] = {}
    """The same policies -> how many rows these are."""
    uses: int = 0
    """How often it took a member's place."""


def success_of(episodes: Sequence[EpisodeOutcome], draw: int, cohort: int) -> StoredSuccess | None:
    """Return what is stored of a group: its best member that solved the task, the lowest one of equals; None: none."""
    solved = [episode for episode in episodes if episode.solved]
    if not solved:
        return None
    best = min(solved, key=lambda episode: (-episode.team_score, episode.member))
    said = [(own.role, own.turn, own.tokens, own.reward, own.follows) for own in best.samples]
    return StoredSuccess(draw, best.member, best.attempt, cohort, best.team_score, dict(best.scores), said)


def episode_of(stored: StoredSuccess, member: int) -> EpisodeOutcome:
    """Return a stored success as a member of another group."""
    return EpisodeOutcome(
        member=member,
        attempt=stored.attempt,
        status=EpisodeStatus.FINISHED,
        scores=stored.scores,
        team_score=stored.team_score,
        solved=True,
        samples=tuple(
            SampleRef(role=role, turn=turn, tokens=tokens, reward=reward, follows=follows)
            for role, turn, tokens, reward, follows in stored.samples
        ),
    )


def store(pool: dict[int, StoredSuccess], task: int, success: StoredSuccess, policy: str, oldest: int) -> None:
    """Take in a success once a step of a policy is to be taken on its rows; a newer one replaces an older one."""
    known = pool.get(task)
    if known is None or (known.draw, known.member) != (success.draw, success.member):
        if known is not None and known.draw > success.draw:
            return
        known = pool[task] = msgspec.structs.replace(success, oldest={}, rows={})
    known.oldest[policy] = oldest


def usable(stored: StoredSuccess | None, cohort: int, versions: dict[str, int], max_age: int, max_uses: int) -> bool:
    """Tell whether a success may be trained again by a cohort that steps from these versions."""
    return (
        stored is not None
        and bool(stored.oldest)
        and stored.last < cohort
        and stored.uses < max_uses
        and all(versions[policy] - oldest <= max_age for policy, oldest in stored.oldest.items())
    )


def expire(pool: dict[int, StoredSuccess], versions: dict[str, int], max_age: int, max_uses: int) -> None:
    """Drop what is too old to be trained again, or used up."""
    gone = [
        task
        for task, one in pool.items()
        if one.uses >= max_uses or any(versions[policy] - oldest > max_age for policy, oldest in one.oldest.items())
    ]
    for task in gone:
        del pool[task]


def ages_of(pool: dict[int, StoredSuccess], policy: str, version: int) -> dict[int, tuple[int, int]]:
    """Return how many own successes and rows of a policy there are of each age in versions, the youngest first."""
    found: dict[int, tuple[int, int]] = {}
    for one in sorted(pool.values(), key=lambda one: -one.oldest.get(policy, 0)):
        if policy in one.oldest and one.draw >= 0:
            groups, rows = found.get(age := version - one.oldest[policy], (0, 0))
            found[age] = groups + 1, rows + one.rows.get(policy, 0)
    return found


def imported(pool: dict[int, StoredSuccess], policy: str) -> tuple[int, int]:
    """Return how many successes of another run there are with rows of a policy, and how many rows."""
    rows = [one.rows.get(policy, 0) for one in pool.values() if one.draw < 0 and policy in one.oldest]
    return len(rows), sum(rows)


def in_order(injected: list[ArchivedGroup]) -> list[ArchivedGroup]:
    """Return what was injected in the order in which it is trained, whatever settled first."""
    return sorted(injected, key=lambda group: group.draw)
