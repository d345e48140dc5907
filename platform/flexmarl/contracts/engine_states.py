"""The life cycle of an engine on a device: states, the one table of moves between them, and what each is read from.

Nothing stores a state. It is derived here, from what hosts, engines and the driver have written anyway: the lease, its
child's incarnation, what that child wholly holds and what it is asked to load. Each start of the child is a new
incarnation, which holds nothing: it warms and syncs anew. A doubt stands beside the state, and never in its place: who
has not been heard is where it was last known to be.
"""

from dataclasses import dataclass
from enum import StrEnum


class EngineState(StrEnum):
    REGISTERED = "registered"
    """Its device is leased; nothing of it was started yet."""
    WARMING = "warming"
    """Its process was started and does not answer yet: the first time, or again after a loss."""
    SYNCING = "syncing"
    """It answers, and lacks weights that its next requests will name."""
    ACTIVE = "active"
    """It wholly holds what it is to serve."""
    DRAINING = "draining"
    """Its device is given back: its process is ended, then the lease."""
    GONE = "gone"
    """Its lease has ended; nothing of it runs."""


class EngineDoubt(StrEnum):
    NONE = ""
    HOST_SILENT = "host_silent"
    """Whoever hosts it has not renewed its lease in time."""
    NODE_SILENT = "node_silent"
    """The node's agent has missed its heartbeats."""
    ENGINE_SILENT = "engine_silent"
    """It answers its node no more, while the node is heard."""


GONE_FOR_GOOD: frozenset[EngineState] = frozenset({EngineState.GONE})

MOVES: dict[EngineState, frozenset[EngineState]] = {
    EngineState.REGISTERED: frozenset({EngineState.WARMING, EngineState.DRAINING, EngineState.GONE}),
    EngineState.WARMING: frozenset({EngineState.SYNCING, EngineState.DRAINING, EngineState.GONE}),
    EngineState.SYNCING: frozenset({EngineState.ACTIVE, EngineState.WARMING, EngineState.DRAINING, EngineState.GONE}),
    EngineState.ACTIVE: frozenset({EngineState.SYNCING, EngineState.WARMING, EngineState.DRAINING, EngineState.GONE}),
    EngineState.DRAINING: frozenset({EngineState.GONE}),
    EngineState.GONE: frozenset(),
}
"""State -> those that may follow. `warming` follows `syncing` and `active` when an incarnation is lost."""

ENGINE_SILENT_S = 10.0
"""An engine that has told its node nothing for longer is doubted."""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What the rows say of one engine at one moment."""

    lease: str
    """held | releasing | ended"""
    started: bool
    """Whether a process of it was ever started."""
    answers: bool
    """Whether an incarnation is published."""
    held: int = 0
    """Policies that this incarnation wholly holds."""
    loads: int = 0
    """Loads that it was asked for and has not finished."""
    lease_late_s: float = 0.0
    """Seconds since its lease expired; below zero while it has not."""
    node_late_s: float = 0.0
    """Seconds since the node was to be heard at the latest; below zero while that is to come."""
    told_s: float | None = None
    """Seconds since this incarnation told its figures; None: it never has."""


def state_of(facts: EngineFacts) -> EngineState:
    """Return where an engine is in its life."""
    if facts.lease == "ended":
        return EngineState.GONE
    if facts.lease == "releasing":
        return EngineState.DRAINING
    if not facts.answers:
        return EngineState.WARMING if facts.started else EngineState.REGISTERED
    return EngineState.ACTIVE if facts.held and not facts.loads else EngineState.SYNCING


def doubt_of(facts: EngineFacts) -> EngineDoubt:
    """Return why an engine may not be what its state says; the widest silence explains the others."""
    if facts.lease == "ended":
        return EngineDoubt.NONE
    if facts.node_late_s > 0.0:
        return EngineDoubt.NODE_SILENT
    if facts.lease_late_s > 0.0:
        return EngineDoubt.HOST_SILENT
    if facts.answers and facts.told_s is not None and facts.told_s > ENGINE_SILENT_S:
        return EngineDoubt.ENGINE_SILENT
    return EngineDoubt.NONE
