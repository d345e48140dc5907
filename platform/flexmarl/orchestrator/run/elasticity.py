"""A fleet of engines that grows and shrinks while its run goes on: who joins, who is counted on, who leaves.

Invariants: a run is never waited for by more than it can do without: an engine counts as a member once it holds what
requests name, and above the minimum no longer than its child answers. An engine leaves only while as many others as
the minimum stay; what it plays is handed over with the tokens it has, and its device is given back when it holds
nothing. None is asked for above the maximum. Which engines are above the minimum is nobody's property: any may
leave.

Whether a device joins is the arbiter's to say: never while somebody waits for devices of that pool. So a device that
was given back is not granted to the same run before those that waited have theirs.
"""

from flexmarl.contracts.commands import ReleaseLease, RequestDevices, UnloadPolicy
from flexmarl.contracts.events import DeviceUse, SurplusRecalled
from flexmarl.contracts.status import RunStatus
from flexmarl.orchestrator.allocation.held_weights import dismiss, holds
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.pool.device_requests import GANG, JOIN, rollout_pool, training_pool
from flexmarl.orchestrator.run.children import forget_child
from flexmarl.orchestrator.run.scaling import wanted_engines
from flexmarl.orchestrator.serving.weight_sync import required_versions
from flexmarl.orchestrator.state.fleet import LeaseState
from flexmarl.orchestrator.state.tree import Failure

_GROWS = frozenset({RunStatus.STARTING, RunStatus.RUNNING})
_AT_REST = frozenset({RunStatus.PAUSED, RunStatus.PAUSING})
_JOIN_AGAIN_S = (10.0, 30.0, 120.0, 600.0)
"""Wait after the n-th engine in a row that ended before it had joined."""


def on_surplus_recalled(ctx: Context, event: SurplusRecalled) -> None:
    """Let an engine leave whose device somebody waits for, if as many as the minimum stay."""
    lease = ctx.state.fleet.leases.get(event.lease_id)
    if lease is None or lease not in _fleet(ctx) or len(_fleet(ctx)) <= ctx.plan.engines.least:
        return
    _leave(ctx, lease, event.reason)


def drive_leaving(ctx: Context) -> None:
    """Hand over what leaving engines play, and give back the devices of those that hold nothing any more."""
    for lease in list(ctx.state.fleet.leases.values()):
        if lease.membership != "leaving" or lease.releasing:
            continue
        keys = {f"unload:{lease.lease_id}:{name}": name for name in lease.weights.leaving}
        failed = [key for key in keys if key in ctx.state.failures]
        rests = ctx.state.lifecycle.pause.frozen or ctx.state.lifecycle.status in _AT_REST
        if not keys or failed or rests:
            for key in failed:
                del ctx.state.failures[key]
            forget_child(ctx, lease)
            lease.releasing = True
            ctx.emit(ReleaseLease(lease_id=lease.lease_id))
            continue
        for key, name in keys.items():
            if ctx.wanted(key):
                order = UnloadPolicy(lease_id=lease.lease_id, policy=name, hand_over=_served_elsewhere(ctx, name))
                ctx.issue(key, order, lease_id=lease.lease_id)


def drive_membership(ctx: Context) -> None:
    """Count on those that have joined, and on no more than the minimum of those whose child is gone."""
    if ctx.plan.engines.most == ctx.plan.engines.least:
        return
    fleet, least = ctx.state.fleet, ctx.plan.engines.least
    for lease in fleet.joining():
        if _has_joined(ctx, lease):
            lease.membership = "member"
            ctx.state.failures.pop(JOIN, None)
            ctx.note(f"engine on {lease.device_id} joined: {size_text(ctx)}", target=f"lease:{lease.lease_id}")
    for lease in fleet.at_work(DeviceUse.ENGINE):
        if not lease.child.incarnation and len(fleet.at_work(DeviceUse.ENGINE)) > least:
            lease.membership = "joining"
    lacking = max(0, least - len(fleet.at_work(DeviceUse.ENGINE)))
    for lease in sorted(fleet.joining(), key=lambda one: (not one.child.incarnation, one.lease_id))[:lacking]:
        lease.membership = "member"
    for lease in _fleet(ctx):
        if lease.recalled and _may_go(ctx, lease):
            _leave(ctx, lease, lease.recalled)
    _let_surplus_go(ctx)
    count = len(fleet.at_work(DeviceUse.ENGINE))
    fewest = fleet.size.fewest
    if count or fewest >= 0:
        fleet.size.fewest, fleet.size.most = count if fewest < 0 else min(fewest, count), max(fleet.size.most, count)


