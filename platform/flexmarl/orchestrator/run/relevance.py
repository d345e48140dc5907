"""Which parts of the core a fact can concern. Most facts of a large run concern one engine or one policy.

Invariants: a short way decides exactly what looking at everything would decide, so a core that remembers nothing - one
restored from a snapshot - decides the same. Every rule names what its fact changes and who could want something because
of it. A run that is not calm - work that failed may be tried again, a lease is on the move, the run rests, a cohort or
an evaluation may begin or end - and a fact that no rule speaks of have everything looked at. What is remembered between
two calls is read off the state after such a look, and no short way changes it.
"""

from collections.abc import Callable
from math import inf
from typing import Any

from flexmarl.contracts.events import (
    CheckpointWritten,
    ChildLost,
    ChildReady,
    CommandFailed,
    DeviceUse,
    Event,
    GroupSettled,
    MicroBatchAccumulated,
    PolicyBound,
    StepCommitted,
    TimerFired,
    WeightsServed,
)
from flexmarl.contracts.rulings import RulingKind
from flexmarl.contracts.status import TERMINAL, RunStatus
from flexmarl.contracts.wire import Origin
from flexmarl.orchestrator.allocation.binding import bound_to
from flexmarl.orchestrator.cohorts.admission import may_start
from flexmarl.orchestrator.cohorts.credit import missing
from flexmarl.orchestrator.cohorts.redundancy import enough
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.rollout.one_version import drive_one_version
from flexmarl.orchestrator.run.elasticity import resize_due
from flexmarl.orchestrator.run.lifecycle import advance, time_limit
from flexmarl.orchestrator.serving.requested import RequestedVersions
from flexmarl.orchestrator.serving.weight_sync import drive_engines, overlaps, served
from flexmarl.orchestrator.state.cohort import Cohort
from flexmarl.orchestrator.training.evaluation import evaluation_due
from flexmarl.orchestrator.training.trainers import drive_policy, drive_trainer

_UNDER_WAY = frozenset({RunStatus.STARTING, RunStatus.RUNNING, RunStatus.STOPPING})
_OF_KNOWN_ENGINES: frozenset[type[Any]] = frozenset(
    {
        WeightsServed,
        ChildReady,
        ChildLost,
        GroupSettled,
        MicroBatchAccumulated,
        StepCommitted,
        PolicyBound,
        CheckpointWritten,
        CommandFailed,
        TimerFired,
    }
)
"""Facts after which what engines were told still holds, but for the lease that the fact names and loads that failed."""


