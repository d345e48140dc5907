"""Attempts: the continuous stretches of a run.

Invariants: attempts are numbered from 1 without a gap; at most one is open, and it is the last. One begins when the
run asks for devices while none is open: at a start, at a retry, and when it goes on after it gave its devices back.
It ends with the run, or when the devices go back. A retry raises the epoch, since nothing of the attempt before it
counts any more but its committed versions; a resumed run keeps its epoch and everything that settled.
"""

from flexmarl.contracts.attempts import AttemptBegan, AttemptEnded
from flexmarl.contracts.events import Verb
from flexmarl.contracts.status import RunReason
from flexmarl.orchestrator.context import Context


def begin(ctx: Context) -> None:
    """Open an attempt unless one is open."""
    state = ctx.state
    if state.lifecycle.attempt.open:
        return
    state.lifecycle.attempt.no += 1
    state.lifecycle.attempt.open = True
    requested = state.lifecycle.requested_verb
    verb, actor, cause = (
        (Verb.START, "", "") if requested is None else (requested.verb, requested.actor, requested.cause)
    )
    ctx.attempts.append(AttemptBegan(state.lifecycle.attempt.no, state.lifecycle.epoch, verb, actor, state.step))
    if state.lifecycle.attempt.no > 1:
        text = f"attempt {state.lifecycle.attempt.no} begins after step {state.step}"
        ctx.note(text, actor=actor, target=f"attempt:{state.lifecycle.attempt.no}", cause=cause)


def end(ctx: Context, reason: RunReason, text: str, actor: str = "") -> None:
    """Close the open attempt, if there is one."""
    state = ctx.state
    if not state.lifecycle.attempt.open:
        return
    state.lifecycle.attempt.open = False
    versions = {name: policy.version for name, policy in state.policies.items() if policy.version is not None}
    ctx.attempts.append(
        AttemptEnded(state.lifecycle.attempt.no, state.lifecycle.status, reason, text, actor, state.step, versions)
    )


def renew(ctx: Context) -> None:
    """Make an ended run ready to go on from its committed versions. Its open cohort was dropped when it ended.

    The next cohort takes the number of the dropped one: it is the same train step, played anew.
    """
    state = ctx.state
    state.lifecycle.epoch += 1
    state.numbers.cohort = state.step
    state.lifecycle.ending.reason, state.lifecycle.ending.text = RunReason.NONE, ""
    state.fleet.replacements = state.past_cohorts.empty_in_a_row = 0
    state.failures.clear()
    state.lifecycle.ending.uncertain_rows.clear()
    state.lifecycle.ending.uncertain_replayed.clear()
    state.archive.clear()
    state.choice.successes.clear()
    state.choice.prefixes.waiting.clear()
    state.history.archive.clear()
    state.history.imported.clear()
