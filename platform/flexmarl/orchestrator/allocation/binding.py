"""Policies on trainer devices: what each has to do, who is bound where, and the commands that change it.

Invariants: a policy is in one place: on its gang, on its way there, or in the state plane under the ticket of the
trainer that suspended it; gradients and steps are asked for only of a gang that holds it. A suspended policy keeps its
accumulator: what is in it counts, and goes on under the epoch of the trainer that takes it up. What is lost with a
trainer - on it, or suspended by it - is bound anew from the committed version, and its micro-batches are accumulated
again. Before a policy is suspended, gradients that were asked for and not computed are withdrawn.
"""

from math import inf
from typing import Literal

from flexmarl.contracts.commands import BindPolicy, JoinGang, SuspendPolicy
from flexmarl.contracts.events import DeviceUse, PolicySuspended, RankJoined
from flexmarl.contracts.rulings import RulingKind
from flexmarl.contracts.status import RunStatus
from flexmarl.orchestrator.allocation.allocator import next_look, on_demand, spread_once
from flexmarl.orchestrator.allocation.shared_devices import given_now, may_train, trainers_turn
from flexmarl.orchestrator.allocation.types import AllocationSnapshot, BindChange, PolicyNeeds
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.state.fleet import LeaseState
from flexmarl.orchestrator.state.policy import PolicyState
from flexmarl.orchestrator.state.tree import RunState

_BEGINS = frozenset({RunStatus.STARTING, RunStatus.RESUMING})
NEWEST = 0.3
"""Weight of the newest measurement in what work and swaps are said to take."""


def drive_binding(ctx: Context, due: dict[str, int]) -> None:
    """See to it that policies are where they have something to do. `due`: policy with work -> tokens of it."""
    leases = ctx.state.fleet.trainers()
    ctx.state.fleet.review_at = None
    if ctx.plan.trainers.colocated and not trainers_turn(ctx):
        _vacate(ctx)
    if not leases:
        return
    for name, policy in ctx.state.policies.items():
        if ctx.plan.trainers.allocates and name in ctx.plan.trainable:
            continue
        if not policy.placement.gang and not policy.accumulator:
            policy.placement.gang = [min(leases, key=lambda lease: lease.sharing.engine_lease > 0).lease_id]
    if ctx.plan.trainers.allocates and (given := given_now(ctx, leases)):
        _allocate(ctx, given, due)
    for name, policy in ctx.state.policies.items():
        if policy.placement.gang and (policy.placement.ticket or not policy.accumulator):
            _bind(ctx, name, policy)


def bound_to(state: RunState, name: str) -> LeaseState | None:
    """Return the lease of the trainer that takes a policy's gradients and steps, None while none does."""
    policy = state.policies[name]
    placement = policy.placement
    if not policy.accumulator or placement.ticket or not placement.gang or f"suspend:{name}" in state.outstanding:
        return None
    lease = state.fleet.leases.get(placement.gang[0])
    return lease if lease is not None and lease.child.incarnation and not lease.releasing else None


def on_policy_suspended(ctx: Context, event: PolicySuspended) -> None:
    """A policy lies in the state plane, its devices are free for others."""
    policy = ctx.state.policies.get(event.policy)
    key = f"suspend:{event.policy}"
    waiting = ctx.state.outstanding.get(key)
    lease = ctx.state.fleet.leases.get(event.lease_id)
    if policy is None or lease is None or waiting is None or waiting.no != event.command_no:
        return
    if lease.child.incarnation != event.incarnation:
        return
    ctx.answered(key)
    placement = policy.placement
    placement.ticket, placement.lease_id, placement.gang = event.ticket, event.lease_id, []
    placement.suspend_s = _smoothed(placement.suspend_s, event.seconds)


def took_work(policy: PolicyState, seconds: float, tokens: int, rows: int) -> None:
    """Learn how long a policy's gradients take on one device, from a gang whose ranks share out whole rows."""
    placement = policy.placement
    placement.worked = True
    if tokens and seconds:
        placement.token_s = _smoothed(placement.token_s, seconds / (tokens * _part(policy, rows)))


def on_gang_s(policy: PolicyState, rows: int, tokens: int) -> float:
    """Return how long a micro-batch takes where a policy is, as far as was measured; 0 before."""
    return policy.placement.token_s * tokens * _part(policy, rows)


