"""Pauses: what a paused run keeps, and how it goes on.

Invariants: a paused run has nothing on its way but the hosting of its leases, so nothing happens to it behind its
back. A frozen run keeps its open cohort: settled groups, cut micro-batches and, as long as the trainer lives, the
accumulated gradients; episodes of unsettled groups count as cancelled and are proposed again, under the same draws,
when it goes on. A group that had settled before the freeze reached its worker is taken after all. Gradients of a
trainer that was given back are accumulated again from the same micro-batches, so nothing is trained twice and nothing
is lost. The clocks of the run stand still while it rests. A run whose part of a gang is recalled freezes in the same
way, without a pause: it goes on by itself when it has a whole gang again.
"""

from collections.abc import Iterator

from flexmarl.contracts.commands import ReleaseLease
from flexmarl.contracts.decisions import NoteLevel
from flexmarl.contracts.events import GangRecalled, GroupSettled, PauseMode, RunVerb
from flexmarl.contracts.status import RunReason, RunStatus
from flexmarl.contracts.wire import Origin
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.pool.device_requests import GANG
from flexmarl.orchestrator.rollout.group_commands import drive_rollout, newly_ended
from flexmarl.orchestrator.run import attempts, verb_requests
from flexmarl.orchestrator.run.children import forget_child
from flexmarl.orchestrator.serving.weight_sync import loaded
from flexmarl.orchestrator.state.cohort import Cohort, EvaluationState, playing
from flexmarl.orchestrator.state.tree import Counters, RunState

_ALWAYS_ON_ITS_WAY = frozenset({"host_lease"})


def still(state: RunState) -> bool:
    """Tell whether nothing new is begun: the run rests, or only waits for what was under way when it froze."""
    return state.lifecycle.status is RunStatus.PAUSED or (
        state.lifecycle.status is RunStatus.PAUSING and state.lifecycle.pause.frozen
    )


def begin_pause(ctx: Context, event: RunVerb) -> str:
    """Take a pause's options; a freeze takes effect here. Returns what happens first, in words."""
    state = ctx.state
    state.lifecycle.pause.hold_s = event.hold_s
    if (
        event.mode is PauseMode.DRAIN
        and state.lifecycle.status is not RunStatus.RESUMING
        and not state.lifecycle.pause.frozen
    ):
        return "finishing the open train step first"
    abandoned = freeze(ctx)
    ctx.withdraw_kind("request_devices")
    if not abandoned:
        return "finishing the current work of the trainer first"
    return f"{abandoned} running episodes abandoned; they are replayed on resume"


def freeze(ctx: Context) -> int:
    """Abandon the unsettled groups for now; returns how many episodes that are."""
    state, abandoned = ctx.state, 0
    if state.lifecycle.pause.frozen:
        return 0
    state.lifecycle.pause.frozen = True
    for parts, counters, members in _parts(ctx):
        count = playing(parts, members, ctx.state.choice.members)
        counters.cancelled += count
        abandoned += count
    ctx.withdraw_kind("play_groups")
    for key in [key for key in state.failures if key.startswith("play:")]:
        del state.failures[key]
    return abandoned


def on_gang_recalled(ctx: Context, event: GangRecalled) -> None:
    """Give back what is held of a gang that cannot be completed; all of it is asked for again, as one gang."""
    waiting = ctx.state.outstanding.get(GANG)
    if waiting is None or waiting.no != event.command_no:
        return
    abandoned = freeze(ctx)
    again = f"; {abandoned} running episodes will be replayed" if abandoned else ""
    ctx.note(f"the run releases all its devices: {event.reason}{again}", NoteLevel.WARNING, target="run")
    ctx.withdraw(GANG)
    ctx.withdraw_kind("request_devices")
    release_all(ctx)


def take_late_group(ctx: Context, event: GroupSettled) -> None:
    """Count a group's episodes as running again that settled before the freeze reached their worker."""
    if not ctx.state.lifecycle.pause.frozen:
        return
    for parts, counters, _ in _parts(ctx):
        if isinstance(parts, Cohort) is (event.origin is Origin.TRAIN) and event.draw in parts.open:
            counters.cancelled -= newly_ended(ctx, parts, event)


def go_on(ctx: Context) -> None:
    """Propose the abandoned groups again, and let the clocks run from where they stood."""
    state, pause = ctx.state, ctx.state.lifecycle.pause
    if pause.since is not None:
        _shift_clocks(state, ctx.now - pause.since)
    pause.since = pause.release_at = None
    if not pause.frozen:
        return
    pause.frozen = False
    for parts, counters, members in _parts(ctx):
        counters.proposed += playing(parts, members, ctx.state.choice.members)
        drive_rollout(ctx, parts)


