"""The core's one entry: `handle(event, now) -> Decision`.

Invariants: no input but the specification, the state, the event and `now`; equal logs give equal decisions. A fact
that is late, repeated or of another life changes nothing. Each call applies the fact through the dispatch table and
then lets every part state what it wants now (`drive_*`, `advance`), so the order in which facts arrive does not
matter for what happens in the end.
"""

from collections.abc import Callable
from typing import Any

from flexmarl.contracts.commands import COMMAND_KINDS
from flexmarl.contracts.events import (
    CheckpointWritten,
    ChildLost,
    ChildReady,
    CommandFailed,
    DemandReported,
    DevicesGranted,
    DeviceUse,
    EngineSlept,
    EngineWoke,
    Event,
    GangRecalled,
    GroupSettled,
    LeaseEnded,
    LeaseRecalled,
    MicroBatchAccumulated,
    PolicyBound,
    PolicySuspended,
    PolicyUnloaded,
    PoolsChanged,
    RankJoined,
    RunGivenUp,
    RunVerb,
    StepCommitted,
    SurplusRecalled,
    TimerFired,
    TrainerVacated,
    WeightsServed,
)
from flexmarl.contracts.imported_rows import RowsImported
from flexmarl.contracts.live import Progress
from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.contracts.status import TERMINAL, WAITING_OUTSIDE, RunReason, RunStatus
from flexmarl.contracts.wire import Origin
from flexmarl.orchestrator.allocation.binding import on_policy_suspended, on_rank_joined
from flexmarl.orchestrator.allocation.paused_surplus import hold_surplus
from flexmarl.orchestrator.allocation.shared_devices import on_engine_slept, on_engine_woke, on_trainer_vacated
from flexmarl.orchestrator.cohorts.cohorts import on_train_group
from flexmarl.orchestrator.cohorts.replay import on_rows_imported
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.plan import make_plan
from flexmarl.orchestrator.pool.device_requests import on_pools_changed
from flexmarl.orchestrator.rollout.group_commands import drive_rollout
from flexmarl.orchestrator.run import progress as progress_view
from flexmarl.orchestrator.run.elasticity import drive_growth, drive_leaving, drive_membership, on_surplus_recalled
from flexmarl.orchestrator.run.invariants import check_touched, check_turn
from flexmarl.orchestrator.run.lease_recalls import drive_moves, moving_text, on_lease_recalled
from flexmarl.orchestrator.run.lifecycle import advance, books_due, fail, on_verb, time_limit
from flexmarl.orchestrator.run.pausing import on_gang_recalled, still, take_late_group
from flexmarl.orchestrator.run.recovery import (
    drive_devices,
    drive_hosts,
    on_child_lost,
    on_child_ready,
    on_command_failed,
    on_devices_granted,
    on_lease_ended,
)
from flexmarl.orchestrator.run.relevance import Relevance
from flexmarl.orchestrator.serving.placement import drive_placing, on_demand_reported, on_policy_unloaded
from flexmarl.orchestrator.serving.weight_sync import on_weights_served
from flexmarl.orchestrator.state.policy import PolicyState
from flexmarl.orchestrator.state.snapshots import decode, encode
from flexmarl.orchestrator.state.tree import RunState
from flexmarl.orchestrator.training.evaluation import on_evaluation_group
from flexmarl.orchestrator.training.trainers import (
    drive_trainer,
    on_accumulated,
    on_checkpoint_written,
    on_policy_bound,
    on_step_committed,
)
from flexmarl.orchestrator.types import Decision


def _on_group(ctx: Context, event: GroupSettled) -> None:
    if event.epoch == ctx.state.lifecycle.epoch:
        take_late_group(ctx, event)
        (on_train_group if event.origin is Origin.TRAIN else on_evaluation_group)(ctx, event)


def _on_answered(ctx: Context, event: Any) -> None:
    """Close the command that a fact answers by its number: nothing else is known of it. One of earlier is none."""
    key = ctx.state.outstanding.key_of(event.command_no)
    if key is not None:
        ctx.answered(key)


def _on_given_up(ctx: Context, event: RunGivenUp) -> None:
    """End the run because the driver cannot go on with it; one that has ended stays as it is."""
    if ctx.state.lifecycle.status not in _IDLE:
        fail(ctx, RunReason(event.cause), event.text)


def _on_timer(ctx: Context, event: TimerFired) -> None:
    """Nothing of its own: every call looks at the clock."""


