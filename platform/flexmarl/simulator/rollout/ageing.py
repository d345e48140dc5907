"""Whether simulated episodes are worth their next turn, by the rule of real rollout workers.

Invariant: what a worker may learn a moment late is known here at once; it is asked between two turns alone.
"""

from collections.abc import Callable, Iterable, Mapping

from flexmarl.algorithms.ageing import older, too_old
from flexmarl.contracts.wire import EpisodeStatus, Origin, SampleRef
from flexmarl.simulator.rollout.groups import Episode, SimulatedGroup, Team


def outgrown(team: Team, newest: Callable[[], Mapping[str, int]], episode: Episode) -> str:
    """Return why an episode is not worth another turn, in words; empty where it is.

    `newest` tells the newest version of each policy that engines have.
    """
    group = episode.group
    if not team.bounds or group.command.origin is not Origin.TRAIN:
        return ""
    oldest = _oldest(team, group, episode.rows)
    if not group.command.by_episode:
        finished = (one for one in group.outcomes.values() if one.status is EpisodeStatus.FINISHED)
        oldest = older(oldest, _oldest(team, group, (row for one in finished for row in one.samples)))
    return too_old(oldest, newest(), team.bounds) if oldest else ""


def _oldest(team: Team, group: SimulatedGroup, rows: Iterable[SampleRef]) -> dict[str, int]:
    """Return the version of the oldest token of each policy that is trained."""
    found: dict[str, int] = {}
    for row in rows:
        if row.tokens and row.role in team.trained:
            seat = group.seats[row.role]
            version = min(row.segments[::2], default=seat.pinned)
            found[seat.policy] = min(found.get(seat.policy, version), version)
    return found
