"""Stretches of a run and the ends of verbs, as the core decides them and the store keeps them."""

from dataclasses import dataclass, field

from flexmarl.contracts.events import Verb
from flexmarl.contracts.status import RunReason, RunStatus


@dataclass(frozen=True, slots=True)
class AttemptBegan:
    """A continuous stretch of the run began: it asks for devices."""

    no: int
    epoch: int
    verb: Verb
    """What began it: start, resume, stop or retry."""
    actor: str
    first_step: int
    """Train steps done before it."""


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """A stretch ended: the run is over, or it gave its devices back."""

    no: int
    status: RunStatus
    reason: RunReason
    reason_text: str
    actor: str
    last_step: int
    """Train steps done by then."""
    versions: dict[str, int] = field(default_factory=dict)
    """Policy -> committed version; policies without any are left out."""


@dataclass(frozen=True, slots=True)
class VerbEnded:
    """How a verb that somebody follows ended."""

    operation: str
    succeeded: bool
    status: RunStatus
    text: str
