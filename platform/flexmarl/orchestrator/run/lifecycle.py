"""The life of a run: verbs, moves, what comes after a cohort, and the ways to end.

Invariants: a status changes only along the tables of `contracts.status`; a run that ends has no command on its way
and asks for the release of every lease. Stop drains, and so does a pause that does not freeze: the open cohort is
finished, so nothing is thrown away. Kill and failure are terminal at once: the epoch rises, everything is void,
unsettled episodes are cancelled. Every change of the status says who asked for it and by which request.
"""

from collections.abc import Callable

from flexmarl.contracts.decisions import NoteLevel
from flexmarl.contracts.events import RunVerb, Verb
from flexmarl.contracts.status import TERMINAL, RunReason, RunStatus, allowed_verbs, may_move, next_status
from flexmarl.orchestrator.allocation.rollout_windows import measure_window
from flexmarl.orchestrator.allocation.shared_devices import engines_turn
from flexmarl.orchestrator.cohorts.cohorts import close_cohort, open_cohort, settle_with_enough, starved
from flexmarl.orchestrator.cohorts.credit import top_up
from flexmarl.orchestrator.cohorts.overlapping import coming_vector, may_overlap, next_vector
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.run import attempts, pausing, verb_requests
from flexmarl.orchestrator.run.lease_recalls import hand_over, moving_text
from flexmarl.orchestrator.run.scaling import measure_step
from flexmarl.orchestrator.serving.weight_sync import overlaps, served
from flexmarl.orchestrator.state.cohort import Cohort
from flexmarl.orchestrator.state.lifecycle import PauseState
from flexmarl.orchestrator.state.tokens import Undelivered
from flexmarl.orchestrator.state.tree import RunState, WantedCheckpoint
from flexmarl.orchestrator.training.evaluation import (
    evaluation_due,
    nothing_finished,
    only_evaluates,
    open_evaluation,
    target_reached,
)
from flexmarl.orchestrator.training.metrics import publish_metrics, step_metrics
from flexmarl.orchestrator.training.trainers import gathered

_GOES_ON = frozenset({RunStatus.RUNNING, RunStatus.STOPPING})
"""Where a run that froze goes on by itself, as soon as it has what it needs."""
_EVALUATED_AT_END = (RunReason.BUDGET_STEPS, RunReason.BUDGET_TIME)
"""A run that reached its target has been evaluated; one stopped on request should end soon."""


def move(ctx: Context, to: RunStatus, reason: RunReason = RunReason.NONE, text: str = "") -> None:
    """Take the run to another status. Raises ValueError when the table does not allow it."""
    if not may_move(ctx.state.lifecycle.status, to):
        raise ValueError(f"a run cannot move from {ctx.state.lifecycle.status} to {to} without a request")
    _enter(ctx, to, reason, text)


def _enter(ctx: Context, to: RunStatus, reason: RunReason, text: str) -> None:
    ctx.state.lifecycle.status, ctx.state.lifecycle.reason, ctx.state.lifecycle.reason_text = to, reason, text
    level = NoteLevel.ERROR if to is RunStatus.FAILED else NoteLevel.INFO
    actor, cause = verb_requests.requested_by(ctx, to)
    ctx.note(f"run is {to}" + (f": {text}" if text else ""), level, actor=actor, target="run", cause=cause)
    verb_requests.follow(ctx)
    if to in TERMINAL:
        ctx.state.totals.tokens.lose(Undelivered.ENDED, ctx.state.totals.tokens.waiting)
        attempts.end(ctx, reason, text, actor)


def on_verb(ctx: Context, event: RunVerb) -> None:
    """Carry out a person's wish, or say why it has no effect."""
    state = ctx.state
    try:
        to = next_status(state.lifecycle.status, event.verb)
    except ValueError:
        allowed = ", ".join(allowed_verbs(state.lifecycle.status)) or "nothing"
        verb_requests.refuse(
            ctx, event, f"{event.verb} had no effect: the run is {state.lifecycle.status}, which allows {allowed}"
        )
        return
    verb_requests.take(ctx, event)
    if to in TERMINAL:
        _abort(ctx, to, RunReason.USER_REQUEST, event.reason or f"{event.verb} requested")
    else:
        _enter(ctx, to, *_BEGIN[event.verb](ctx, event))


def _begin_start(ctx: Context, event: RunVerb) -> tuple[RunReason, str]:
    return RunReason.WAITING_FOR_DEVICES, "waiting for devices"


def _begin_retry(ctx: Context, event: RunVerb) -> tuple[RunReason, str]:
    attempts.renew(ctx)
    if only_evaluates(ctx) and ctx.state.history.eval_last is None:
        ctx.state.history.eval_step = -1
    return RunReason.WAITING_FOR_DEVICES, "waiting for devices"


