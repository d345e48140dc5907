"""Turns of one run in this process that have no reply yet, in the order in which they were asked for.

Invariant: a turn is in here from its first try to its reply or its end, once, however often it moves. Counted for
people: nothing is routed by it.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

from flexmarl.store.telemetry.load_reports import OpenTurn
from workers.rollout.turns import WaitingTurn

LONGEST = 20
"""Turns that a report names."""


class Followed:
    """The present try of one turn."""

    __slots__ = ("latest",)

    def __init__(self, first: WaitingTurn) -> None:
        self.latest = first


class OpenTurnTracker:
    def __init__(self) -> None:
        self._turns: dict[int, Followed] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._turns)

    @contextmanager
    def following(self, first: WaitingTurn) -> Iterator[Followed]:
        """Keep a turn until it has its reply; `latest` of what is yielded is its present try."""
        number, self._next = self._next, self._next + 1
        one = self._turns[number] = Followed(first)
        try:
            yield one
        finally:
            del self._turns[number]

    def tokens(self) -> dict[str, int]:
        """Return the tokens of prompts and replies that engines have of them, by engine."""
        found: dict[str, int] = {}
        for one in (followed.latest for followed in self._turns.values()):
            if one.engine and not one.future.done():
                made = len(one.request.prompt) + len(one.so_far.token_ids)
                found[one.engine] = found.get(one.engine, 0) + made
        return found

    def by_role(self) -> dict[str, tuple[int, int]]:
        """Return how many turns of each role are open, and how many of them an engine has."""
        found: dict[str, tuple[int, int]] = {}
        for one in (followed.latest for followed in self._turns.values()):
            turns, taken = found.get(one.request.role, (0, 0))
            found[one.request.role] = turns + 1, taken + one.taken
        return found

    def longest(self, most: int = LONGEST) -> list[OpenTurn]:
        """Return those that have waited longest."""
        ahead = time.time() - time.monotonic()
        return [_told(one.latest, ahead) for one in islice(self._turns.values(), most)]


def _told(one: WaitingTurn, ahead: float) -> OpenTurn:
    request, where = one.request, one.request.where
    return OpenTurn(
        role=request.role,
        policy=request.policy,
        draw=where.draw,
        member=where.member,
        attempt=where.attempt,
        turn=where.turn,
        episode_since=round(where.since, 3),
        since=round(one.asked_at + ahead, 3),
        tokens=len(one.so_far.token_ids),
        engine=one.engine if one.taken else "",
        moves=one.moves,
    )
