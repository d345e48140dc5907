"""What every device of a simulated cluster did, and when, as real devices report it.

Kinds are the phases that real children tell their nodes (`TOLD`), and some that nobody tells of there.
Invariants: an interval that was begun is ended once, or goes on at the end of the simulation and is cut there; a lease
is held from its grant to its end, once, and has no interval beyond that.
"""

from dataclasses import dataclass, field
from math import inf
from typing import Literal, NamedTuple

Kind = Literal[
    "start",
    "rollout",
    "load",
    "sleep",
    "wake",
    "bind",
    "resume",
    "suspend",
    "join",
    "vacate",
    "train",
    "step",
    "checkpoint",
]
BUSY: frozenset[Kind] = frozenset({"rollout", "train", "step"})
"""Kinds that are work; the others make it possible."""
TOLD: frozenset[Kind] = frozenset(
    {"rollout", "load", "sleep", "wake", "bind", "resume", "suspend", "train", "step", "checkpoint"}
)
"""Kinds that real children tell their nodes."""


class TraceInterval(NamedTuple):
    lease_id: int
    kind: Kind
    began: float
    ended: float = inf
    policy: str = ""
    tokens: float = 0.0


@dataclass(slots=True)
class DeviceTenure:
    """A device while a run has it."""

    device_id: str
    use: str
    """`engine` or `trainer`."""
    since: float
    until: float = inf
    beside: int = 0
    """Lease that has the device too."""


@dataclass(slots=True)
class Trace:
    held: dict[int, DeviceTenure] = field(default_factory=dict)
    """By lease, in the order of their grants."""
    _ended: list[TraceInterval] = field(default_factory=list)
    _open: dict[int, TraceInterval] = field(default_factory=dict)
    _begun: int = 0

    @property
    def uses(self) -> dict[int, str]:
        """Lease -> `engine` or `trainer`."""
        return {lease: held.use for lease, held in self.held.items()}

    def begin(self, lease: int, kind: Kind, now: float, policy: str = "") -> int:
        """Note that a device begins with something, and return the number to end it by."""
        self._begun += 1
        self._open[self._begun] = TraceInterval(lease, kind, now, policy=policy)
        return self._begun

    def end(self, number: int, now: float, tokens: float = 0.0) -> None:
        """Note that it is done, unless it broke off before. Raises KeyError for what was never begun."""
        if not 0 < number <= self._begun:
            raise KeyError(number)
        begun = self._open.pop(number, None)
        if begun is not None and now > begun.began:
            self._ended.append(TraceInterval(begun.lease_id, begun.kind, begun.began, now, begun.policy, tokens))

    def break_off(self, lease: int, now: float) -> None:
        """Note that all that a device was doing ended unfinished: its child is gone."""
        for number in [number for number, begun in self._open.items() if begun.lease_id == lease]:
            self.end(number, now)

    def until(self, now: float) -> list[TraceInterval]:
        """List all intervals, those that go on cut at this moment."""
        return [*self._ended, *(begun._replace(ended=now) for begun in self._open.values() if now > begun.began)]
