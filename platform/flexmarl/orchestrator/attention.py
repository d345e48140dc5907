"""Which parts of the core a fact can concern. Most facts of a large run concern one engine or one policy.

Invariants: a short way decides exactly what looking at everything would decide; whether one is taken follows from the
state and the fact alone, so a core restored from a snapshot takes the same. Every rule names what its fact changes and
who could want something because of it. A run that is not calm - work held back by a failure, a lease on the move,
a rest - and a fact that no rule speaks of have everything looked at. What is remembered between two calls is read off
the leases, which no short way changes.
"""

from collections.abc import Callable
from typing import Any

from flexmarl.contracts.events import (
    ChildReady,
    DeviceUse,
    GroupSettled,
    MicroBatchAccumulated,
    PolicyBound,
    StepCommitted,
    WeightsServed,
)
from flexmarl.contracts.rulings import RulingKind
from flexmarl.contracts.status import TERMINAL, RunStatus
from flexmarl.contracts.wire import Origin
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.lifecycle import advance, time_limit
from flexmarl.orchestrator.serving import drive_engine, drive_policy_engines, overlaps
from flexmarl.orchestrator.state import LeaseState
from flexmarl.orchestrator.training import drive_policy, drive_trainer

_UNDER_WAY = frozenset({RunStatus.STARTING, RunStatus.RUNNING, RunStatus.STOPPING})


class Attention:
    """Tells whether a fact was seen to in a short way. Belongs to one core."""

    def __init__(self) -> None:
        self._looked = False
        self._moving = False
        self._trainer: LeaseState | None = None

    def forget(self) -> None:
        """The leases may have changed."""
        self._looked = False

    def seen_to(self, ctx: Context, event: Any) -> bool:
        """Do what the fact leads to, if that is certain to be all. False: look at everything."""
        rule = _RULES.get(type(event))
        if rule is None or not self._calm(ctx):
            return False
        return rule(self, ctx, event)

    def _calm(self, ctx: Context) -> bool:
        state = ctx.state
        if ctx.plan.bounded or ctx.plan.extra_groups:
            return False
        if state.status not in _UNDER_WAY or state.failures or state.rest.frozen:
            return False
        limit = time_limit(ctx)
        if limit is not None and ctx.now >= limit:
            return False
        if not self._looked:
            self._looked = True
            self._moving = any(lease.recalled or lease.replaces for lease in state.leases.values())
            self._trainer = state.trainer()
        return not self._moving

    def on_weights_served(self, ctx: Context, event: WeightsServed) -> bool:
        """One engine holds something: whoever waits for the engines waits for the others as well."""
        waiting = ctx.state.outstanding
        missing = waiting.any_about("load", event.policy) if overlaps(ctx) else waiting.any_of("load")
        lease, policy = ctx.state.leases.get(event.lease_id), ctx.state.policies.get(event.policy)
        if not missing or lease is None or lease.releasing or policy is None:
            return False
        # What an unsettled group pins was loaded before: behind the committed version nothing is missing.
        if lease.incarnation and event.version != policy.version:
            drive_engine(ctx, lease, (event.policy,))
        return True

    def on_accumulated(self, ctx: Context, event: MicroBatchAccumulated) -> bool:
        """One policy's gradient grew: its own next micro-batch or step may be due."""
        cohort, trainer = ctx.state.cohort, self._trainer
        if cohort is None or trainer is None or overlaps(ctx):
            return False
        own = cohort.policies.get(event.policy)
        if own is None or own.stepped:
            return False
        drive_policy(ctx, trainer, cohort, event.policy)
        return not own.stepped

    def on_group_settled(self, ctx: Context, event: GroupSettled) -> bool:
        """One more group of a cohort that plays on: only what was cut of it concerns the trainer."""
        head = ctx.state.cohort
        plain = ctx.plan.spec.mechanisms.redundancy.type == "none" and not overlaps(ctx)
        if event.origin is not Origin.TRAIN or not plain or head is None or head.settled_at is not None:
            return False
        if any(ruling.kind is RulingKind.COHORT_SETTLED for ruling in ctx.rulings):
            return False
        if ctx.commands or ctx.rulings:
            drive_trainer(ctx)
        return True

    def on_step_committed(self, ctx: Context, event: StepCommitted) -> bool:
        """One policy has a new version: its engines and its own next gradients."""
        cohort, trainer, policy = ctx.state.cohort, self._trainer, ctx.state.policies.get(event.policy)
        if cohort is None or trainer is None or policy is None or overlaps(ctx) or not policy.accumulator:
            return False
        own = cohort.policies.get(event.policy)
        if own is None:
            return False
        if all(part.stepped for part in cohort.policies.values()):
            if ctx.state.status is not RunStatus.RUNNING:
                return False
            # The books of the step are closed; the cohort itself ends only when the engines hold the new version.
            advance(ctx)
            if ctx.state.status is not RunStatus.RUNNING or ctx.state.cohort is not cohort:
                return ctx.state.status in TERMINAL
        else:
            drive_policy(ctx, trainer, cohort, event.policy)
            if all(part.stepped for part in cohort.policies.values()):
                return False
        drive_policy_engines(ctx, event.policy)
        if ctx.state.checkpoints:
            drive_trainer(ctx)
        return True

    def on_policy_bound(self, ctx: Context, event: PolicyBound) -> bool:
        """While others are not bound, a run that starts waits for them."""
        policy = ctx.state.policies.get(event.policy)
        starting = ctx.state.status is RunStatus.STARTING and not ctx.state.cohorts and ctx.state.evaluation is None
        if policy is None or not policy.accumulator or not starting or not ctx.state.outstanding.any_of("bind"):
            return False
        drive_policy_engines(ctx, event.policy)
        return True

    def on_child_ready(self, ctx: Context, event: ChildReady) -> bool:
        """While others are not ready, a run that starts waits for them; an engine takes what exists."""
        lease = ctx.state.leases.get(event.lease_id)
        starting = ctx.state.status is RunStatus.STARTING and not ctx.state.cohorts
        if not starting or "devices" in ctx.state.outstanding or not ctx.state.outstanding.any_of("host"):
            return False
        if lease is None or lease.use is not DeviceUse.ENGINE or not lease.incarnation or lease.releasing:
            return False
        drive_engine(ctx, lease, tuple(name for name, own in ctx.state.policies.items() if own.version is not None))
        return True


_RULES: dict[type[Any], Callable[[Attention, Context, Any], bool]] = {
    WeightsServed: Attention.on_weights_served,
    MicroBatchAccumulated: Attention.on_accumulated,
    GroupSettled: Attention.on_group_settled,
    StepCommitted: Attention.on_step_committed,
    PolicyBound: Attention.on_policy_bound,
    ChildReady: Attention.on_child_ready,
}