class Relevance:
    """Decides by its kind whether an event needs all parts of the core or a few. Belongs to one core."""

    def __init__(self) -> None:
        self._looked = False
        self._moving = False
        self._begins = False
        self._due: float | None = None
        self._requested = RequestedVersions()
        self._remembers = False

    def looked(self, ctx: Context) -> None:
        """Everything was looked at: the leases may have changed, and what may begin; what failed waits until a time."""
        self._looked = False
        waits = (failure.until for failure in ctx.state.failures.values() if failure.until > ctx.now)
        self._due = min(waits, default=inf)

    def seen_to(self, ctx: Context, event: Event) -> bool:
        """Do what the fact leads to, if that is certain to be all. False: look at everything."""
        # Where engines have places to give away, any fact may be the one that a place waits for; where they serve one
        # version, the one that makes an engine free.
        known = type(event) in _OF_KNOWN_ENGINES and not ctx.plan.trainers.colocated
        self._remembers = known and ctx.plan.engines.places is None and not ctx.plan.engines.one_version
        if not self._remembers:
            self._requested.forget()
        rule = _RULES.get(type(event))
        if (
            rule is None
            or ctx.plan.engines.places is not None
            or ctx.plan.engines.one_version
            or ctx.plan.trainers.allocates
        ):
            return False
        if not self._calm(ctx):
            return False
        return rule(self, ctx, event) and not resize_due(ctx)

    def drive_engines(self, ctx: Context, event: Event) -> None:
        """Tell each engine what to hold: all of it, or what is new since they were told last."""
        if ctx.plan.engines.one_version:
            drive_one_version(ctx)
        elif self._remembers:
            self._requested.all(ctx, getattr(event, "lease_id", 0))
        else:
            drive_engines(ctx)

    def _holds_back(self, ctx: Context) -> bool:
        """Tell whether nothing that failed may be tried again now that could not be at the last look."""
        return not ctx.state.failures or (self._due is not None and ctx.now < self._due)

    def _calm(self, ctx: Context) -> bool:
        state = ctx.state
        if state.lifecycle.status not in _UNDER_WAY or state.lifecycle.pause.frozen or not self._holds_back(ctx):
            return False
        limit = time_limit(ctx)
        if limit is not None and ctx.now >= limit:
            return False
        if not self._looked:
            self._looked = True
            self._moving = any(
                lease.recalled or lease.membership != "member" or (lease.replaces and state.fleet.stands_by(lease))
                for lease in state.fleet.leases.values()
            )
            self._begins = _may_begin(ctx)
        return not (self._moving or self._begins)

    def on_weights_served(self, ctx: Context, event: WeightsServed) -> bool:
        """One engine holds something: whoever waits for the engines waits for the others as well."""
        waiting = ctx.state.outstanding
        lease, policy = ctx.state.fleet.leases.get(event.lease_id), ctx.state.policies.get(event.policy)
        if lease is None or lease.releasing or policy is None:
            return False
        # Side by side with an older version, only a load of the committed one says that it is missing somewhere.
        missing = waiting.any_for("load", event.policy, policy.version) if overlaps(ctx) else waiting.any_of("load")
        if not missing:
            return False
        self._requested.served(ctx, event.lease_id, event.policy)
        return True

    def on_accumulated(self, ctx: Context, event: MicroBatchAccumulated) -> bool:
        """One policy's gradient grew: its own next micro-batch or step may be due, or surplus may join no more."""
        cohort = ctx.state.cohort
        if cohort is None or _has_enough(ctx):
            return False
        own = cohort.policies.get(event.policy)
        if own is None:
            return False
        if own.stepped or event.accumulator != ctx.state.policies[event.policy].accumulator:
            return True  # too late: it changed nothing. A trainer that dies leaves thousands of these behind
        return bound_to(ctx.state, event.policy) is not None and self._train_on(ctx, cohort, event.policy)

    def _train_on(self, ctx: Context, cohort: Cohort, name: str) -> bool:
        """Hand over what one policy can do now. False: a policy had nothing to step on, which others may wait for."""
        # In a wavefront the policies take turns: what one has done is what the next waits for.
        if ctx.plan.spec.mechanisms.publication.type == "wavefront":
            before = _stepped(cohort)
            drive_trainer(ctx)
            return _stepped(cohort) == before
        own = cohort.policies[name]
        stepped = own.stepped
        drive_policy(ctx, cohort, name)
        return own.stepped == stepped

    def on_group_settled(self, ctx: Context, event: GroupSettled) -> bool:
        """One more group of a cohort that plays on: only what was cut of it concerns the trainer."""
        if event.origin is not Origin.TRAIN:
            return ctx.state.evaluation is not None
        head = ctx.state.cohort
        if head is None or _has_enough(ctx) or missing(ctx):
            return False
        if any(ruling.kind is RulingKind.COHORT_SETTLED for ruling in ctx.rulings):
            return False
        if ctx.commands or ctx.rulings:
            drive_trainer(ctx)
        if ctx.plan.spec.mechanisms.redundancy.goes_on:
            # It may have been the last that played under an older vector, which the engines then need not keep.
            self.drive_engines(ctx, event)
        return True

    def on_step_committed(self, ctx: Context, event: StepCommitted) -> bool:
        """One policy has a new version: its engines and its own next gradients."""
        cohort = ctx.state.cohort
        own = cohort.policies.get(event.policy) if cohort is not None else None
        if cohort is None or own is None or bound_to(ctx.state, event.policy) is None:
            return False
        if _stepped(cohort) < len(cohort.policies):
            if not self._train_on(ctx, cohort, event.policy) or _has_enough(ctx):
                return False
        elif not self._books_closed(ctx, cohort):
            return False
        if ctx.state.lifecycle.status in TERMINAL:
            return True
        self._requested.policy(ctx, event.policy)
        if ctx.state.checkpoints:
            drive_trainer(ctx)
        return True

    def _books_closed(self, ctx: Context, cohort: Cohort) -> bool:
        """Close the books of a step; the cohort itself ends only when the engines hold the new version."""
        if ctx.state.lifecycle.status is not RunStatus.RUNNING or overlaps(ctx):
            return False
        advance(ctx)
        going_on = ctx.state.lifecycle.status is RunStatus.RUNNING and ctx.state.cohort is cohort
        return going_on or ctx.state.lifecycle.status in TERMINAL

    def on_policy_bound(self, ctx: Context, event: PolicyBound) -> bool:
        """While others are not bound, a run that starts waits for them; one under way takes its gradients up again."""
        policy = ctx.state.policies.get(event.policy)
        if ctx.state.lifecycle.status is RunStatus.RUNNING:
            return self._taken_up(ctx, event.policy)
        starting = (
            ctx.state.lifecycle.status is RunStatus.STARTING and not ctx.state.cohorts and ctx.state.evaluation is None
        )
        if policy is None or not policy.accumulator or not starting or not ctx.state.outstanding.any_of("bind"):
            return False
        self._requested.policy(ctx, event.policy)
        return True

    def _taken_up(self, ctx: Context, name: str) -> bool:
        cohort = ctx.state.cohort
        if cohort is None or name not in cohort.policies or bound_to(ctx.state, name) is None:
            return False
        if not self._train_on(ctx, cohort, name):
            return False
        if ctx.state.checkpoints:
            drive_trainer(ctx)
        return True

    def on_child_ready(self, ctx: Context, event: ChildReady) -> bool:
        """While others are not ready, a run that starts waits for them; an engine takes what exists."""
        lease = ctx.state.fleet.leases.get(event.lease_id)
        starting = ctx.state.lifecycle.status is RunStatus.STARTING and not ctx.state.cohorts
        if not starting or "devices" in ctx.state.outstanding or not ctx.state.outstanding.any_of("host"):
            return False
        if lease is None or lease.use is not DeviceUse.ENGINE or not lease.child.incarnation or lease.releasing:
            return False
        self._requested.all(ctx, event.lease_id)
        return True

    def on_checkpoint_written(self, ctx: Context, event: CheckpointWritten) -> bool:
        """A newer vector of the same label may be wanted already; only a run that ends waits for the last of them."""
        if ctx.state.lifecycle.status is not RunStatus.RUNNING:
            return False
        drive_trainer(ctx)
        return True


