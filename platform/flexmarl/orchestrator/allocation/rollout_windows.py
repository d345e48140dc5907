"""Steps in which shared devices generate for a while only: what they have not ended goes on elsewhere, trainers begin.

Invariants: engines give shared devices up before nothing plays any more only when the window of the step has passed,
trainers have something to do, and an engine with a device of its own holds all that unsettled groups pin. From then on
the devices stay with the trainers until the step is done, or no such engine is left. An engine is emptied before it
sleeps: its replies go on with the tokens that they have, and under the same weights, so a cohort stays what it is.
"""

from collections.abc import Collection

from flexmarl.algorithms.rollout_window import next_window
from flexmarl.contracts.commands import UnloadPolicy
from flexmarl.contracts.events import DeviceUse
from flexmarl.contracts.specification.rollout_window import FixedWindow, MeasuredWindow
from flexmarl.orchestrator.allocation.held_weights import dismiss, holds
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.state.cohort import Cohort
from flexmarl.orchestrator.state.fleet import LeaseState


def trains_beside(ctx: Context, work: Collection[str]) -> bool:
    """Tell whether trainers have the shared devices though something plays. `work`: policies that wait for them."""
    shared, head = ctx.state.fleet.shared, ctx.state.cohort
    window_s, shared.ends_at = _window_s(ctx), None
    if window_s is None or head is None or not head.open or ctx.state.lifecycle.pause.frozen or not _others(ctx, head):
        return False
    if shared.beside == head.no:
        return True
    ends_at = head.times.opened_at + window_s
    if ctx.now < ends_at:
        shared.ends_at = ends_at
        return False
    if not work:
        return False
    shared.beside, shared.waited_s = head.no, _waited_s(ctx, head)
    return True


def beside_text(ctx: Context, work: Collection[str], seconds: float) -> str:
    """Say why engines give shared devices up while something plays."""
    return (
        f"the window has passed after {seconds:.1f} s and trainers have {', '.join(sorted(work))} to train: replies "
        f"there go on with {len(_apart(ctx))} other engines, engines sleep"
    )


def emptied(ctx: Context, engine_lease: int) -> bool:
    """Have an engine hand its replies over and forget what it holds; tell whether it has."""
    lease = ctx.state.fleet.leases.get(engine_lease)
    if lease is None:
        return True
    for name in sorted({*lease.weights.held, *lease.weights.previous}):
        dismiss(ctx, lease, name)
    for name in lease.weights.leaving:
        key = f"unload:{lease.lease_id}:{name}"
        if ctx.wanted(key):
            ctx.issue(key, UnloadPolicy(lease_id=lease.lease_id, policy=name, hand_over=True), lease_id=lease.lease_id)
            lease.weights.removals[name] = ctx.state.outstanding[key].no
    return not lease.weights.leaving


def measure_window(ctx: Context, cohort: Cohort) -> None:
    """Take in a step that has ended: how long shared devices generate in the next one."""
    options, shared, times = ctx.plan.trainers.window, ctx.state.fleet.shared, cohort.times
    if not isinstance(options, MeasuredWindow) or times.settled_at is None or times.stepped_at is None:
        return
    waited_s = max(0.0, _waited_s(ctx, cohort) - shared.waited_s) if shared.beside == cohort.no else 0.0
    before_s = options.first_s if shared.window_s is None else shared.window_s
    generated_s, idle_s = times.settled_at - times.opened_at, times.stepped_at - times.settled_at
    shared.window_s = max(options.least_s, next_window(before_s, generated_s, waited_s, idle_s))


def _window_s(ctx: Context) -> float | None:
    match ctx.plan.trainers.window:
        case FixedWindow(seconds=seconds):
            return seconds
        case MeasuredWindow(first_s=first_s):
            measured_s = ctx.state.fleet.shared.window_s
            return first_s if measured_s is None else measured_s
    return None


def _waited_s(ctx: Context, cohort: Cohort) -> float:
    since = cohort.times.idle_since
    return cohort.times.idle_s + (0.0 if since is None else ctx.now - since)


def _apart(ctx: Context) -> list[LeaseState]:
    """List the engines with devices of their own that answer."""
    fleet = ctx.state.fleet
    shared = {trainer.sharing.engine_lease for trainer in fleet.of_use(DeviceUse.TRAINER)}
    return [one for one in fleet.at_work(DeviceUse.ENGINE) if one.lease_id not in shared and one.child.incarnation]


def _others(ctx: Context, cohort: Cohort) -> bool:
    """Tell whether an engine with a device of its own can go on with all that is open of a cohort."""
    return any(all(holds(one, name, pin.version) for name, pin in cohort.pins.items()) for one in _apart(ctx))
