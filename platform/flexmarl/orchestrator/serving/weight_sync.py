"""The engines' side: which weights each engine must hold, and when newer ones may replace them.

Invariant: every version that an unsettled group pins is held, or loaded before anything newer, by every engine; so a
group is served by its pinned vector to the end, whoever steps early. An engine holds two versions of a policy: the one
it loaded last, and of those before it the one that its load was told to keep. Where cohorts do not overlap, newer
weights wait until no unsettled group pins older ones; where they do, old and new are served side by side, and a third
version waits.

Where an engine has places for some policies only, "every engine" is every one that serves the policy (`placement`). One
that is given a policy while others hold it holds nobody up: it counts from its first load on.
"""

from collections.abc import Iterable, Mapping, Sequence

from flexmarl.contracts.commands import LoadWeights
from flexmarl.contracts.events import DeviceUse, WeightsServed
from flexmarl.orchestrator.allocation.held_weights import holds
from flexmarl.orchestrator.allocation.shared_devices import may_serve
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.state.cohort import Pin
from flexmarl.orchestrator.state.fleet import LeaseState
from flexmarl.orchestrator.state.policy import PolicyState

KEPT_VERSIONS = 2
"""Versions of a policy that an engine serves at once."""
LOADS_AT_ONCE = 128
"""Engines that load one policy at the same time; the next one is told when one of them holds it.

So no single fact leads to a command for each of thousands of engines, they do not all pull the same weights at once,
and what is on its way does not grow with the fleet.
"""


def overlaps(ctx: Context) -> bool:
    """Tell whether groups under different versions may be served side by side."""
    return ctx.plan.lag.bounded or ctx.plan.spec.mechanisms.publication.type != "cohort"


def pinned(ctx: Context, name: str) -> dict[int, Pin]:
    """Return the committed versions of a policy that unsettled groups pin."""
    state = ctx.state
    parts = [cohort.pins for cohort in state.cohorts if cohort.open and name not in ctx.plan.lag.follows]
    parts += [pins for cohort in state.cohorts for pins in cohort.older.values() if name not in ctx.plan.lag.follows]
    if state.evaluation is not None:
        parts.append(state.evaluation.pins)
    if ctx.plan.lag.fixed and not state.cohorts and state.past_cohorts.base:
        parts.append(state.past_cohorts.base)  # the next cohort's
    return {pins[name].version: pins[name] for pins in parts if pins[name].digest}


def required(ctx: Context, name: str, policy: PolicyState) -> list[Pin]:
    """Return the versions of a policy that every engine must hold now, oldest first."""
    pins = pinned(ctx, name)
    head = ctx.state.cohort
    own = head.policies.get(name) if head is not None else None
    # A version made on the way through a cohort's mini-batches is never served.
    finished = own is None or own.stepped or not own.steps
    if finished and (not pins or overlaps(ctx)):
        pins[policy.pin.version] = policy.pin
    elif not finished and head is not None and name in ctx.plan.lag.follows:
        # Groups that follow pin nothing: an engine that starts meanwhile answers them with what the others serve.
        pins[head.base[name].version] = head.base[name]
    return [pins[version] for version in sorted(pins)][:KEPT_VERSIONS]


def drive_engines(ctx: Context) -> None:
    """Tell each engine to hold what its next requests will name."""
    engines = ctx.state.fleet.of_use(DeviceUse.ENGINE)
    for name, pins in required_versions(ctx, ctx.state.policies).items():
        withdraw_others(ctx, name, pins)
        request_loads(ctx, engines, name, pins)


def required_versions(ctx: Context, names: Iterable[str]) -> dict[str, list[Pin]]:
    """Return what every engine must hold now of some policies: those that have a version."""
    policies = ctx.state.policies
    return {name: required(ctx, name, policies[name]) for name in names if policies[name].version is not None}


def withdraw_others(ctx: Context, name: str, pins: Sequence[Pin]) -> None:
    """Withdraw the loads of a policy's versions that are needed no more."""
    outstanding = ctx.state.outstanding
    wanted = {pin.version for pin in pins}
    for key in outstanding.keys_about("load", name):
        if outstanding[key].version not in wanted:
            ctx.withdraw(key)


def request_loads(ctx: Context, engines: Sequence[LeaseState], name: str, pins: Sequence[Pin], first: int = 0) -> int:
    """Ask engines for what they lack of a policy, in their order, until as many load it as may at once.

    Returns the place of the first one that has not been looked at.
    """
    room, places = LOADS_AT_ONCE - ctx.state.outstanding.count_about("load", name), ctx.plan.engines.places
    for place in range(first, len(engines)):
        if room <= 0:
            return place
        lease = engines[place]
        if (
            not lease.child.incarnation
            or lease.membership == "leaving"
            or (places is not None and name not in lease.weights.assigned)
        ):
            continue
        missing = lacks(lease, name, pins)
        if missing is None or not _has_place(ctx, lease, name) or not may_serve(ctx, lease):
            continue
        key = f"load:{lease.lease_id}:{name}"
        if ctx.wanted(key):
            command = LoadWeights(
                lease_id=lease.lease_id,
                policy=name,
                version=missing.version,
                digest=missing.digest,
                keeps=tuple(pin.version for pin in pins if pin is not missing),
            )
            ctx.issue(key, command, lease_id=lease.lease_id, version=missing.version)
            room -= 1
    return len(engines)


