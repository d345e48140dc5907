"""Verbs in flight: who requested each, its outcome, and in whose name the next lines are written.

Invariants: at most one verb is on its way; the next one that takes effect ends it. Every verb with an operation gets
exactly one outcome: refused, reached, overtaken by another verb, or missed because the run ended otherwise.
"""

from flexmarl.contracts.attempts import VerbEnded
from flexmarl.contracts.decisions import NoteLevel
from flexmarl.contracts.events import RunVerb
from flexmarl.contracts.status import GOALS, TERMINAL, RunStatus
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.state.lifecycle import RequestedVerb


def take(ctx: Context, event: RunVerb) -> None:
    """Let a legal verb take effect; the one before it is overtaken."""
    _conclude(ctx, False, f"superseded by {event.verb}")
    ctx.state.lifecycle.requested_verb = RequestedVerb(event.verb, event.operation, event.actor, event.cause)


def refuse(ctx: Context, event: RunVerb, text: str) -> None:
    """Say why a verb has no effect."""
    ctx.note(text, NoteLevel.WARNING, actor=event.actor, target="run", cause=event.cause)
    if event.operation:
        ctx.outcomes.append(VerbEnded(event.operation, False, ctx.state.lifecycle.status, text))


def follow(ctx: Context) -> None:
    """Look whether the verb on its way has got what it wanted, or never will. Called at each change of the status."""
    requested, status = ctx.state.lifecycle.requested_verb, ctx.state.lifecycle.status
    if requested is None or not requested.open:
        return
    if status in GOALS[requested.verb]:
        _conclude(ctx, True, "")
    elif status in TERMINAL:
        _conclude(ctx, False, ctx.state.lifecycle.reason_text or f"the run is {status}")


def forget(ctx: Context) -> None:
    """What follows is the run's own doing."""
    _conclude(ctx, False, "the run ended first")
    ctx.state.lifecycle.requested_verb = None


def requested_by(ctx: Context, status: RunStatus) -> tuple[str, str]:
    """Return who and which request stands behind a change of the status; a failure is nobody's requested."""
    requested = ctx.state.lifecycle.requested_verb
    if requested is None or status is RunStatus.FAILED:
        return "", ""
    return requested.actor, requested.cause


def _conclude(ctx: Context, succeeded: bool, text: str) -> None:
    requested = ctx.state.lifecycle.requested_verb
    if requested is None or not requested.open:
        return
    requested.open = False
    if requested.operation:
        ctx.outcomes.append(VerbEnded(requested.operation, succeeded, ctx.state.lifecycle.status, text))
