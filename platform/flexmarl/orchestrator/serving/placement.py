"""Engines that cannot hold every policy: who has which place, told to them as loads and unloads.

Invariants: an engine is asked to load a policy only while it has a place for it, and what it shall serve no more
leaves first: the registry names it no longer, what runs ends, then the place is free. What a lost child served is
given away anew. A lease that stands by serves what the lease serves that it will replace. Every place that is given
or moved is a ruling with the load that it was decided by.
"""

from flexmarl.algorithms.movers import Move, PolicyDemand, Snapshot, checked, for_waiting
from flexmarl.contracts.commands import UnloadPolicy
from flexmarl.contracts.events import DemandReported, DeviceUse, PolicyUnloaded
from flexmarl.contracts.rulings import RulingKind
from flexmarl.orchestrator.allocation.held_weights import dismiss
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.serving.assignment import engines_of, fill
from flexmarl.orchestrator.serving.weight_sync import lacks, required_versions
from flexmarl.orchestrator.state.demand import mark, mark_waiting
from flexmarl.orchestrator.state.fleet import LeaseState


def on_demand_reported(ctx: Context, event: DemandReported) -> None:
    """Note what a rollout worker asks for; a policy that nobody knows is left out when queues are read."""
    ctx.state.fleet.demand.take(event, ctx.now)


def on_policy_unloaded(ctx: Context, event: PolicyUnloaded) -> None:
    """A place is free."""
    lease = ctx.state.fleet.leases.get(event.lease_id)
    key = f"unload:{event.lease_id}:{event.policy}"
    waiting = ctx.state.outstanding.get(key)
    if (
        lease is None
        or lease.child.incarnation != event.incarnation
        or waiting is None
        or waiting.no != event.command_no
    ):
        return
    lease.weights.leaving.remove(event.policy)
    ctx.answered(key)


def drive_placing(ctx: Context) -> None:
    """Give every place to a policy, move what is to move, and let engines forget what they serve no more."""
    if ctx.plan.engines.places is None:
        return
    _follow_replaced(ctx)
    engines = {x.lease_id: x for x in ctx.state.fleet.at_work(DeviceUse.ENGINE) if x.child.incarnation}
    demand = ctx.state.fleet.demand
    turns = demand.refresh(ctx.plan.policies, ctx.now)
    mark_waiting(demand, turns, _counts(engines), ctx.now)
    if _fill(ctx, engines, turns):
        mark_waiting(demand, turns, _counts(engines), ctx.now)
    _mark_stuck(ctx, engines, turns)
    if engines:
        if demand.waiting:
            for move in for_waiting(_snapshot(ctx, engines, turns)):
                _carry_out(ctx, engines[move.engine], move)
            mark_waiting(demand, turns, _counts(engines), ctx.now)
        _balance(ctx, engines, turns)
    _unload(ctx)


def _counts(engines: dict[int, LeaseState]) -> dict[str, int]:
    return engines_of({lease_id: lease.weights.assigned for lease_id, lease in engines.items()})


def _mark_stuck(ctx: Context, engines: dict[int, LeaseState], turns: dict[str, int]) -> None:
    """Note whose turns all wait for what no engine is to hold now: for a version that others keep out, or to come."""
    demand = ctx.state.fleet.demand
    for name in ctx.plan.policies:
        waits = turns[name] > 0 and not demand.sent(name)
        mark(demand.stuck, name, waits and _loaded(ctx, engines, name), ctx.now)


def _loaded(ctx: Context, engines: dict[int, LeaseState], name: str) -> bool:
    """Tell whether a policy has engines, and each of them holds all that it is to hold of it now."""
    own = [lease for lease in engines.values() if name in lease.weights.assigned]
    pins = required_versions(ctx, (name,)).get(name) if own else None
    return pins is not None and all(lacks(lease, name, pins) is None for lease in own)


def _follow_replaced(ctx: Context) -> None:
    """Let a lease that stands by serve what the lease serves that it will replace."""
    for lease in ctx.state.fleet.of_use(DeviceUse.ENGINE):
        former = ctx.state.fleet.leases.get(lease.replaces)
        if (
            not lease.child.incarnation
            or former is None
            or not former.weights.assigned
            or not ctx.state.fleet.stands_by(lease)
        ):
            continue
        for name in [name for name in lease.weights.assigned if name not in former.weights.assigned]:
            _dismiss(ctx, lease, name)
        lease.weights.assigned += [
            name for name in former.weights.assigned if name not in (*lease.weights.assigned, *lease.weights.leaving)
        ]


