"""Kinds of simulations, and why they fail."""

from enum import StrEnum


class SimulationKind(StrEnum):
    COMPARISON = "comparison"
    """Presets beside each other on one workload."""
    WHAT_IF = "what_if"
    """What a run did, played again as it was and with one thing changed."""


class SimulationFailure(StrEnum):
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