def drive_growth(ctx: Context) -> None:
    """Ask for one engine more, as long as the fleet is below its maximum and nothing that it needs is missing."""
    state, resources = ctx.state, ctx.plan.spec.resources
    grows = state.lifecycle.status in _GROWS and not state.lifecycle.pause.frozen and GANG not in state.outstanding
    if not grows or len(_fleet(ctx)) >= wanted_engines(ctx.plan.engines, state.fleet):
        ctx.withdraw(JOIN)
    elif ctx.wanted(JOIN):
        command = RequestDevices(
            pool=rollout_pool(ctx),
            engines=1,
            trainers=0,
            engine_devices=resources.engine_devices,
            trainer_pool=training_pool(ctx),
            extra=True,
        )
        ctx.issue(JOIN, command)


def resize_due(ctx: Context) -> bool:
    """Tell whether a fleet that follows measured rates is to let engines go, or to ask for one, and has not yet."""
    if ctx.plan.engines.scaling is None:
        return False
    there, wanted = len(_fleet(ctx)), wanted_engines(ctx.plan.engines, ctx.state.fleet)
    return there > wanted or (there < wanted and ctx.state.lifecycle.status in _GROWS and ctx.wanted(JOIN))


def may_do_without(ctx: Context, lease: LeaseState) -> bool:
    """Tell whether the end of a lease leaves the run as many engines as it needs, or was asked for."""
    if lease.membership == "leaving":
        return True
    others = [other for other in _fleet(ctx) if other is not lease]
    return lease in _fleet(ctx) and len(others) >= ctx.plan.engines.least


def note_loss(ctx: Context, lease: LeaseState) -> None:
    """Ask for another engine later, where one ended before it had joined: the next may fare no better."""
    if lease.membership == "joining":
        count = ctx.failed(JOIN)
        until = ctx.now + _JOIN_AGAIN_S[min(count, len(_JOIN_AGAIN_S)) - 1]
        ctx.state.failures[JOIN] = Failure(count, until)


def size_text(ctx: Context) -> str:
    """Say how many engines the fleet has, of how many."""
    count = len(ctx.state.fleet.at_work(DeviceUse.ENGINE))
    return f"the fleet has {count} of {ctx.plan.engines.least} to {ctx.plan.engines.most} engines"


def _fleet(ctx: Context) -> list[LeaseState]:
    """List the engines that have a seat: members and those that join; one that stands by has that of another."""
    return [*ctx.state.fleet.at_work(DeviceUse.ENGINE), *ctx.state.fleet.joining()]


def _may_go(ctx: Context, lease: LeaseState) -> bool:
    """Tell whether a recalled engine leaves now instead of waiting for another one in its place."""
    if any(other.replaces == lease.lease_id for other in ctx.state.fleet.of_use(DeviceUse.ENGINE)):
        return False
    members = [one for one in ctx.state.fleet.at_work(DeviceUse.ENGINE) if one is not lease]
    return len([one for one in members if one.child.incarnation]) >= ctx.plan.engines.least


def _let_surplus_go(ctx: Context) -> None:
    """Let the youngest engines leave that are more than measured rates ask for: first those that have not joined."""
    if ctx.plan.engines.scaling is None:
        return
    wanted, there = wanted_engines(ctx.plan.engines, ctx.state.fleet), _fleet(ctx)
    youngest = sorted(there, key=lambda one: (one.membership == "member", -one.lease_id))
    for lease in youngest[: max(0, len(there) - wanted)]:
        _leave(ctx, lease, f"{wanted} engines are enough")


def _leave(ctx: Context, lease: LeaseState, why: str) -> None:
    child = lease.child.incarnation
    lease.membership = "leaving"
    for name in ctx.state.policies if child else ():
        there = name in lease.weights.held or name in lease.weights.previous
        if name not in lease.weights.leaving and (there or f"load:{lease.lease_id}:{name}" in ctx.state.outstanding):
            dismiss(ctx, lease, name)
    lease.weights.assigned.clear()
    text = f"engine on {lease.device_id} leaves: {why}; {size_text(ctx)}"
    ctx.note(text, target=f"lease:{lease.lease_id}")


def _has_joined(ctx: Context, lease: LeaseState) -> bool:
    """Tell whether an engine answers and holds what requests name; one that is given groups or places, once it answers.

    Nobody waits for those anyway.
    """
    if not lease.child.incarnation:
        return False
    if ctx.plan.engines.places is not None or ctx.plan.engines.one_version:
        return True
    wanted = required_versions(ctx, ctx.state.policies)
    return all(holds(lease, name, pin.version) for name, pins in wanted.items() for pin in pins)


def _served_elsewhere(ctx: Context, name: str) -> bool:
    """Tell whether a member holds a policy, so that replies under way need not end first."""
    members = ctx.state.fleet.at_work(DeviceUse.ENGINE)
    return any(one.child.incarnation and name in one.weights.held for one in members)
