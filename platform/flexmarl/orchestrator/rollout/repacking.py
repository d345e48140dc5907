"""When engines that serve one version at a time are emptied into others, by what rollout workers last told of them.

Invariants: what is decided by is younger than the last look and than what the engine was given last; engines are
emptied only while groups wait for an engine that is free. An engine that is emptied plays nothing from that moment on:
its groups count as those of the engine that goes on with them.
"""

from collections.abc import Sequence

from flexmarl.algorithms.movers import Handover, Serving, checked_handovers
from flexmarl.contracts.rulings import RulingKind
from flexmarl.contracts.status import RunStatus
from flexmarl.orchestrator.allocation.held_weights import dismiss
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.state.fleet import LeaseState

SEEN_S = 2.0
"""A report that came so long after something was moved or given tells of engines that have it."""


def repack_engines(ctx: Context, working: Sequence[LeaseState]) -> None:
    """Empty the engines that others can go on for, if it is time."""
    state, every_s = ctx.state, ctx.plan.mover.options.repack_every_s
    if (
        every_s is None
        or state.lifecycle.status is not RunStatus.RUNNING
        or state.lifecycle.pause.frozen
        or not _due(ctx, every_s)
    ):
        return
    state.fleet.repacked.at, state.fleet.repacked.step = ctx.now, state.step
    if not any(draw not in cohort.older for cohort in state.cohorts for draw in cohort.open):
        return  # whoever became free would have nothing to do
    by_lease = {lease.lease_id: lease for lease in working}
    seen = [_serving(ctx, lease) for lease in working if _ramps_down(ctx, lease)]
    for handover in checked_handovers(ctx.plan.mover.handovers(seen), seen):
        _carry_out(ctx, by_lease, handover)


def _due(ctx: Context, every_s: float) -> bool:
    """Tell whether it is time: a while after the last look, or since an update was committed, and there is news."""
    state, waited = ctx.state, ctx.now - ctx.state.fleet.repacked.at
    if waited < every_s and (state.step == state.fleet.repacked.step or waited < SEEN_S):
        return False
    reported = state.fleet.demand.oldest_report(ctx.now)
    return reported is not None and reported >= state.fleet.repacked.at + SEEN_S


def _ramps_down(ctx: Context, lease: LeaseState) -> bool:
    """Tell whether an engine plays, takes nothing new, and was reported since it was given what it has."""
    reported = ctx.state.fleet.demand.oldest_report(ctx.now)
    if not lease.assigned.draws or not lease.child.incarnation or lease.weights.leaving or reported is None:
        return False
    return reported >= lease.assigned.given_at + SEEN_S and lease.weights.held.keys() == ctx.state.policies.keys()


def _serving(ctx: Context, lease: LeaseState) -> Serving:
    demand = ctx.state.fleet.demand
    waiting = demand.queued(lease.lease_id)
    # An episode between two turns asks nothing, and its group is played nonetheless.
    running = max(demand.depth(lease.lease_id) - waiting, len(lease.assigned.draws))
    return Serving(
        engine=lease.lease_id,
        version=tuple(sorted(lease.weights.held.items())),
        running=running,
        waiting=waiting,
        tokens=demand.cached(lease.lease_id),
    )


def _carry_out(ctx: Context, by_lease: dict[int, LeaseState], handover: Handover) -> None:
    source, destination = by_lease[handover.source], by_lease[handover.destination]
    depth, groups = ctx.state.fleet.demand.depth(handover.source), len(source.assigned.draws)
    destination.assigned.draws += source.assigned.draws
    destination.assigned.given_at = ctx.now
    source.assigned.draws = []
    source.assigned.continued_by = handover.destination
    version = ", ".join(f"{name} v{version}" for name, version in sorted(source.weights.held.items()))
    for name in list(source.weights.held):
        dismiss(ctx, source, name)
    ctx.rule(
        RulingKind.ENGINE_EMPTIED,
        f"{source.device_id} has {depth} replies of {groups} groups left under {version}: they continue at "
        f"{destination.device_id}, {handover.reason}",
        target=f"lease:{source.lease_id}",
        cause="repack",
    )