def _begin_resume(ctx: Context, event: RunVerb) -> tuple[RunReason, str]:
    ctx.state.lifecycle.pause.release_at = None
    if ctx.state.lifecycle.status is RunStatus.PAUSED:
        return RunReason.BINDING_POLICIES, "checking devices and weights"
    pausing.go_on(ctx)
    return RunReason.NONE, ""


def _begin_pause(ctx: Context, event: RunVerb) -> tuple[RunReason, str]:
    first = pausing.begin_pause(ctx, event)
    return RunReason.USER_REQUEST, f"{event.reason}; {first}" if event.reason else first


def _begin_stop(ctx: Context, event: RunVerb) -> tuple[RunReason, str]:
    ctx.state.lifecycle.pause.release_at = None
    ctx.state.lifecycle.ending.reason, ctx.state.lifecycle.ending.text = (
        RunReason.USER_REQUEST,
        event.reason or "stopped on request",
    )
    return RunReason.USER_REQUEST, event.reason or "finishing the open train step first"


_BEGIN: dict[Verb, Callable[[Context, RunVerb], tuple[RunReason, str]]] = {
    Verb.START: _begin_start,
    Verb.RETRY: _begin_retry,
    Verb.RESUME: _begin_resume,
    Verb.PAUSE: _begin_pause,
    Verb.STOP: _begin_stop,
}
"""What a verb that does not end the run does at once; returns the reason of the status it leads to."""


def fail(ctx: Context, reason: RunReason, text: str) -> None:
    """End the run now because it cannot go on. `text` says what happened and what to do next."""
    _abort(ctx, RunStatus.FAILED, reason, text)


def _abort(ctx: Context, to: RunStatus, reason: RunReason, text: str) -> None:
    state = ctx.state
    state.lifecycle.epoch += 1
    _withdraw_all(ctx)
    in_doubt = _steps_in_doubt(state)
    state.lifecycle.ending.uncertain_rows = {name: (rows, tokens) for name, (rows, tokens, _) in in_doubt.items()}
    state.lifecycle.ending.uncertain_replayed = {name: again for name, (_, _, again) in in_doubt.items() if again}
    pausing.freeze(ctx)
    state.lifecycle.pause = PauseState(since=ctx.now)
    state.cohorts.clear()
    state.evaluation = None
    for policy in state.policies.values():
        policy.carry = None
    pausing.release_all(ctx)
    _enter(ctx, to, reason, text)


def _withdraw_all(ctx: Context) -> None:
    for key in [key for key, o in ctx.state.outstanding.items() if o.kind != "host_lease"]:
        ctx.withdraw(key)


def _steps_in_doubt(state: RunState) -> dict[str, tuple[int, int, int]]:
    """Rows, tokens and replayed rows of the steps whose commit may be on its way here, by policy: of all that may have
    been asked."""
    if state.cohort is None:
        return {}
    return {
        name: (
            sum(one.new_rows for one in part),
            sum(one.new_tokens for one in part),
            sum(one.rows for one in part if one.replayed),
        )
        for name, own in state.cohort.policies.items()
        if not own.stepped and (part := gathered(own))
    }


def advance(ctx: Context) -> None:
    """Take the run as far as what is known now allows: end the cohort, begin the next, pause, finish."""
    state = ctx.state
    if state.lifecycle.status is RunStatus.PAUSED:
        pausing.give_back_when_due(ctx)
        return
    if state.lifecycle.status in (RunStatus.STARTING, RunStatus.RESUMING) and pausing.ready(ctx):
        move(ctx, RunStatus.RUNNING)
        pausing.go_on(ctx)
    elif state.lifecycle.status in _GOES_ON and state.lifecycle.pause.frozen and pausing.ready(ctx):
        pausing.go_on(ctx)
    if state.lifecycle.status is RunStatus.RUNNING:
        _check_budget(ctx)
    settle_with_enough(ctx)
    _after_step(ctx)
    if state.lifecycle.status is RunStatus.PAUSING:
        _finish_pausing(ctx)
    if state.lifecycle.status is RunStatus.RUNNING:
        _continue(ctx)
    if state.lifecycle.status is RunStatus.STOPPING and not state.cohorts:
        _finish(ctx)


def _finish_pausing(ctx: Context) -> None:
    """Pause where nothing is under way. A drained run that may lose its devices is exported first."""
    state = ctx.state
    if not pausing.may_pause(ctx):
        return
    if state.lifecycle.pause.hold_s is not None and not state.lifecycle.pause.frozen and _unexported(state):
        _want_last_checkpoint(ctx)
        return
    move(ctx, RunStatus.PAUSED, RunReason.USER_REQUEST, pausing.paused_text(ctx))
    pausing.enter_pause(ctx)


def _unexported(state: RunState) -> bool:
    return state.step > 0 and state.history.checkpoint_step != state.step


