"""Engines that serve one version at a time: who plays which groups, and when an engine takes newer weights.

Invariants: a group that was given is pinned to the vector that its engine held then, and stays so wherever it is
played; as long as it is unsettled, one engine keeps that vector or loads it again. An engine is given groups only while
it has none and holds the committed vector, so what it is given is the youngest that can be, and no older than its
cohort was admitted for. Older weights are forgotten before newer ones are loaded. Nobody waits for all engines: a
cohort is admitted by its lag alone, and its groups wait until an engine is free for them.

Groups whose engine is gone are given to one that holds their vector, else to the next free one, which loads it.
"""

from collections.abc import Mapping, Sequence

from flexmarl.contracts.commands import LoadWeights, UnloadPolicy
from flexmarl.contracts.events import DeviceUse
from flexmarl.contracts.wire import EVALUATION_DRAWS
from flexmarl.orchestrator.allocation.held_weights import dismiss
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.rollout.group_commands import give
from flexmarl.orchestrator.rollout.repacking import repack_engines
from flexmarl.orchestrator.state.cohort import Cohort, Pin
from flexmarl.orchestrator.state.fleet import LeaseState

Pins = Mapping[str, Pin]


def drive_one_version(ctx: Context) -> None:
    """Give groups to engines that are free, and let each engine hold what it plays or, if nothing, the newest."""
    given = _given(ctx)
    working = ctx.state.fleet.at_work(DeviceUse.ENGINE)
    at_work = {lease.lease_id for lease in working}
    for lease in ctx.state.fleet.leases.values():
        lease.assigned.draws = (
            [draw for draw in lease.assigned.draws if draw in given] if lease.lease_id in at_work else []
        )
    _adopt(ctx, working, given)
    repack_engines(ctx, working)
    newest = {name: policy.pin for name, policy in ctx.state.policies.items() if policy.version is not None}
    for lease in ctx.state.fleet.of_use(DeviceUse.ENGINE):
        if lease.child.incarnation:
            _hold(ctx, lease, given[lease.assigned.draws[0]] if lease.assigned.draws else newest)
    if not ctx.state.lifecycle.pause.frozen and ctx.state.cohorts:
        for lease in working:
            if _has_no_group(lease) and _holds(lease, newest):
                _give(ctx, lease)


def _given(ctx: Context) -> dict[int, Pins]:
    """Return the draws that play or are to, each with its vector."""
    state = ctx.state
    given: dict[int, Pins] = {draw: pins for cohort in state.cohorts for draw, pins in cohort.older.items()}
    if state.evaluation is not None:
        given |= dict.fromkeys(state.evaluation.open, state.evaluation.pins)
    return given


def _adopt(ctx: Context, working: Sequence[LeaseState], given: Mapping[int, Pins]) -> None:
    """Find an engine for draws that have none: their own is gone, or, of an evaluation, nobody was named."""
    played = {draw for lease in working for draw in lease.assigned.draws}
    for draw, pins in given.items():
        if draw in played:
            continue
        alike = sorted(
            (x for x in working if x.assigned.draws and _same(given[x.assigned.draws[0]], pins)),
            key=lambda x: len(x.assigned.draws),
        )
        roomy = [x for x in alike if len(x.assigned.draws) < _at_once(ctx) or draw >= EVALUATION_DRAWS]
        free = [x for x in working if not x.assigned.draws and x.child.incarnation]
        holding = [x for x in free if _holds(x, pins)]
        chosen = next(iter(roomy or holding or free or alike), None)
        if chosen is not None:
            chosen.assigned.draws.append(draw)
            chosen.assigned.given_at = ctx.now


def _at_once(ctx: Context) -> int:
    """Return how many groups an engine is given at once: its part of a step's, among as many as there are now."""
    engines = ctx.plan.engines
    if engines.least == engines.most:
        return engines.groups_at_once
    return -(-ctx.plan.cohort.groups // max(engines.least, len(ctx.state.fleet.at_work(DeviceUse.ENGINE))))


def _has_no_group(lease: LeaseState) -> bool:
    """Tell whether an engine is free for groups; tasks of an evaluation do not keep it from them."""
    return all(draw >= EVALUATION_DRAWS for draw in lease.assigned.draws)


def _hold(ctx: Context, lease: LeaseState, wanted: Pins) -> None:
    """Let an engine forget what it is not to hold, then load what it is to."""
    loading = ctx.state.outstanding
    for name, pin in wanted.items():
        load = f"load:{lease.lease_id}:{name}"
        other = load in loading and loading[load].version != pin.version
        if name not in lease.weights.leaving and (other or lease.weights.held.get(name, pin.version) != pin.version):
            dismiss(ctx, lease, name)
    for name in lease.weights.leaving:
        key = f"unload:{lease.lease_id}:{name}"
        if ctx.wanted(key):
            to = lease.assigned.continued_by
            ctx.issue(
                key,
                UnloadPolicy(lease_id=lease.lease_id, policy=name, hand_over=to != 0, to=to),
                lease_id=lease.lease_id,
            )
            lease.weights.removals[name] = loading[key].no
    if lease.weights.leaving:
        return
    lease.assigned.continued_by = 0
    for name, pin in wanted.items():
        key = f"load:{lease.lease_id}:{name}"
        if name not in lease.weights.held and ctx.wanted(key):
            order = LoadWeights(lease_id=lease.lease_id, policy=name, version=pin.version, digest=pin.digest)
            ctx.issue(key, order, lease_id=lease.lease_id, version=pin.version)


def _give(ctx: Context, lease: LeaseState) -> None:
    """Give an engine its part of a step's groups, the oldest first, under the vector that it holds."""
    left = _at_once(ctx)
    for cohort in ctx.state.cohorts:
        for key, draws in _waiting(cohort).items():
            if left <= 0:
                return
            if not ctx.wanted(key):
                continue
            give(ctx, cohort, key, draws, ctx.state.vector(), lease.lease_id)
            lease.assigned.draws += draws
            lease.assigned.given_at = ctx.now
            left -= len(draws)


def _waiting(cohort: Cohort) -> dict[str, list[int]]:
    """Return the draws that no engine was given, by the command that will play them."""
    by_key: dict[str, list[int]] = {}
    for draw, key in cohort.open.items():
        if draw not in cohort.older:
            by_key.setdefault(key, []).append(draw)
    return by_key


def _same(one: Pins, other: Pins) -> bool:
    return all(one[name].version == pin.version for name, pin in other.items())


def _holds(lease: LeaseState, pins: Pins) -> bool:
    if not lease.child.incarnation or lease.weights.leaving:
        return False
    return all(lease.weights.held.get(name) == pin.version for name, pin in pins.items())