def _part(policy: PolicyState, rows: int) -> float:
    """Return the largest part that a rank of a policy's gang has of so many rows."""
    return -(-rows // max(1, len(policy.placement.gang))) / rows if rows else 1.0


def came_back(policy: PolicyState, seconds: float) -> None:
    """Learn how long a policy takes to be brought back."""
    policy.placement.resume_s = _smoothed(policy.placement.resume_s, seconds)


def _smoothed(before: float, newest: float) -> float:
    return newest if not before else (1 - NEWEST) * before + NEWEST * newest


def _allocate(ctx: Context, leases: list[LeaseState], due: dict[str, int]) -> None:
    state, rule = ctx.state, ctx.plan.spec.mechanisms.allocation
    taken = {lease_id for policy in state.policies.values() for lease_id in policy.placement.gang}
    leases = [lease for lease in leases if lease.lease_id in taken or may_train(ctx, lease)]
    wanted = ctx.plan.spec.resources.training_devices if trainers_turn(ctx) else ctx.plan.trainers.own_devices
    whole = len(leases) == wanted
    if not whole and (rule.type == "static" or state.lifecycle.status in _BEGINS):
        return  # who is bound meanwhile would crowd those that are there
    for name in ctx.plan.trainable:
        _mark(ctx, name, name in due)
    seen = AllocationSnapshot(
        now=ctx.now,
        policies={name: _needs_of(ctx, name, due) for name in ctx.plan.trainable},
        devices=tuple(lease.lease_id for lease in leases),
        places=ctx.plan.spec.resources.trainer_policies,
        swap_s=_swap_s(state),
        keep_warm_s=rule.keep_warm_s,
        patience_s=rule.patience_s,
    )
    changes = spread_once(seen) if rule.type == "static" else on_demand(seen)
    state.fleet.review_at = None if rule.type == "static" else next_look(seen)
    for change in changes:
        placement = state.policies[change.policy].placement
        if isinstance(change, BindChange):
            placement.gang, placement.since, placement.waiting_since, placement.worked = (
                list(change.gang),
                ctx.now,
                None,
                False,
            )
            placement.meant = []
            where = ", ".join(state.fleet.leases[lease_id].device_id for lease_id in change.gang)
            text = f"{where}: {change.reason}"
            ctx.rule(RulingKind.DEVICES_BOUND, text, policy=change.policy, cause=change.cause)
        else:
            placement.meant = list(change.meant)
            _suspend(ctx, change.policy)
            ctx.rule(RulingKind.DEVICES_TAKEN, change.reason, policy=change.policy, cause=change.cause)


def _mark(ctx: Context, name: str, has_work: bool) -> None:
    """Note since when a policy waits for devices, or has devices and nothing to do."""
    placement = ctx.state.policies[name].placement
    waits, idles = has_work and not placement.gang, bool(placement.gang) and not has_work
    placement.waiting_since = (
        (ctx.now if placement.waiting_since is None else placement.waiting_since) if waits else None
    )
    if not has_work:
        placement.meant = []
    placement.idle_since = (ctx.now if placement.idle_since is None else placement.idle_since) if idles else None


def _needs_of(ctx: Context, name: str, due: dict[str, int]) -> PolicyNeeds:
    state, policy = ctx.state, ctx.state.policies[name]
    placement, devices = policy.placement, ctx.plan.spec.policies[name].devices
    tokens = due.get(name, 0)
    own = state.cohort.policies.get(name) if state.cohort is not None else None
    return PolicyNeeds(
        has_work=name in due,
        seconds=tokens * placement.token_s if placement.token_s or not tokens else inf,
        gang=tuple(placement.gang),
        still=bound_to(state, name) is not None and not _busy(ctx, name),
        leaving=f"suspend:{name}" in state.outstanding,
        least=devices.least,
        most=devices.most,
        rows=max([micro_batch.rows for micro_batch in own.micro_batches], default=0) if own else 0,
        more=own is None or not (own.stepped or _all_cut(state)),
        meant=tuple(placement.meant),
        waiting_since=placement.waiting_since,
        idle_since=placement.idle_since,
        bound_at=placement.since,
        worked=placement.worked,
        last=placement.lease_id,
        homes=_homes(ctx, name),
        fixed=ctx.plan.trainers.colocated and name in ctx.plan.spec.mechanisms.allocation.homes,
    )


def _all_cut(state: RunState) -> bool:
    """Tell whether no row can come any more into what is trained now."""
    return state.cohort is not None and state.cohort.times.settled_at is not None and not state.cohort.pending


def _homes(ctx: Context, name: str) -> tuple[int, ...]:
    """Return the devices that the specification chooses for a policy, none while one of them is not there."""
    chosen = ctx.plan.spec.mechanisms.allocation.homes.get(name)
    if not chosen:
        return ()
    held = sorted(ctx.state.fleet.at_work(DeviceUse.TRAINER), key=lambda lease: lease.lease_id)
    shared, own = ([x.lease_id for x in held if (x.sharing.engine_lease > 0) is beside] for beside in (True, False))
    before = ctx.plan.spec.resources.training_devices - ctx.plan.trainers.own_devices
    found = dict(enumerate(shared[:before])) | dict(enumerate(own, start=before))
    return tuple(found[place] for place in chosen) if all(place in found for place in chosen) else ()


def _busy(ctx: Context, name: str) -> bool:
    """Tell whether something of a policy is on its way that nobody may withdraw, or that failed and waits."""
    state = ctx.state
    if f"step:{name}" in state.outstanding or state.outstanding.any_of("checkpoint"):
        return True
    return not ctx.wanted(f"suspend:{name}") or not ctx.wanted(f"policy:{name}")


def _swap_s(state: RunState) -> float:
    """Return how long a swap takes: the longest among the policies, since which will swap is not known."""
    return max((p.placement.suspend_s + p.placement.resume_s for p in state.policies.values()), default=0.0)


def _vacate(ctx: Context) -> None:
    """Suspend every policy whose device's engine is to wake."""
    for name in ctx.plan.trainable:
        own = _needs_of(ctx, name, {})
        if own.still and any(ctx.state.fleet.leases[lease_id].sharing.engine_lease for lease_id in own.gang):
            _suspend(ctx, name)
            ctx.rule(
                RulingKind.DEVICES_TAKEN,
                f"the engine that shares the device of {name} must wake",
                policy=name,
                cause="turned",
            )


def _suspend(ctx: Context, name: str) -> None:
    policy = ctx.state.policies[name]
    ctx.withdraw_prefix(f"accumulate:{name}:")
    ctx.withdraw_prefix(f"join:{name}:")  # it is bound: all are in, whether they have told so or not
    lease_id, reach = policy.placement.gang[0], _reach(ctx.state)
    order = SuspendPolicy(
        lease_id=lease_id,
        policy=name,
        accumulator=policy.accumulator,
        reach="host" if ctx.plan.trainers.colocated and reach == "process" else reach,
    )
    ctx.issue(f"suspend:{name}", order, lease_id=lease_id)


def _reach(state: RunState) -> Literal["process", "host", "cluster"]:
    """Say where the trainers are that may take a policy up."""
    devices = [lease.device_id for lease in state.fleet.of_use(DeviceUse.TRAINER)]
    if len(devices) == 1:
        return "process"
    return "host" if len({device.rpartition(".")[0] for device in devices}) == 1 else "cluster"


def _bind(ctx: Context, name: str, policy: PolicyState) -> None:
    """Ask a gang to hold a policy: anew, or as it was suspended."""
    leader = ctx.state.fleet.leases.get(policy.placement.gang[0])
    key = f"bind:{name}"
    # The policy's own back-off holds every attempt to bring it back, whichever of its commands failed.
    if leader is None or not leader.child.incarnation or not ctx.wanted(key) or not ctx.wanted(f"policy:{name}"):
        return
    placement, ranks = policy.placement, [ctx.state.fleet.leases[lease_id] for lease_id in policy.placement.gang]
    if not all(may_train(ctx, rank) for rank in ranks):
        return
    for rank in ranks:
        rank.sharing.asleep = False
    gang = tuple(placement.gang) if len(placement.gang) > 1 else ()
    placement.meeting += bool(gang)
    command = BindPolicy(
        lease_id=leader.lease_id,
        policy=name,
        version=policy.version,
        digest=policy.digest or None,
        resume=placement.ticket,
        accumulator=policy.accumulator if placement.ticket else "",
        gang=gang,
        meeting=placement.meeting if gang else 0,
    )
    ctx.issue(key, command, lease_id=leader.lease_id, version=-1 if policy.version is None else policy.version)
    for lease_id in gang[1:]:
        order = JoinGang(lease_id=lease_id, policy=name, gang=gang, meeting=placement.meeting)
        ctx.withdraw(f"join:{name}:{lease_id}")
        ctx.issue(f"join:{name}:{lease_id}", order, lease_id=lease_id)


def on_rank_joined(ctx: Context, event: RankJoined) -> None:
    """A further rank is in, or waits for its leader, who tells when all are."""
    policy, key = ctx.state.policies.get(event.policy), f"join:{event.policy}:{event.lease_id}"
    if policy is not None and policy.placement.meeting == event.meeting:
        ctx.answered(key)