def _has_place(ctx: Context, lease: LeaseState, name: str) -> bool:
    """Tell whether an engine may load a policy: it serves it, and others that it is to forget have left."""
    if ctx.plan.engines.places is None:
        return True
    if name not in lease.weights.assigned or name in lease.weights.leaving:
        return False
    loading = ctx.state.outstanding
    taken = [
        own for own in lease.weights.assigned if own in lease.weights.held or f"load:{lease.lease_id}:{own}" in loading
    ]
    return name in taken or len(taken) + len(lease.weights.leaving) < ctx.plan.engines.places


def lacks(lease: LeaseState, name: str, pins: Sequence[Pin]) -> Pin | None:
    """Return the oldest version of a policy that an engine lacks: the next one follows when it is held."""
    held, kept = lease.weights.held.get(name), lease.weights.previous.get(name)
    for pin in pins:
        if pin.version not in (held, kept):
            return pin
    return None


def on_weights_served(ctx: Context, event: WeightsServed) -> None:
    """Note what an engine holds, if it is the life of it that we know."""
    lease = ctx.state.fleet.leases.get(event.lease_id)
    if (
        lease is None
        or lease.membership == "leaving"
        or lease.child.incarnation != event.incarnation
        or (lease.sharing.last_change and event.command_no < lease.sharing.last_change)
    ):
        return
    if event.command_no < lease.weights.removals.get(event.policy, 0):
        return  # what it held then it has been told to forget
    if ctx.plan.engines.places is not None or ctx.plan.engines.one_version:
        if ctx.plan.engines.places is not None and event.policy not in lease.weights.assigned:
            return
        ctx.state.fleet.demand.loaded(event.policy, event.seconds)
    former, kept = lease.weights.held.get(event.policy), lease.weights.previous.get(event.policy)
    # What nobody is served by makes room: the version loaded before, unless the one before that is to be kept.
    stays = kept in event.keeps and former not in event.keeps
    if former is not None and former != event.version and not stays:
        lease.weights.previous[event.policy] = former
    lease.weights.held[event.policy] = event.version
    key = f"load:{event.lease_id}:{event.policy}"
    on_its_way = ctx.state.outstanding.get(key)
    if on_its_way is not None and on_its_way.version == event.version:
        ctx.answered(key)


def served(ctx: Context) -> bool:
    """Tell whether every engine at work answers and wholly holds the committed vector.

    Of engines that serve one version at a time, one is enough: the others come to it when they are free.
    """
    vector = {name: policy.version for name, policy in ctx.state.policies.items()}
    if ctx.plan.engines.one_version:
        engines = ctx.state.fleet.at_work(DeviceUse.ENGINE)
        return any(
            lease.child.incarnation and lease.weights.held == vector and not lease.weights.leaving for lease in engines
        )
    return all_hold(ctx, vector)


def loaded(ctx: Context) -> bool:
    """Tell whether every engine at work answers and wholly holds what its next requests will name."""
    if ctx.plan.engines.one_version:
        engines, names = ctx.state.fleet.at_work(DeviceUse.ENGINE), ctx.state.policies.keys()
        held = all(lease.child.incarnation and lease.weights.held.keys() == names for lease in engines)
        return held and len(engines) >= ctx.plan.engines.least
    wanted = {name: required(ctx, name, policy) for name, policy in ctx.state.policies.items()}
    deepest = max((len(pins) for pins in wanted.values()), default=0)
    rounds = ({name: pins[i].version for name, pins in wanted.items() if i < len(pins)} for i in range(deepest))
    return all(all_hold(ctx, vector) for vector in rounds)


def all_hold(ctx: Context, vector: Mapping[str, int | None]) -> bool:
    """Tell whether every engine at work answers and wholly holds a vector."""
    if ctx.plan.engines.places is None and _awaits(ctx, vector):
        return False
    engines = ctx.state.fleet.at_work(DeviceUse.ENGINE)
    if len(engines) < ctx.plan.engines.least:
        return False
    if ctx.plan.engines.places is not None:
        return all(lease.child.incarnation for lease in engines) and all(
            _serve(ctx, engines, name, version) for name, version in vector.items()
        )
    return all(
        lease.child.incarnation
        and (lease.weights.held == vector or all(holds(lease, name, version) for name, version in vector.items()))
        for lease in engines
    )


def _serve(ctx: Context, engines: Sequence[LeaseState], name: str, version: int | None) -> bool:
    """Tell whether those that serve a policy hold a version, one of them at least.

    A policy that none of them has a place for waits for nobody: it is loaded when it is asked. But that must be a
    version that would be loaded: one that older pinned ones keep out is served by nobody, place or not.
    """
    own = [lease for lease in engines if name in lease.weights.assigned]
    if not own:
        return any(pin.version == version for pin in required_versions(ctx, (name,)).get(name, ()))
    holding = [lease for lease in own if name in lease.weights.held]
    return bool(holding) and all(holds(lease, name, version) for lease in holding)


def _awaits(ctx: Context, vector: Mapping[str, int | None]) -> bool:
    """Tell by the newest load alone that an engine lacks a part of a vector. False says nothing."""
    newest = ctx.state.outstanding.newest_of("load")
    if newest is None:
        return False
    name, command = newest[0].rpartition(":")[2], newest[1]
    lease = ctx.state.fleet.leases.get(command.lease_id)
    if lease is None or lease.releasing or lease.membership != "member" or ctx.state.fleet.stands_by(lease):
        return False
    return vector.get(name) == command.version and not holds(lease, name, command.version)