def _may_begin(ctx: Context) -> bool:
    """Tell whether a cohort could be settled with what it has, or one or an evaluation be opened under a bound.

    If not, the run waits for steps, for groups or for engines; no short way brings the last of them.
    """
    if not ctx.state.cohorts:
        return False
    if _has_enough(ctx):
        return True
    if not ctx.plan.lag.bounded or ctx.state.lifecycle.status is not RunStatus.RUNNING:
        return False
    return bool(missing(ctx)) or may_start(ctx).allowed or (evaluation_due(ctx) and served(ctx))


def _has_enough(ctx: Context) -> bool:
    """Tell whether any cohort may be settled although groups of it still play."""
    return ctx.plan.cohort.extra_groups > 0 and any(cohort.open and enough(ctx, cohort) for cohort in ctx.state.cohorts)


def _stepped(cohort: Cohort) -> int:
    return sum(part.stepped for part in cohort.policies.values())


_RULES: dict[type[Any], Callable[[Relevance, Context, Any], bool]] = {
    WeightsServed: Relevance.on_weights_served,
    MicroBatchAccumulated: Relevance.on_accumulated,
    GroupSettled: Relevance.on_group_settled,
    StepCommitted: Relevance.on_step_committed,
    PolicyBound: Relevance.on_policy_bound,
    ChildReady: Relevance.on_child_ready,
    CheckpointWritten: Relevance.on_checkpoint_written,
}
