"""The life of a run: verbs, moves, what comes after a cohort, and the ways to end.

Invariants: a status changes only along the tables of `contracts.status`; a run that ends has no command on its way
and asks for the release of every lease. Pause and stop drain: the open cohort is finished, so nothing is thrown away.
Kill and failure are terminal at once: the epoch rises, everything is void, unsettled episodes are cancelled.
"""

from flexmarl.contracts.commands import ReleaseLease
from flexmarl.contracts.events import RunVerb, Verb
from flexmarl.contracts.status import TERMINAL, RunReason, RunStatus, allowed_verbs, may_move, next_status
from flexmarl.orchestrator.cohorts import open_cohort, starved
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.evaluation import evaluation_due, open_evaluation, target_reached
from flexmarl.orchestrator.metrics import publish_metrics, step_metrics
from flexmarl.orchestrator.moving import hand_over
from flexmarl.orchestrator.serving import served
from flexmarl.orchestrator.state import WantedCheckpoint
from flexmarl.orchestrator.types import NoteLevel

_EVALUATED_AT_END = (RunReason.BUDGET_STEPS, RunReason.BUDGET_TIME)
"""A run that reached its target has been evaluated; one stopped on request should end soon."""


def move(ctx: Context, to: RunStatus, reason: RunReason = RunReason.NONE, text: str = "") -> None:
    """Take the run to another status. Raises ValueError when the table does not allow it."""
    if not may_move(ctx.state.status, to):
        raise ValueError(f"a run cannot move from {ctx.state.status} to {to} by itself")
    _enter(ctx, to, reason, text)


def _enter(ctx: Context, to: RunStatus, reason: RunReason, text: str, actor: str = "") -> None:
    ctx.state.status, ctx.state.reason, ctx.state.reason_text = to, reason, text
    level = NoteLevel.ERROR if to is RunStatus.FAILED else NoteLevel.INFO
    ctx.note(f"run is {to}" + (f": {text}" if text else ""), level, actor=actor, target="run")


def on_verb(ctx: Context, event: RunVerb) -> None:
    """Carry out a person's wish, or say why it has no effect."""
    state = ctx.state
    try:
        to = next_status(state.status, event.verb)
    except ValueError:
        allowed = ", ".join(allowed_verbs(state.status)) or "nothing"
        ctx.note(
            f"{event.verb} had no effect: the run is {state.status}, which allows {allowed}",
            NoteLevel.WARNING,
            actor=event.actor,
            target="run",
        )
        return
    if event.verb is Verb.START:
        _enter(ctx, to, RunReason.WAITING_FOR_DEVICES, "waiting for devices", event.actor)
    elif event.verb is Verb.RESUME:
        _enter(ctx, to, RunReason.NONE, "", event.actor)
    elif to in TERMINAL:
        _abort(ctx, to, RunReason.USER_REQUEST, event.reason or f"{event.verb} requested", event.actor)
    else:
        text = event.reason or "finishing the open train step first"
        if event.verb is Verb.STOP:
            state.stop_reason, state.stop_text = RunReason.USER_REQUEST, event.reason or "stopped on request"
        _enter(ctx, to, RunReason.USER_REQUEST, text, event.actor)


def fail(ctx: Context, reason: RunReason, text: str) -> None:
    """End the run now because it cannot go on. `text` says what happened and what to do next."""
    _abort(ctx, RunStatus.FAILED, reason, text)


def _abort(ctx: Context, to: RunStatus, reason: RunReason, text: str, actor: str = "") -> None:
    state = ctx.state
    state.epoch += 1
    for key in [key for key, o in state.outstanding.items() if o.kind != "host_lease"]:
        ctx.withdraw(key)
    if state.cohort is not None:
        state.train_episodes.cancelled += len(state.cohort.open) * ctx.plan.members
    if state.evaluation is not None:
        state.eval_episodes.cancelled += len(state.evaluation.open)
    state.cohort = state.evaluation = None
    state.checkpoints.clear()
    _release_all(ctx)
    _enter(ctx, to, reason, text, actor)


def _release_all(ctx: Context) -> None:
    for lease in ctx.state.leases.values():
        if not lease.releasing:
            lease.releasing = True
            ctx.emit(ReleaseLease(lease_id=lease.lease_id))
    ctx.state.failures.clear()


