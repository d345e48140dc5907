"""Requests to engines, and which weights may answer them.

Invariants: a request names the weights that it may be answered by, or the oldest of them; what an engine holds of a
policy is its newest weights and the older ones that are still asked for.
"""

from collections import defaultdict
from collections.abc import Callable, Container
from typing import Protocol

import msgspec


class Answering(Protocol):
    """Whoever answers turns."""

    def drop(self, turn: "SimulatedTurn") -> None:
        """Forget a turn."""

    def made_of(self, turn: "SimulatedTurn") -> float:
        """Return the tokens that one of its turns has."""


class SimulatedTurn(msgspec.Struct, eq=False):
    """One request, from its asking to its reply. There are millions: a structure is made in a sixth of the time."""

    policy: str
    pinned: int
    """Version of the weights that may answer it, or the oldest."""
    follow: str
    prompt: float
    reply: int
    done: Callable[["SimulatedTurn"], None]
    role: str = ""
    scale: float = 1.0
    """How many times as long its prompt takes, and how many steps a token."""
    to: int = 0
    """Lease of the engine that is to answer it, as long as that holds its weights; 0: any."""
    expected: float = 0.0
    """Tokens that were expected of it when an engine took it."""
    prefixes: tuple[str, ...] = ()
    """Whose turns begin with the same tokens, the most alike first; empty when nobody's do."""
    rank: float = 0.0
    """Whoever has a higher one is given a slot before it; among equals, who came first."""
    made: float = 0.0
    """Tokens that exist."""
    segments: tuple[int, ...] = ()
    """version, tokens, ... of what newer weights took over."""
    version: int = 0
    """Weights that make its tokens now."""
    engine: Answering | None = None
    began: float = 0.0
    """The engine's count of steps at which its tokens began, less those made before."""
    ready: float = 0.0
    """When its prompt is computed."""
    phase: str = "asked"
    """asked, queued, prompt, reply or ended."""

    @property
    def task(self) -> str:
        """Return what replies share that are the most alike; empty: nothing."""
        return ""

    @property
    def key(self) -> int:
        """Return what chances of its own are drawn by."""
        return 0

    def shared(self, computed: Container[str]) -> float:
        """Return the share of its prompt that was computed for others before."""
        return 0.0

    @property
    def cells(self) -> float:
        """Return the places of the cache that it may come to need."""
        return self.prompt + self.reply


class Holdings:
    """Which weights an engine holds: of each policy the newest, and those that are still asked for."""

    def __init__(self) -> None:
        self.newest: dict[str, int] = {}
        """Policy -> version."""
        self.computed: defaultdict[str, set[str]] = defaultdict(set)
        """Policy -> beginnings of prompts in the cache: all since its weights were loaded."""
        self._former: dict[str, frozenset[int]] = {}
        self._changed: Callable[[], None] | None = None

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever other weights are held."""
        self._changed = changed

    def answering(self, turn: SimulatedTurn) -> int | None:
        """Return the version that would answer a turn, None when none may."""
        newest, pinned = self.newest.get(turn.policy), turn.pinned
        if newest == pinned:
            return newest
        if turn.follow:
            return newest if newest is not None and newest > pinned else None
        return pinned if pinned in self._former.get(turn.policy, ()) else None

    def fresh(self, turn: SimulatedTurn) -> float:
        """Return what of a prompt was not computed for others; prompts behind this one find it."""
        if not turn.prefixes:
            return turn.prompt
        computed = self.computed[turn.policy]
        fresh = turn.prompt * (1.0 - turn.shared(computed))
        computed.update(turn.prefixes)
        return fresh

    def take(self, policy: str, version: int, keeps: tuple[int, ...]) -> None:
        """Hold new weights, and of the older ones those that are named, or the last."""
        before, kept = self.newest.get(policy), self._former.get(policy, frozenset())
        if before is not None:
            kept |= {before}
            keeps = keeps or (before,)
        self.newest[policy] = version
        self.computed.pop(policy, None)
        self._former[policy] = kept.intersection(keeps)
        self._tell()

    def forget(self, policy: str) -> None:
        """Hold nothing of a policy any more."""
        self.newest.pop(policy, None)
        self.computed.pop(policy, None)
        self._former.pop(policy, None)
        self._tell()

    def _tell(self) -> None:
        if self._changed is not None:
            self._changed()
