"""The size of an elastic fleet by measured rates: steps are measured as they end, the size is decided between two.

Invariants: only steps count that had the same engines all the time, lost none, and had no evaluation beside them; after
a change of the fleet all figures begin anew. The size never leaves the minimum and the maximum. What is measured are
times of the driver's clock that the core has anyway, so a replay of the log decides the same.
"""

from flexmarl.algorithms.scaling import FleetBounds, FleetRates, LearnedSize, ScalingHistory, Sizing, resize, suffices
from flexmarl.contracts.events import DeviceUse
from flexmarl.contracts.rulings import RulingKind
from flexmarl.contracts.specification.scaling import Scaling
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.plan import EnginePlan
from flexmarl.orchestrator.state.cohort import Cohort
from flexmarl.orchestrator.state.fleet import FleetState
from flexmarl.orchestrator.state.scaling import LearnedFleet, MeasuredStep, ScalingState

_SELDOM = 3
"""Steps between two evaluations from which on steps beside one are no measure of the others."""


def wanted_engines(engines: EnginePlan, fleet: FleetState) -> int:
    """Return how many engines the run asks for now."""
    if engines.scaling is None:
        return engines.most
    return min(engines.most, max(engines.least, fleet.scaling.target))


def measure_step(ctx: Context, cohort: Cohort, seconds: float) -> None:
    """Take in a step that has ended, and decide on the size of the fleet. `seconds` are those since the one before."""
    options = ctx.plan.engines.scaling
    if options is None:
        return
    own = ctx.state.fleet.scaling
    play_s, seen = _played(own, cohort), _seen(ctx)
    same = seen == own.seen and (ctx.state.evaluation is None or not _left_out(ctx))
    if not own.seen or seen[0] != own.seen[0]:
        own.recent.clear()
        own.since = own.since or ctx.now
    own.seen = seen
    if not same or seconds <= 0.0:
        return
    own.recent.append(MeasuredStep(seconds, min(cohort.times.idle_s, seconds), play_s, cohort.size))
    del own.recent[: -options.steps]
    _decide(ctx, options, own, cohort)


def _decide(ctx: Context, options: Scaling, own: ScalingState, cohort: Cohort) -> None:
    engines, rates = ctx.plan.engines, _rates(own)
    history = ScalingHistory(own.since, own.direction, own.reversals, _of(own.before), _of(own.enough))
    if not suffices(options, rates, history):
        return
    found = resize(options, FleetBounds(engines.least, engines.most), rates, history, ctx.now)
    if found is None:
        return
    _keep(own, found)
    if found.engines == rates.engines:
        return
    own.target, own.why = found.engines, found.why
    own.recent.clear()
    direction = "grow" if found.engines > rates.engines else "shrink"
    text = f"the fleet of {rates.engines} is to {direction} to {found.engines} engines: {found.why}"
    ctx.rule(RulingKind.FLEET_SIZED, text, cohort=cohort.no, cause=direction)
    ctx.note(text, target="run")


def _rates(own: ScalingState) -> FleetRates:
    return FleetRates(
        engines=int(own.seen[0]),
        steps=len(own.recent),
        seconds=sum(one.seconds for one in own.recent),
        wait_s=sum(one.wait_s for one in own.recent),
        play_s=sum(one.play_s for one in own.recent),
        groups=sum(one.groups for one in own.recent),
    )


def _keep(own: ScalingState, found: Sizing) -> None:
    after = found.history
    own.since, own.direction, own.reversals = after.since, after.direction, after.reversals
    own.before = LearnedFleet(after.before.engines, after.before.step_s)
    own.enough = LearnedFleet(after.enough.engines, after.enough.step_s)


def _of(learned: LearnedFleet) -> LearnedSize:
    return LearnedSize(learned.engines, learned.step_s)


def _played(own: ScalingState, cohort: Cohort) -> float:
    """Count the seconds in which groups of a cohort were open and none of an earlier one was."""
    times = cohort.times
    if times.settled_at is None:
        return 0.0
    play_s = max(0.0, times.settled_at - max(times.opened_at, own.played_until))
    own.played_until = max(own.played_until, times.settled_at)
    return play_s


def _seen(ctx: Context) -> list[float]:
    """Return the engines at work, and what shows that a step had others, lost one, or had an evaluation beside it."""
    fleet, evaluated = ctx.state.fleet, ctx.state.totals.eval_episodes
    members = fleet.at_work(DeviceUse.ENGINE)
    left_out = evaluated.finished + evaluated.failed + evaluated.cancelled if _left_out(ctx) else 0
    return [
        float(len(members)),
        float(sum(lease.lease_id for lease in members)),
        float(sum(lease.child.losses for lease in fleet.leases.values())),
        float(left_out),
    ]


def _left_out(ctx: Context) -> bool:
    """Tell whether steps beside an evaluation count for nothing: where nearly all are, evaluations are the load."""
    return ctx.plan.spec.evaluation.every_steps >= _SELDOM