def advance(ctx: Context) -> None:
    """Take the run as far as what is known now allows: end the cohort, begin the next, pause, finish."""
    state = ctx.state
    if state.status is RunStatus.RUNNING:
        _check_budget(ctx)
    _after_step(ctx)
    if state.cohort is not None:
        return
    if state.status is RunStatus.STARTING and _ready(ctx):
        move(ctx, RunStatus.RUNNING)
    if state.status is RunStatus.RUNNING:
        _continue(ctx)
    elif state.status is RunStatus.PAUSING and state.evaluation is None:
        move(ctx, RunStatus.PAUSED, RunReason.USER_REQUEST, "devices and weights are kept")
    if state.status is RunStatus.STOPPING and state.cohort is None:
        _finish(ctx)


def _ready(ctx: Context) -> bool:
    return all(policy.accumulator for policy in ctx.state.policies.values()) and served(ctx)


def _check_budget(ctx: Context) -> None:
    """Begin to stop when there is a reason to. The open cohort is finished either way."""
    state, budget = ctx.state, ctx.plan.spec.budget
    found = target_reached(ctx)
    limit = time_limit(ctx)
    if found is None and limit is not None and ctx.now >= limit:
        found = RunReason.BUDGET_TIME, f"{budget.seconds:g} s are over"
    if found is None and state.cohort is None and state.step >= budget.train_steps:
        found = RunReason.BUDGET_STEPS, f"all {budget.train_steps} train steps are done"
    if found is not None:
        state.stop_reason, state.stop_text = found
        move(ctx, RunStatus.STOPPING, *found)


def time_limit(ctx: Context) -> float | None:
    """Return when the run's time is over, None when it has no limit or has not begun."""
    seconds, began = ctx.plan.spec.budget.seconds, ctx.state.first_cohort_at
    return None if seconds is None or began is None else began + seconds


def _after_step(ctx: Context) -> None:
    """Close the books of a cohort: once when every policy has stepped, once when the new weights are served."""
    state, cohort = ctx.state, ctx.state.cohort
    if cohort is None or not all(own.stepped for own in cohort.policies.values()) or cohort.settled_at is None:
        return
    if cohort.stepped_at is None:
        cohort.stepped_at = ctx.now
        state.step += 1
        state.replacements = 0
        step_metrics(ctx, cohort)
        every = ctx.plan.spec.checkpoints.every_steps
        if state.step % every == 0:
            _want_last_checkpoint(ctx)
        found = starved(ctx)
        if found is not None:
            fail(ctx, *found)
            return
    # Nobody plays with the new weights after a stop on request, so nobody waits for them either.
    leaving = state.status is RunStatus.STOPPING and state.stop_reason is RunReason.USER_REQUEST
    if (served(ctx) and state.evaluation is None) or leaving:
        publish_metrics(ctx, cohort)
        state.cohort = None
        if state.status is RunStatus.RUNNING:
            _check_budget(ctx)


def _want_last_checkpoint(ctx: Context) -> None:
    state = ctx.state
    state.checkpoints["last"] = WantedCheckpoint("last", state.step, state.vector())
    state.history.checkpoint_step = state.step


def _continue(ctx: Context) -> None:
    """Begin the next cohort, and the evaluation of the same vector beside it. First, what moves takes over."""
    if not (hand_over(ctx) and served(ctx)):
        return
    open_cohort(ctx)
    if evaluation_due(ctx):
        open_evaluation(ctx)


def _finish(ctx: Context) -> None:
    """Evaluate the last vector where it is news, export it, then end."""
    state = ctx.state
    if state.evaluation is not None:
        return
    by_user = state.stop_reason is RunReason.USER_REQUEST
    if state.stop_reason in _EVALUATED_AT_END and evaluation_due(ctx, final=True):
        if served(ctx):
            open_evaluation(ctx)
        return
    if state.step > 0 and state.history.checkpoint_step != state.step:
        _want_last_checkpoint(ctx)
    if state.checkpoints:
        return
    for key in [key for key, o in state.outstanding.items() if o.kind != "host_lease"]:
        ctx.withdraw(key)
    _release_all(ctx)
    completed = not by_user or state.step > 0
    move(ctx, RunStatus.COMPLETED if completed else RunStatus.CANCELLED, state.stop_reason, state.stop_text)
