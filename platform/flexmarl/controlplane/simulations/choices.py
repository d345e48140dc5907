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


class ReplanState(StrEnum):
    OFF = "off"
    """Nothing is compared; the reason says why."""
    WATCHING = "watching"
    """Measured rates are compared with the assumed ones; nothing is proposed."""
    PROPOSED = "proposed"
    """Another setting would save enough; somebody may apply or dismiss it."""
    APPLIED = "applied"
    """Another run goes on with the setting that was proposed."""


class ReplanReason(StrEnum):
    """Why a run is in its state, for programs."""

    NO_PLAN = "no_plan"
    FLEET = "fleet"
    NOT_RUNNING = "not_running"
    UNDER_WAY = "under_way"
    TOO_FEW = "too_few_steps"
    WITHIN = "within_band"
    SEEN = "just_seen"
    NOT_CHOSEN = "not_chosen"
    NO_BETTER = "no_better"
    NOT_WORTH = "not_worth"
    DOES_NOT_PAY = "does_not_pay"
    TRIED = "tried"
    HOLD = "hold"
    NO_CHECKPOINT = "no_checkpoint"
    PROPOSED = "proposed"
    WITHDRAWN = "withdrawn"
    DISMISSED = "dismissed"
    APPLIED = "applied"