def _parts(ctx: Context) -> Iterator[tuple[Cohort | EvaluationState, Counters, int]]:
    """What is open, with its counters and the episodes of one draw."""
    state = ctx.state
    for cohort in state.cohorts:
        yield cohort, state.totals.train_episodes, ctx.plan.members_of(cohort.long_round)
    if state.evaluation is not None:
        yield state.evaluation, state.totals.eval_episodes, ctx.plan.spec.evaluation.attempts


def _shift_clocks(state: RunState, gap: float) -> None:
    if state.past_cohorts.first_opened_at is not None:
        state.past_cohorts.first_opened_at += gap
    if state.past_cohorts.last_closed_at is not None:
        state.past_cohorts.last_closed_at += gap
    for cohort in state.cohorts:
        cohort.times.opened_at += gap
        cohort.times.settled_at = None if cohort.times.settled_at is None else cohort.times.settled_at + gap
        cohort.times.stepped_at = None if cohort.times.stepped_at is None else cohort.times.stepped_at + gap
        cohort.times.idle_since = None if cohort.times.idle_since is None else cohort.times.idle_since + gap


def may_pause(ctx: Context) -> bool:
    """Tell whether a pausing run is where it should come to rest."""
    state = ctx.state
    if any(o.kind not in (*_ALWAYS_ON_ITS_WAY, "request_devices") for o in state.outstanding.values()):
        return False
    return state.lifecycle.pause.frozen or (not state.cohorts and state.evaluation is None and not state.checkpoints)


def ready(ctx: Context) -> bool:
    """Tell whether every policy is bound and every engine holds what the next requests will name."""
    return all(policy.accumulator for policy in ctx.state.policies.values()) and loaded(ctx)


def enter_pause(ctx: Context) -> None:
    """Let the clocks stand, and note when the devices go back."""
    pause = ctx.state.lifecycle.pause
    ctx.withdraw_kind("request_devices")
    pause.since = ctx.now if pause.since is None else pause.since
    pause.release_at = None if pause.hold_s is None else ctx.now + pause.hold_s
    give_back_when_due(ctx)


def paused_text(ctx: Context) -> str:
    """Say what a run that comes to rest keeps."""
    hold_s = ctx.state.lifecycle.pause.hold_s
    if hold_s is None:
        return "devices and weights are kept"
    return (
        "weights are kept, devices are released immediately"
        if hold_s == 0
        else f"devices are released after {hold_s:g} s"
    )


def give_back_when_due(ctx: Context) -> None:
    """Give a paused run's devices back when their time is over, or when somebody else wants one of them."""
    state, at = ctx.state, ctx.state.lifecycle.pause.release_at
    held = [lease for lease in state.fleet.leases.values() if not lease.releasing]
    recalled = next((lease for lease in held if lease.recalled), None)
    if recalled is None and (at is None or ctx.now < at):
        return
    why = "" if recalled is None else f": {recalled.recalled}"
    text = f"its devices were released while it paused{why}; resume requests others"
    release_all(ctx)
    state.lifecycle.pause.release_at = None
    state.lifecycle.reason, state.lifecycle.reason_text = RunReason.DEVICES_GIVEN_BACK, text
    actor, cause = verb_requests.requested_by(ctx, state.lifecycle.status)
    ctx.note(f"run is paused: {text}", actor=actor, target="run", cause=cause)
    attempts.end(ctx, RunReason.DEVICES_GIVEN_BACK, text, actor)


def release_all(ctx: Context) -> None:
    """Ask for the end of every lease. What its child held is gone; what was committed is not."""
    for lease in ctx.state.fleet.leases.values():
        if not lease.releasing:
            forget_child(ctx, lease)
            lease.releasing = True
            ctx.emit(ReleaseLease(lease_id=lease.lease_id))
    ctx.state.failures.clear()


def needs_devices(state: RunState) -> bool:
    """Tell whether a run should get devices where it lacks some: one that stops without any may have nothing to do."""
    if state.lifecycle.status is not RunStatus.STOPPING or any(
        not lease.releasing for lease in state.fleet.leases.values()
    ):
        return True
    open_work = bool(state.cohorts) or state.evaluation is not None or bool(state.checkpoints)
    return open_work or (state.step > 0 and state.history.checkpoint_step != state.step)