def _check_budget(ctx: Context) -> None:
    """Begin to stop when there is a reason to. The open cohort is finished either way."""
    state, budget = ctx.state, ctx.plan.spec.budget
    found = target_reached(ctx)
    limit = time_limit(ctx)
    if found is None and limit is not None and ctx.now >= limit:
        found = RunReason.BUDGET_TIME, f"the time limit of {budget.seconds:g} s is reached"
    if found is None and only_evaluates(ctx):
        if state.history.eval_step == state.step and state.history.eval_last is None:
            fail(ctx, RunReason.EPISODES_FAILED, nothing_finished(ctx))
            return
        if state.history.eval_step == state.step:
            found = RunReason.BUDGET_STEPS, "every task of the evaluation is played"
    elif found is None and not state.cohorts and state.step >= budget.train_steps:
        found = RunReason.BUDGET_STEPS, f"all {budget.train_steps} train steps are done"
    if found is not None:
        verb_requests.forget(ctx)
        state.lifecycle.ending.reason, state.lifecycle.ending.text = found
        move(ctx, RunStatus.STOPPING, *found)


def time_limit(ctx: Context) -> float | None:
    """Return when the run's time is over, None when it has no limit or has not begun."""
    seconds, began = ctx.plan.spec.budget.seconds, ctx.state.past_cohorts.first_opened_at
    return None if seconds is None or began is None else began + seconds


def books_due(state: RunState) -> bool:
    """Tell whether the oldest cohort has made its last step and is not counted yet."""
    return _made(state.cohort) and state.cohort is not None and state.cohort.times.stepped_at is None


def _made(cohort: Cohort | None) -> bool:
    if cohort is None or cohort.times.settled_at is None:
        return False
    return all(own.stepped for own in cohort.policies.values())


def _after_step(ctx: Context) -> None:
    """Close the books of a cohort: once when every policy has stepped, once when the new weights are served."""
    state, cohort = ctx.state, ctx.state.cohort
    if cohort is None or not _made(cohort):
        return
    if cohort.times.stepped_at is None:
        cohort.times.stepped_at = ctx.now
        state.step += 1
        state.fleet.replacements = 0
        step_metrics(ctx, cohort)
        every = ctx.plan.spec.checkpoints.every_steps
        if state.step % every == 0:
            _want_last_checkpoint(ctx)
        found = starved(ctx)
        if found is not None:
            fail(ctx, *found)
            return
    # Nobody plays with the new weights after a stop on request, so nobody waits for them either.
    leaving = state.lifecycle.status is RunStatus.STOPPING and state.lifecycle.ending.reason is RunReason.USER_REQUEST
    if (served(ctx) and (state.evaluation is None or overlaps(ctx))) or leaving or ctx.plan.lag.bounded:
        publish_metrics(ctx, cohort)
        measure_step(ctx, cohort, state.history.step_seconds[-1])
        measure_window(ctx, cohort)
        close_cohort(ctx, cohort)
        if (
            state.cohorts
            and state.lifecycle.status is RunStatus.RUNNING
            and evaluation_due(ctx)
            and not ctx.plan.lag.bounded
        ):
            open_evaluation(ctx)
        if state.lifecycle.status is RunStatus.RUNNING:
            _check_budget(ctx)


def _want_last_checkpoint(ctx: Context) -> None:
    state = ctx.state
    state.checkpoints["last"] = WantedCheckpoint("last", state.step, state.vector())
    state.history.checkpoint_step = state.step


def _continue(ctx: Context) -> None:
    """Begin the next cohort, and the evaluation of the committed vector beside it. First, what moves takes over."""
    state = ctx.state
    if not engines_turn(ctx):
        return
    if state.cohorts:
        if top_up(ctx):
            settle_with_enough(ctx)
        # A lease that is to move does so between two cohorts: none may overlap until it has.
        if not moving_text(ctx) and may_overlap(ctx):
            open_cohort(ctx, coming_vector(ctx))
        if ctx.plan.lag.bounded and evaluation_due(ctx) and served(ctx):
            open_evaluation(ctx)
        return
    if state.lifecycle.pause.frozen or not (hand_over(ctx) and served(ctx)):
        return
    if not only_evaluates(ctx):
        open_cohort(ctx, next_vector(ctx))
    if evaluation_due(ctx):
        open_evaluation(ctx)


def _finish(ctx: Context) -> None:
    """Evaluate the last vector where it is news, export it, then end."""
    state = ctx.state
    if state.evaluation is not None:
        return
    by_user = state.lifecycle.ending.reason is RunReason.USER_REQUEST
    if state.lifecycle.ending.reason in _EVALUATED_AT_END and evaluation_due(ctx, final=True):
        if served(ctx):
            open_evaluation(ctx)
        return
    if _unexported(state):
        _want_last_checkpoint(ctx)
    if state.checkpoints:
        return
    _withdraw_all(ctx)
    pausing.release_all(ctx)
    state.lifecycle.pause = PauseState(since=ctx.now)
    completed = not by_user or state.step > 0
    move(
        ctx,
        RunStatus.COMPLETED if completed else RunStatus.CANCELLED,
        state.lifecycle.ending.reason,
        state.lifecycle.ending.text,
    )
