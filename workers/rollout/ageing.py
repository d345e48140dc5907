"""Whether an episode is worth its next turn: what its rows were said by, against the weights that engines have now.

Invariants: an episode is given up between two turns alone, so nothing is taken from an engine and no environment stands
in the middle of an action; and only where every row of it, and of members of its group that finished before, is
certain to be removed before a cut. What is known of the engines may be a moment old: then it plays one turn more.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from flexmarl.algorithms.ageing import older, too_old
from workers.rollout.episode import EpisodeAttempt
from workers.rollout.speech import Seat
from workers.rollout.turns import Turn

Newest = Callable[[], Awaitable[Mapping[str, int]]]
"""Policy -> newest version that engines have."""


class GroupAge:
    """Of members whose rows are trained together or not at all."""

    def __init__(self, bounds: Mapping[str, int], newest: Newest, seats: Mapping[str, Seat]) -> None:
        """`bounds`: policy -> largest own lag of its rows, of every trained policy."""
        self._bounds, self._newest, self._seats = bounds, newest, seats
        self._finished: dict[str, int] = {}

    async def outgrown(self, turns: Sequence[Turn]) -> str:
        """Return why an episode with these turns is not worth another one, in words; empty where it is."""
        oldest = older(self._finished, self._oldest(turns))
        return too_old(oldest, await self._newest(), self._bounds) if oldest else ""

    def ended(self, attempt: EpisodeAttempt) -> None:
        """Take in a member that finished: the others are trained with it."""
        self._finished = older(self._finished, self._oldest(attempt.turns))

    def _oldest(self, turns: Sequence[Turn]) -> dict[str, int]:
        """Return the version of the oldest token of each policy that is trained."""
        found: dict[str, int] = {}
        for turn in turns:
            seat, choice = self._seats[turn.role], turn.reply.choice
            if seat.trained and choice.token_ids:
                version = min(choice.segments[::2], default=seat.pin.version)
                found[seat.policy] = min(found.get(seat.policy, version), version)
        return found