_ANSWERS = {about.answer: _on_answered for about in COMMAND_KINDS.values() if about.answered_by_number and about.answer}
HANDLERS: dict[type[Any], Callable[[Context, Any], None]] = {
    **_ANSWERS,  # where a part knows more of the fact, its own handler stands below
    RunVerb: on_verb,
    DevicesGranted: on_devices_granted,
    ChildReady: on_child_ready,
    ChildLost: on_child_lost,
    LeaseEnded: on_lease_ended,
    LeaseRecalled: on_lease_recalled,
    GangRecalled: on_gang_recalled,
    SurplusRecalled: on_surplus_recalled,
    PoolsChanged: on_pools_changed,
    PolicyBound: on_policy_bound,
    PolicySuspended: on_policy_suspended,
    RankJoined: on_rank_joined,
    GroupSettled: _on_group,
    RowsImported: on_rows_imported,
    MicroBatchAccumulated: on_accumulated,
    StepCommitted: on_step_committed,
    WeightsServed: on_weights_served,
    PolicyUnloaded: on_policy_unloaded,
    EngineSlept: on_engine_slept,
    EngineWoke: on_engine_woke,
    TrainerVacated: on_trainer_vacated,
    DemandReported: on_demand_reported,
    CheckpointWritten: on_checkpoint_written,
    CommandFailed: on_command_failed,
    RunGivenUp: _on_given_up,
    TimerFired: _on_timer,
}

_IDLE = TERMINAL | {RunStatus.DRAFT}
_EXPLAINED = frozenset({RunStatus.STARTING, RunStatus.RESUMING, RunStatus.RUNNING, RunStatus.STOPPING})
"""Statuses in which a reason says what the run waits for."""


class Orchestrator:
    """Decides for one run. Single-threaded; the caller keeps every decision or throws the object away."""

    def __init__(
        self, spec: ExperimentSpec, state: RunState | None = None, opening: frozenset[str] | None = None
    ) -> None:
        self.plan = make_plan(spec, opening)
        self.state = state or RunState(policies={name: PolicyState() for name in self.plan.policies})
        self._relevance = Relevance()

    @classmethod
    def restore(cls, spec: ExperimentSpec, snapshot: bytes) -> "Orchestrator":
        """Continue from a snapshot. Raises ValueError when another core wrote it."""
        return cls(spec, decode(snapshot))

    def snapshot(self) -> bytes:
        """Serialise the state as JSON."""
        return encode(self.state)

    def handle(self, event: Event, now: float) -> Decision:
        """Take one fact and decide. `now` never goes back: an earlier one counts as the last.

        Raises AssertionError when what must hold does not hold any more; then this object is of no use.
        """
        state = self.state
        state.now = max(state.now, now)
        ctx = Context(self.plan, state, state.now)
        before = _outline(state)
        HANDLERS[type(event)](ctx, event)
        if state.lifecycle.status not in _IDLE and not self._relevance.seen_to(ctx, event):
            self._drive(ctx, event)
            self._relevance.looked(ctx)
        check_touched(self.plan, state, event, ctx.commands)
        if _outline(state) != before:
            check_turn(self.plan, state)
        return self._decision(ctx)

    @property
    def rollout_pool(self) -> str:
        """Return the pool of the run's engines and rollout workers."""
        return self.state.fleet.pools.rollout or self.plan.spec.resources.rollout_pool

    def progress(self) -> Progress:
        """Read the figures for pages."""
        return progress_view.progress(self.plan, self.state)

    def _drive(self, ctx: Context, event: Event) -> None:
        """Let every part ask for what it wants now. `advance` may open new work, so the parts after it see that."""
        state = self.state
        drive_leaving(ctx)
        if still(state):
            advance(ctx)
            return
        drive_membership(ctx)
        drive_devices(ctx)
        drive_moves(ctx)
        drive_leaving(ctx)
        drive_placing(ctx)
        if state.failures:
            drive_hosts(ctx)
            for parts in (*state.cohorts, state.evaluation):
                if parts is not None and not state.lifecycle.pause.frozen:
                    drive_rollout(ctx, parts)
        before = _footing(ctx)
        drive_trainer(ctx)
        advance(ctx)
        # Trainers that had nothing to do have nothing to do again, if nothing has begun or ended since. What engines
        # are told is nothing to them, unless they share devices.
        again = _footing(ctx) != before or self.plan.trainers.colocated or self.plan.engines.one_version
        while state.lifecycle.status not in _IDLE and not still(state):
            if self.plan.trainers.colocated:
                drive_trainer(ctx)  # what has ended or begun turns the devices over
            self._relevance.drive_engines(ctx, event)
            if again and (state.checkpoints or state.cohorts):
                drive_trainer(ctx)
            _explain(ctx)
            if not books_due(state):
                break
            # A cohort that had nothing to step on brings no fact of its own: nobody would come back to it.
            advance(ctx)
            again = True
        hold_surplus(ctx)
        if state.lifecycle.status not in _IDLE and not still(state):
            drive_growth(ctx)  # behind whatever lets the run begin, go on or stop

    def _decision(self, ctx: Context) -> Decision:
        state = self.state
        return Decision(
            commands=ctx.commands or (),
            void=ctx.void or (),
            metrics=ctx.metrics or (),
            notes=ctx.notes or (),
            status=state.lifecycle.status,
            reason=state.lifecycle.reason,
            reason_text=state.lifecycle.reason_text,
            epoch=state.lifecycle.epoch,
            step=state.step,
            deadline=_deadline(ctx),
            attempts=ctx.attempts or (),
            outcomes=ctx.outcomes or (),
            rulings=ctx.rulings or (),
        )


