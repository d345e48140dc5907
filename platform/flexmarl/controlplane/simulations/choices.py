"""Kinds and states of simulations, and which state follows which."""

from enum import StrEnum


class Kind(StrEnum):
    COMPARISON = "comparison"
    """Presets beside each other on one workload."""
    WHAT_IF = "what_if"
    """What a run did, played again as it was and with one thing changed."""


class SimulationState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDED = frozenset({SimulationState.DONE, SimulationState.FAILED, SimulationState.CANCELLED})
NEXT: dict[SimulationState, frozenset[SimulationState]] = {
    SimulationState.QUEUED: frozenset({SimulationState.RUNNING, SimulationState.CANCELLED, SimulationState.FAILED}),
    SimulationState.RUNNING: ENDED | {SimulationState.QUEUED},
    SimulationState.DONE: frozenset(),
    SimulationState.FAILED: frozenset(),
    SimulationState.CANCELLED: frozenset(),
}


class Reason(StrEnum):
    """Why a simulation failed, for programs."""

    TIME_LIMIT = "time_limit"
    GAVE_UP = "gave_up"
    """The process that played it ended every time."""
    NO_END = "no_end"
    """No preset made its steps."""
    REFUSED = "refused"
    """A specification of it is legal no more."""
    TOO_LITTLE = "too_little_recorded"
    FAULT = "fault"
    """A fault of the simulator; its log has the rest."""
