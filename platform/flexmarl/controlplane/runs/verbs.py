"""What may come with a verb, and the event that carries it to the driver.

Invariant: an option reaches the run only with the verb it belongs to; one that does not fit is refused by name.
"""

from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal

from flexmarl.contracts.events import PauseMode, RunVerb, Verb
from flexmarl.contracts.specification.resources import Resources
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.problems import FieldError, ValidationProblem
from flexmarl.controlplane.runs.models import Operation, Run

MAX_HOLD_S = 604_800
AS_SPECIFIED: Literal["as_specified"] = "as_specified"
"""Hold the devices as long as `resources.hold_s` of the specification says."""


@dataclass(frozen=True, slots=True)
class VerbOptions:
    """Options of a pause; None and `AS_SPECIFIED` where the caller named none."""

    mode: PauseMode | None = None
    hold_s: float | Literal["as_specified"] | None = AS_SPECIFIED

    @property
    def given(self) -> dict[str, Any]:
        """Return what the caller named, for the audit."""
        held = {} if self.hold_s == AS_SPECIFIED else {"hold_s": self.hold_s}
        return ({"mode": self.mode.value} if self.mode else {}) | held


NO_OPTIONS = VerbOptions()


def check(verb: Verb, options: VerbOptions) -> None:
    """Raise ValidationProblem when an option does not belong to the verb, or has no legal value."""
    errors = []
    if verb is not Verb.PAUSE:
        for name in options.given:
            detail = f"{name} applies to pause only; {verb} accepts only a reason."
            errors.append(FieldError(f"/{name}", "not_allowed", detail, f"Omit {name}."))
    elif isinstance(options.hold_s, float | int) and not _legal_hold(options.hold_s):
        detail = f"hold_s must be 0 to {MAX_HOLD_S} seconds, or null."
        hint = "0 releases the devices immediately, null keeps them until the run is resumed."
        errors.append(FieldError("/hold_s", "out_of_range", detail, hint))
    if errors:
        raise ValidationProblem(errors[0].detail, errors=errors)


def _legal_hold(seconds: float) -> bool:
    return isfinite(seconds) and 0 <= seconds <= MAX_HOLD_S


def event_of(actor: Actor, run: Run, operation: Operation, options: VerbOptions) -> RunVerb:
    """Return the verb as the driver gets it: with who asked, by which request, and every option settled."""
    verb = Verb(operation.verb)
    event = RunVerb(
        verb=verb,
        actor=actor.name,
        reason=operation.reason,
        operation=str(operation.id),
        cause=operation.request_id,
    )
    if verb is not Verb.PAUSE:
        return event
    hold_s = hold_of(run) if options.hold_s == AS_SPECIFIED else options.hold_s
    return event.model_copy(update={"mode": options.mode or PauseMode.DRAIN, "hold_s": hold_s})


def hold_of(run: Run) -> float | None:
    """Return how long a run keeps its devices while it pauses, as its specification says."""
    return Resources.model_validate(run.spec.get("resources", {})).hold_s
