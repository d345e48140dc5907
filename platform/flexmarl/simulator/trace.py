"""What every device of a simulated cluster did, and when, as real devices report it.

Invariants: an interval that was begun is ended once, or goes on at the end of the simulation and is cut there.
"""

from dataclasses import dataclass, replace
from math import inf
from typing import Literal

Kind = Literal[
    "start",
    "generate",
    "load",
    "sleep",
    "wake",
    "bind",
    "suspend",
    "join",
    "vacate",
    "accumulate",
    "step",
    "checkpoint",
]
BUSY: frozenset[Kind] = frozenset({"generate", "accumulate", "step"})
"""Kinds that are work; the others make it possible."""


@dataclass(frozen=True, slots=True)
class Interval:
    lease_id: int
    kind: Kind
    began: float
    ended: float = inf
    policy: str = ""
    tokens: float = 0.0


class Trace:
    def __init__(self) -> None:
        self.uses: dict[int, str] = {}
        """Lease -> `engine` or `trainer`."""
        self._ended: list[Interval] = []
        self._open: dict[int, Interval] = {}
        self._begun = 0

    def begin(self, lease: int, kind: Kind, now: float, policy: str = "") -> int:
        """Note that a device begins with something, and return the number to end it by."""
        self._begun += 1
        self._open[self._begun] = Interval(lease, kind, now, policy=policy)
        return self._begun

    def end(self, number: int, now: float, tokens: float = 0.0) -> None:
        """Note that it is done. Raises KeyError for what was not begun, or was ended before."""
        begun = self._open.pop(number)
        if now > begun.began:
            self._ended.append(Interval(begun.lease_id, begun.kind, begun.began, now, begun.policy, tokens))

    def until(self, now: float) -> list[Interval]:
        """List all intervals, those that go on cut at this moment."""
        return [*self._ended, *(replace(begun, ended=now) for begun in self._open.values() if now > begun.began)]