def _outline(state: RunState) -> tuple[RunStatus, int, int, bool]:
    """Return what changes where something begins or ends."""
    return state.lifecycle.status, state.numbers.cohort, len(state.cohorts), state.evaluation is None


def _footing(ctx: Context) -> tuple[object, ...]:
    """Return what differs after anything was decided, or had come to an end, that trainers could go by."""
    state, head = ctx.state, ctx.state.cohort
    said = len(ctx.commands) + len(ctx.void) + len(ctx.rulings) + len(ctx.notes) + len(ctx.metrics)
    run = (
        said,
        state.lifecycle.status,
        state.lifecycle.pause.frozen,
        state.numbers.cohort,
        len(state.cohorts),
        len(state.checkpoints),
    )
    if head is None:
        return run
    return (
        *run,
        head.no,
        head.times.settled_at,
        head.times.stepped_at,
        sum([own.stepped for own in head.policies.values()]),
    )


def _explain(ctx: Context) -> None:
    """Keep the reason of a run under way true: what it waits for, what recovers, or nothing."""
    state = ctx.state
    if _waits(state):
        return
    working = [*state.fleet.at_work(DeviceUse.ENGINE), *state.fleet.at_work(DeviceUse.TRAINER)]
    if state.lifecycle.status in (RunStatus.STARTING, RunStatus.RESUMING):
        if "devices" in state.outstanding:
            state.lifecycle.reason, state.lifecycle.reason_text = RunReason.WAITING_FOR_DEVICES, "waiting for devices"
        elif all(lease.child.incarnation for lease in working):
            state.lifecycle.reason, state.lifecycle.reason_text = (
                RunReason.BINDING_POLICIES,
                "creating or loading the policies",
            )
        return
    if state.lifecycle.status is not RunStatus.RUNNING:
        return
    gone = next((lease for lease in working if not lease.child.incarnation), None)
    if gone is not None:
        engine = gone.use is DeviceUse.ENGINE
        state.lifecycle.reason = RunReason.RECOVERING_ENGINE if engine else RunReason.RECOVERING_TRAINER
        state.lifecycle.reason_text = f"{gone.use} on {gone.device_id} restarts"
    elif "devices" in state.outstanding:
        text = "waiting for a device to replace a lost one" if working else "waiting for devices again"
        state.lifecycle.reason, state.lifecycle.reason_text = RunReason.WAITING_FOR_DEVICES, text
    elif text := moving_text(ctx):
        state.lifecycle.reason, state.lifecycle.reason_text = RunReason.MOVING, text
    elif state.lifecycle.reason is not RunReason.NONE:
        state.lifecycle.reason, state.lifecycle.reason_text = RunReason.NONE, ""


def _waits(state: RunState) -> bool:
    """Tell whether something of the run waits for a disk or an upload, and let the reason say so, or say so no more."""
    failure = next((failure for failure in state.failures.values() if failure.waits_for), None)
    if failure is not None and state.lifecycle.status in _EXPLAINED:
        state.lifecycle.reason, state.lifecycle.reason_text = failure.waits_reason, failure.waits_for
        return True
    if state.lifecycle.status is RunStatus.STOPPING and state.lifecycle.reason in WAITING_OUTSIDE:
        state.lifecycle.reason, state.lifecycle.reason_text = state.lifecycle.ending.reason, state.lifecycle.ending.text
    return False


def _deadline(ctx: Context) -> float | None:
    """Return the earliest time at which something is to be done without a fact."""
    state = ctx.state
    found: float | None = None
    if state.failures:
        found = min((failure.until for failure in state.failures.values() if failure.until > ctx.now), default=None)
    if state.lifecycle.status is RunStatus.PAUSED:
        return _earlier(found, state.lifecycle.pause.release_at)
    if state.fleet.review_at is not None and state.fleet.review_at > ctx.now:
        found = _earlier(found, state.fleet.review_at)
    if state.fleet.shared.ends_at is not None and state.fleet.shared.ends_at > ctx.now:
        found = _earlier(found, state.fleet.shared.ends_at)
    if state.lifecycle.status is not RunStatus.RUNNING:
        return found
    limit = time_limit(ctx)
    return found if limit is None else _earlier(found, max(limit, ctx.now))


def _earlier(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
