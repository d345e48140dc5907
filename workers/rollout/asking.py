"""Who answers the turns of an episode: its run's engines, and for some seats somebody else.

Invariants. Turns of one round wait for nothing but each other. What no engine can answer is told in the place of its
reply, behind the replies of the others, so nothing that was sampled is lost with it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from workers.rollout.environments.base import Ask
from workers.rollout.external import ExternalClient
from workers.rollout.slots import Slots
from workers.rollout.speech import Seat
from workers.rollout.turn_barrier import TurnBarrier
from workers.rollout.turns import Turn, TurnRefusedError, TurnReply, TurnRequest

Outgrown = Callable[[Sequence[Turn]], Awaitable[str]]
"""Says why an episode with these turns is not worth another one; empty where it is."""


class TurnSource(Protocol):
    """What answers the turns of seats with a policy: engines, or what was said before."""

    async def turn(self, request: TurnRequest, deadline: float) -> TurnReply:
        """Answer one turn before `deadline` (monotonic seconds)."""

    async def until_held(self, request: TurnRequest, at_most_s: float) -> float:
        """Wait until the weights of a turn are there; returns the seconds."""


@dataclass(frozen=True, slots=True)
class Asking:
    """Who answers turns: the run's engines, and for some seats somebody else."""

    engines: TurnSource
    others: ExternalClient
    places: Slots
    """Of turns that are asked for at the same time."""
    together: TurnBarrier | None = None
    """Whose turns are taken together."""
    outgrown: Outgrown | None = None
    """Whether the episode is worth its next turn; None: it always is."""

    async def turn(self, ask: Ask, request: TurnRequest, seats: dict[str, Seat], deadline: float) -> TurnReply:
        """Answer one turn, by whoever plays its seat."""
        seat = seats[ask.role]
        async with self.places:
            if seat.external is None:
                return await self.engines.turn(request, deadline)
            deadline += await seat.hold.over()
            return await self.others.turn(seat.external, ask, request, seat.codec, deadline)


async def answered(
    asking: Asking,
    asks: Sequence[Ask],
    requests: Sequence[TurnRequest],
    seats: dict[str, Seat],
    deadline: float,
    weights_timeout_s: float,
) -> tuple[list[TurnReply], float]:
    """Do what `asked` does. Raises the first refusal."""
    replies, waited_s = await asked(asking, asks, requests, seats, deadline, weights_timeout_s)
    return [_unrefused(one) for one in replies], waited_s


def _unrefused(answer: TurnReply | TurnRefusedError) -> TurnReply:
    if isinstance(answer, TurnRefusedError):
        raise answer
    return answer


async def asked(
    asking: Asking,
    asks: Sequence[Ask],
    requests: Sequence[TurnRequest],
    seats: dict[str, Seat],
    deadline: float,
    weights_timeout_s: float,
) -> tuple[list[TurnReply | TurnRefusedError], float]:
    """Have turns answered that wait for nothing but each other; tells how long they waited for weights, or stood still.

    What no engine can answer has its refusal in the place of a reply.
    """
    waited_s, hold = 0.0, seats[asks[0].role].hold
    stood_s = hold.stood_s
    for ask, request in zip(asks, requests, strict=True):
        # Training is not the episode's fault: its time does not run while weights are made.
        if seats[ask.role].external is None:
            waited_s += await asking.engines.until_held(request, weights_timeout_s)

    async def one(ask: Ask, request: TurnRequest) -> TurnReply | TurnRefusedError:
        try:
            return await asking.turn(ask, request, seats, deadline + waited_s)
        except TurnRefusedError as refused:
            return refused

    turns = [one(*pair) for pair in zip(asks, requests, strict=True)]
    replies = [await turns[0]] if len(turns) == 1 else list(await asyncio.gather(*turns))
    return replies, waited_s + hold.stood_s - stood_s
