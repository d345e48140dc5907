"""The engines' side: which weights each engine must hold, and when newer ones may replace them.

Invariant: while any unsettled group pins (policy, version), every engine is told to hold exactly that version; only
then the committed one. So a group is served by its pinned vector to the end, whoever steps early.
"""

from collections.abc import Mapping

from flexmarl.contracts.commands import LoadWeights
from flexmarl.contracts.events import DeviceUse, WeightsServed
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.state import LeaseState, Pin


def pinned(ctx: Context) -> dict[str, Pin] | None:
    """Return the vector that unsettled groups pin, None when there are none."""
    state = ctx.state
    if state.cohort is not None and state.cohort.open:
        return state.cohort.pins
    if state.evaluation is not None:
        return state.evaluation.pins
    return None


def drive_engines(ctx: Context) -> None:
    """Tell each engine to hold what its next requests will name."""
    pins = pinned(ctx)
    for lease in ctx.state.of_use(DeviceUse.ENGINE):
        if lease.incarnation:
            for name, policy in ctx.state.policies.items():
                if policy.version is not None:
                    _load(ctx, lease, name, pins[name] if pins is not None else policy.pin)


def _load(ctx: Context, lease: LeaseState, name: str, pin: Pin) -> None:
    key = f"load:{lease.lease_id}:{name}"
    on_its_way = ctx.state.outstanding.get(key)
    if on_its_way is not None and on_its_way.version != pin.version:
        ctx.withdraw(key)
    if lease.holds.get(name) != pin.version and ctx.wanted(key):
        command = LoadWeights(lease_id=lease.lease_id, policy=name, version=pin.version, digest=pin.digest)
        ctx.issue(key, command, lease_id=lease.lease_id, version=pin.version)


def on_weights_served(ctx: Context, event: WeightsServed) -> None:
    """Note what an engine holds, if it is the life of it that we know."""
    lease = ctx.state.leases.get(event.lease_id)
    if lease is None or lease.incarnation != event.incarnation:
        return
    lease.holds[event.policy] = event.version
    key = f"load:{event.lease_id}:{event.policy}"
    on_its_way = ctx.state.outstanding.get(key)
    if on_its_way is not None and on_its_way.version == event.version:
        ctx.answered(key)


def served(ctx: Context) -> bool:
    """Tell whether every engine at work answers and wholly holds the committed vector."""
    return _all_hold(ctx, {name: policy.version for name, policy in ctx.state.policies.items()})


def loaded(ctx: Context) -> bool:
    """Tell whether every engine at work answers and wholly holds what its next requests will name."""
    pins = pinned(ctx)
    return served(ctx) if pins is None else _all_hold(ctx, {name: pin.version for name, pin in pins.items()})


def _all_hold(ctx: Context, vector: Mapping[str, int | None]) -> bool:
    engines = ctx.state.at_work(DeviceUse.ENGINE)
    if len(engines) < ctx.plan.spec.resources.rollout_devices:
        return False
    return all(
        lease.incarnation and lease.holds.get(name) == version for lease in engines for name, version in vector.items()
    )
