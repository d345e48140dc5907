"""What movers see and what they answer. Pure: a snapshot in, moves out, nothing kept.

Invariants: a place is given only by an engine whose places may change hands, by a policy that it serves to one that it
does not; what an engine has left of a version goes to one that plays the same version, at once and whole. `checked` and
`checked_handovers` hold every mover to that. What a mover is to remember is in the snapshot: the core keeps it.
"""

from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from flexmarl.algorithms.registry import Plugin
from flexmarl.contracts.specification.movers import MoverOptions


class PolicyDemand(msgspec.Struct, frozen=True, gc=False):
    """Turns requested of one policy and the state of its queue."""

    turns: int
    """Without a reply, now."""
    queue: float
    """The same, smoothed."""
    growth: float
    """Turns per second by which the queue grows."""
    load_s: float
    """What a load of it takes."""
    waiting_since: float | None
    """Since when it is asked and has no engine."""
    idle_since: float | None
    """Since when nobody asks it."""
    stuck_since: float | None
    """Since when all its turns wait although its engines hold all that they are to hold."""
    gained_at: float | None
    """When it was given another's place."""
    gave_at: float | None
    """When it gave a place for another's longer queue."""
    hold_s: float | None
    """How long it keeps what it has since it was given a place, see `Mover.keeps_s`; None: it was given none."""
    apart_since: float | None
    """Since when its queue is too long beside the shortest one."""


class Snapshot(msgspec.Struct, frozen=True, gc=False):
    """What moves are decided by."""

    now: float
    policies: Mapping[str, PolicyDemand]
    serves: Mapping[int, tuple[str, ...]]
    """Every engine that answers -> what it serves."""
    movable: frozenset[int]
    """Engines of which a place may change hands now: none of their places is being emptied."""
    depths: Mapping[int, int]


class Move(msgspec.Struct, frozen=True, gc=False):
    engine: int
    out: str
    into: str
    cause: str
    """`waiting` or `disparity`."""
    reason: str


Vector = tuple[tuple[str, int], ...]
"""(policy, version), by policy."""


@dataclass(frozen=True, slots=True)
class Serving:
    """An engine that plays what it was given to the end."""

    engine: int
    version: Vector
    running: int
    """Replies that are being made."""
    waiting: int
    """Replies that have not begun."""
    tokens: int
    """Prompts and replies in its attention cache."""


@dataclass(frozen=True, slots=True)
class Handover:
    """An engine gives all that it has left of a version to another one that plays the same version."""

    source: int
    destination: int
    reason: str = ""
    """Why the destination can take it, as the end of a sentence."""


MoverSettings = TypeVar("MoverSettings", bound=MoverOptions)


class Mover(Plugin[MoverSettings], ABC):
    """Decides which policies engines serve. One that does nothing leaves every place to who has it."""

    def too_long(self, queues: Mapping[str, float], engines: Mapping[str, int]) -> set[str]:
        """Return the policies whose smoothed queue of turns is too long for the engines that each of them has.

        While there are any, `moves` is asked, and the snapshot says since when each is.
        """
        return set()

    def moves(self, seen: Snapshot) -> list[Move]:
        """Return the places that change hands now."""
        return []

    def keeps_s(self, asked: PolicyDemand, now: float) -> float:
        """Return how long a policy that is given a place now keeps what it has."""
        return 0.0

    def handovers(self, engines: Sequence[Serving]) -> list[Handover]:
        """Return who is emptied into whom, of engines that play what they were given to its end."""
        return []


def checked(moves: Sequence[Move], seen: Snapshot) -> Sequence[Move]:
    """Return moves that can be carried out one after the other. Raises ValueError for others."""
    given: set[int] = set()
    for move in moves:
        own = seen.serves.get(move.engine, ())
        able = move.engine in seen.movable and move.engine not in given and move.into in seen.policies
        if not able or move.out not in own or move.into in own:
            raise ValueError(f"engine {move.engine} cannot serve {move.into!r} instead of {move.out!r} now")
        given.add(move.engine)
    return moves


def checked_handovers(handovers: Sequence[Handover], engines: Sequence[Serving]) -> Sequence[Handover]:
    """Return handovers that can be carried out one after the other. Raises ValueError for others."""
    versions = {one.engine: one.version for one in engines}
    sources = {one.source for one in handovers}
    for one in handovers:
        known = one.source in versions and one.destination in versions
        if not known or one.destination in sources or versions[one.source] != versions[one.destination]:
            raise ValueError(f"engine {one.destination} cannot take over what engine {one.source} has left")
    if len(sources) < len(handovers):
        raise ValueError("an engine gives what it has left once")
    return handovers