def _fill(ctx: Context, engines: dict[int, LeaseState], turns: dict[str, int]) -> bool:
    """Give free places away; tell whether there were any. What an engine is about to forget still has its place."""
    assert ctx.plan.engines.places is not None
    if all(
        len(lease.weights.assigned) + len(lease.weights.leaving) >= ctx.plan.engines.places
        for lease in engines.values()
    ):
        return False
    demand, spec = ctx.state.fleet.demand, ctx.plan.spec
    expected = {name: len(spec.roles_of(name)) + demand.queues.get(name, 0.0) for name in ctx.plan.policies}
    waiting = sorted(demand.waiting, key=lambda name: (demand.waiting[name], name))
    able = {lease_id: [*lease.weights.assigned, *lease.weights.leaving] for lease_id, lease in engines.items()}
    for lease_id, name in fill(able, ctx.plan.engines.places, expected, waiting):
        lease = engines[lease_id]
        lease.weights.assigned.append(name)
        has = sum(name in other.weights.assigned for other in engines.values())
        load = f"{turns[name]} turns are waiting or running" if turns[name] else "no turns now"
        ctx.rule(
            RulingKind.ENGINE_ASSIGNED,
            f"{lease.device_id} has a free slot, which goes to {name}: its engine number {has}, {load}",
            policy=name,
            target=f"lease:{lease_id}",
        )
    return True


def _snapshot(ctx: Context, engines: dict[int, LeaseState], turns: dict[str, int]) -> Snapshot:
    demand = ctx.state.fleet.demand
    policies = {
        name: PolicyDemand(
            turns=turns[name],
            queue=demand.queues.get(name, 0.0),
            load_s=demand.switch_cost(name),
            waiting_since=demand.waiting.get(name),
            idle_since=demand.idle.get(name),
            stuck_since=demand.stuck.get(name),
            growth=demand.growth(name),
            gained_at=demand.gained.get(name),
            gave_at=demand.gave.get(name),
            hold_s=demand.hold_s.get(name),
            apart_since=demand.apart.get(name),
        )
        for name in ctx.plan.policies
    }
    return Snapshot(
        now=ctx.now,
        policies=policies,
        serves={lease_id: tuple(lease.weights.assigned) for lease_id, lease in engines.items()},
        movable=frozenset(lease_id for lease_id, lease in engines.items() if not lease.weights.leaving),
        depths={lease_id: demand.depth(lease_id) for lease_id in engines},
    )


def _balance(ctx: Context, engines: dict[int, LeaseState], turns: dict[str, int]) -> None:
    """Let places follow the queues."""
    mover, demand = ctx.plan.mover, ctx.state.fleet.demand
    queues, before = {name: demand.queues.get(name, 0.0) for name in ctx.plan.policies}, demand.apart
    apart = mover.too_long(queues, _counts(engines))
    demand.apart = {name: before.get(name, ctx.now) for name in ctx.plan.policies if name in apart}
    if not apart:
        return
    seen = _snapshot(ctx, engines, turns)
    for move in checked(mover.moves(seen), seen):
        _carry_out(ctx, engines[move.engine], move)
        demand.hold_s[move.into] = mover.keeps_s(seen.policies[move.into], ctx.now)
        demand.gained[move.into] = demand.gave[move.out] = ctx.now


def _carry_out(ctx: Context, lease: LeaseState, move: Move) -> None:
    _dismiss(ctx, lease, move.out)
    lease.weights.assigned.append(move.into)
    reason = f"{lease.device_id} serves {move.into} instead of {move.out}: {move.reason}"
    ctx.rule(
        RulingKind.ENGINE_MOVED, reason, policy=move.into, target=f"lease:{lease.lease_id}", cause=move.cause
    )  # fmt: skip


def _dismiss(ctx: Context, lease: LeaseState, name: str) -> None:
    """Take a policy's place on an engine."""
    lease.weights.assigned.remove(name)
    dismiss(ctx, lease, name)


def _held_elsewhere(ctx: Context, lease: LeaseState, name: str) -> bool:
    """Tell whether another engine takes the requests of a policy now: replies under way need not end before it goes."""
    others = (other for other in ctx.state.fleet.at_work(DeviceUse.ENGINE) if other is not lease)
    return any(
        other.child.incarnation and name in other.weights.assigned and name in other.weights.held for other in others
    )


def _unload(ctx: Context) -> None:
    for lease in ctx.state.fleet.of_use(DeviceUse.ENGINE):
        for name in lease.weights.leaving:
            key = f"unload:{lease.lease_id}:{name}"
            if ctx.wanted(key):
                order = UnloadPolicy(lease_id=lease.lease_id, policy=name, hand_over=_held_elsewhere(ctx, lease, name))
                ctx.issue(key, order, lease_id=lease.lease_id)
                lease.weights.removals[name] = ctx.state.outstanding[key].no
