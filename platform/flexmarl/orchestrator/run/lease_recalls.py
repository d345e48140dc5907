"""Leases that an administrator wants back: asked for elsewhere at once, handed over between two cohorts.

Invariants: the run works on with the recalled lease until its replacement is ready, so a move without a free device
costs nothing but patience; a replacement that stands by is counted on for nothing; a hand-over happens only while no
cohort, evaluation or checkpoint is open, so nothing is played or trained twice. A recalled lease that ends by itself,
or whose child is gone, is a loss like any other, and a replacement that stands by for it steps in at once.
"""

from flexmarl.contracts.commands import ReleaseLease, RequestDevices
from flexmarl.contracts.events import DeviceUse, LeaseRecalled
from flexmarl.contracts.status import RunStatus
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.pool.device_requests import GANG, REPLACE, replaced_by, rollout_pool, training_pool
from flexmarl.orchestrator.run.children import forget_child
from flexmarl.orchestrator.state.fleet import LeaseState


def on_lease_recalled(ctx: Context, event: LeaseRecalled) -> None:
    """Note that a device is wanted back, or that it may stay."""
    lease = ctx.state.fleet.leases.get(event.lease_id)
    if lease is None or lease.releasing or lease.membership == "leaving" or bool(lease.recalled) is not event.withdrawn:
        return
    where = f"{lease.use} on {lease.device_id}"
    lease.recalled = "" if event.withdrawn else event.reason or "recalled"
    if event.withdrawn:
        ctx.note(f"{where} keeps its device: {event.reason}", target=f"lease:{lease.lease_id}")
    else:
        ctx.note(f"{where} must move: {lease.recalled}", target=f"lease:{lease.lease_id}")


def drive_moves(ctx: Context) -> None:
    """Ask for what recalled leases need, give back what is needed no more, and hand over where nothing is open."""
    if ctx.state.lifecycle.status is RunStatus.STOPPING or GANG in ctx.state.outstanding:
        # A run that stops gives every lease back soon anyway; one that lacks devices may find no other free ones than
        # those that stand by, and its open cohort, which a hand-over waits for, cannot end without them.
        _drop_unneeded(ctx, wanted=set())
        return
    _drop_unneeded(ctx, {lease.lease_id for lease in _recalled(ctx)})
    for lease in () if ctx.plan.trainers.colocated else _recalled(ctx):
        key = f"{REPLACE}{lease.lease_id}"
        if _replacement(ctx, lease) is None and ctx.wanted(key):
            engine = lease.use is DeviceUse.ENGINE
            command = RequestDevices(
                pool=rollout_pool(ctx),
                engines=int(engine),
                trainers=int(not engine),
                engine_devices=ctx.plan.spec.resources.engine_devices if engine else 1,
                trainer_pool=training_pool(ctx),
                replaces=lease.lease_id,
            )
            ctx.issue(key, command)
    if not ctx.state.cohorts and ctx.state.evaluation is None:
        hand_over(ctx)
    else:
        _replace_lost(ctx)


def _replace_lost(ctx: Context) -> None:
    """Let what is ready take over from leases that have no child: the open cohort may wait for them alone."""
    for old in [lease for lease in _recalled(ctx) if not lease.child.incarnation]:
        new = _replacement(ctx, old)
        if ctx.plan.trainers.colocated:
            _release(ctx, old)
            give_back_pair(ctx, old)
        elif new is not None and _ready(ctx, new):
            _release(ctx, old)
            text = f"{old.use} on {old.device_id} is gone, {new.device_id} takes over: {old.recalled}"
            ctx.note(text, target=f"lease:{new.lease_id}")


def _give_back_shared(ctx: Context) -> bool:
    """Give recalled devices back with both that share them, and ask for others then. False: there were some.

    A device that two share cannot be held twice, so nothing stands by for them.
    """
    recalled = _recalled(ctx)
    for lease in () if ctx.state.checkpoints else recalled:
        if not lease.releasing:
            _release(ctx, lease)
            give_back_pair(ctx, lease)
    return not recalled


def give_back_pair(ctx: Context, lease: LeaseState) -> None:
    """Give back the lease that shares a device with one that is gone, so that the device is free as a whole."""
    others = (
        x
        for x in ctx.state.fleet.leases.values()
        if lease.lease_id == x.sharing.engine_lease or x.lease_id == lease.sharing.engine_lease
    )
    for other in list(others):
        if not other.releasing:
            _release(ctx, other)


def _release(ctx: Context, lease: LeaseState) -> None:
    forget_child(ctx, lease)
    lease.releasing = True
    ctx.emit(ReleaseLease(lease_id=lease.lease_id))


def hand_over(ctx: Context) -> bool:
    """Let every ready replacement take over. False: one is ready, and a checkpoint under way comes first."""
    if ctx.plan.trainers.colocated:
        return _give_back_shared(ctx)
    ready = [(old, new) for old in _recalled(ctx) if (new := _replacement(ctx, old)) and _ready(ctx, new)]
    if ready and ctx.state.checkpoints:
        return False
    for old, new in ready:
        _release(ctx, old)
        text = f"{old.use} moved from {old.device_id} to {new.device_id} after step {ctx.state.step}: {old.recalled}"
        ctx.note(text, target=f"lease:{new.lease_id}")
    return True


def moving_text(ctx: Context) -> str:
    """Say what is on its way, empty when nothing is."""
    for lease in _recalled(ctx):
        new = _replacement(ctx, lease)
        if ctx.plan.trainers.colocated:
            return f"{lease.use} on {lease.device_id} releases its device after this step"
        if new is None:
            return f"{lease.use} on {lease.device_id} must move and keeps its device until another is free"
        if not new.child.incarnation:
            return f"{lease.use} on {lease.device_id} moves to {new.device_id}, which starts"
        return f"{lease.use} moves from {lease.device_id} to {new.device_id} after this step"
    return ""


def _recalled(ctx: Context) -> list[LeaseState]:
    found = [lease for lease in ctx.state.fleet.leases.values() if lease.recalled and not lease.releasing]
    found = [lease for lease in found if lease.membership == "member"]
    if not found:
        return found
    return [lease for use in DeviceUse for lease in found if lease.use is use and not ctx.state.fleet.stands_by(lease)]


def _replacement(ctx: Context, old: LeaseState) -> LeaseState | None:
    found = (lease for lease in ctx.state.fleet.of_use(old.use) if lease.replaces == old.lease_id)
    return next(found, None)


def _ready(ctx: Context, lease: LeaseState) -> bool:
    """Tell whether a replacement could work from the next cohort on; an engine must hold the weights already."""
    if not lease.child.incarnation:
        return False
    names = ctx.state.policies if ctx.plan.engines.places is None else lease.weights.assigned
    wanted = {name: ctx.state.policies[name].version for name in names}
    return lease.use is DeviceUse.TRAINER or all(
        lease.weights.held.get(name) == version for name, version in wanted.items()
    )


def _drop_unneeded(ctx: Context, wanted: set[int]) -> None:
    """Withdraw requests for leases that are to keep their device, and release replacements that stand by for these."""
    state = ctx.state
    for key in state.outstanding.keys_of(REPLACE):
        if replaced_by(key) not in wanted:
            ctx.withdraw(key)
    replacing = [lease for lease in state.fleet.leases.values() if lease.replaces and not lease.releasing]
    for lease in [lease for lease in replacing if state.fleet.stands_by(lease)]:
        if lease.recalled or lease.replaces not in wanted:
            _release(ctx, lease)
