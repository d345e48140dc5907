"""Devices that engines and trainers share: the state as `colocation` sees it, and the commands that turn them over.

Invariants: where a run is colocated, a trainer's lease names the engine's whose device it is on, unless the device is
its own: then it is given policies at any time, and devices turn for what waits beyond it alone. An engine that
sleeps holds nothing. Policies leave a trainer, and it says that it keeps nothing, before its device's engine is woken;
an engine's loads are answered before it is asked to sleep. A child that dies holds nothing either.
"""

from collections.abc import Collection, Sequence

from flexmarl.contracts.commands import SleepEngine, VacateTrainer, WakeEngine
from flexmarl.contracts.events import DeviceUse, EngineSlept, EngineWoke, TrainerVacated
from flexmarl.contracts.rulings import RulingKind
from flexmarl.orchestrator.allocation.colocation import SharedDevice, lent, may_load, turn, whose
from flexmarl.orchestrator.allocation.paused_surplus import stands_still
from flexmarl.orchestrator.allocation.rollout_windows import beside_text, emptied, trains_beside
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.state.fleet import LeaseState, Side

_ORDERS: dict[str, type[SleepEngine | WakeEngine | VacateTrainer]] = {
    "sleep": SleepEngine, "vacate": VacateTrainer, "wake": WakeEngine,
}  # fmt: skip


def drive_turns(ctx: Context, work: Collection[str]) -> None:
    """Decide who is to have the shared devices, and ask engines to sleep or to wake. `work`: policies with work."""
    state = ctx.state
    waiting = [name for name in work if not ctx.plan.trainers.own_devices or _needs_shared(ctx, name)]
    beside = trains_beside(ctx, waiting)
    plays, trains = _plays(ctx) and not beside, _trains(ctx, waiting) or beside
    side = whose(state.fleet.shared.side, plays=plays, trains=trains)
    if side != state.fleet.shared.side:
        seconds = ctx.now - state.fleet.shared.since
        why = beside_text(ctx, waiting, seconds) if beside else _why(side, waiting, seconds)
        ctx.rule(RulingKind.DEVICES_TURNED, why, cause=f"to_{side}")
        state.fleet.shared.side, state.fleet.shared.since = side, ctx.now
    for trainer in state.fleet.of_use(DeviceUse.TRAINER):
        if not trainer.sharing.engine_lease:
            continue
        device = describe(ctx, trainer)
        wanted = turn(side, device)
        if wanted == "sleep" and beside and not emptied(ctx, device.engine):
            continue
        lease_id = device.trainer if wanted == "vacate" else device.engine
        if wanted is not None and ctx.wanted(key := f"{wanted}:{lease_id}"):
            ctx.issue(key, _ORDERS[wanted](lease_id=lease_id), lease_id=lease_id)


def describe(ctx: Context, trainer: LeaseState) -> SharedDevice:
    """Describe the device of a trainer that shares it. A policy that nobody trains leaves nothing in a trainer."""
    engine, waiting = ctx.state.fleet.leases.get(trainer.sharing.engine_lease), ctx.state.outstanding
    no = 0 if engine is None else engine.lease_id
    residents = tuple(
        name
        for name, policy in ctx.state.policies.items()
        if trainer.lease_id in policy.placement.gang and (name in ctx.plan.trainable or f"bind:{name}" in waiting)
    )
    return SharedDevice(
        answers=engine is not None and bool(engine.child.incarnation),
        asleep=engine is not None and engine.sharing.asleep,
        turning=f"sleep:{no}" in waiting or f"wake:{no}" in waiting,
        loading=any(f"load:{no}:{name}" in waiting for name in ctx.state.policies),
        engine=no,
        trainer=trainer.lease_id,
        residents=residents,
        manned=bool(trainer.child.incarnation),
        vacant=trainer.sharing.asleep,
        leaving=f"vacate:{trainer.lease_id}" in waiting,
        engine_awaits_successor=engine is not None and engine.sharing.awaits_successor,
        trainer_awaits_successor=trainer.sharing.awaits_successor,
    )


def may_train(ctx: Context, trainer: LeaseState) -> bool:
    """Tell whether a trainer may be given policies: always where it has its device for itself."""
    return not trainer.sharing.engine_lease or lent(describe(ctx, trainer))


def may_serve(ctx: Context, engine: LeaseState) -> bool:
    """Tell whether an engine may be given weights: always where nobody shares its device."""
    if not ctx.plan.trainers.colocated:
        return True
    trainer = next(
        (x for x in ctx.state.fleet.of_use(DeviceUse.TRAINER) if x.sharing.engine_lease == engine.lease_id), None
    )
    return trainer is None or may_load(ctx.state.fleet.shared.side, describe(ctx, trainer))


def trainers_turn(ctx: Context) -> bool:
    """Tell whether all trainers are to have their devices: always where these are their own."""
    return not ctx.plan.trainers.colocated or ctx.state.fleet.shared.side == "trainers"


def given_now(ctx: Context, trainers: Sequence[LeaseState]) -> list[LeaseState]:
    """List the trainers that may be given policies in whose turn it is: those with devices of their own always."""
    return [trainer for trainer in trainers if trainers_turn(ctx) or not trainer.sharing.engine_lease]


def engines_turn(ctx: Context) -> bool:
    """Tell whether episodes may begin: always where engines have devices of their own."""
    return not ctx.plan.trainers.colocated or ctx.state.fleet.shared.side == "engines"


def on_engine_slept(ctx: Context, event: EngineSlept) -> None:
    """An engine gave its memory up."""
    _turned(ctx, "sleep", event)


def on_engine_woke(ctx: Context, event: EngineWoke) -> None:
    """An engine takes weights again."""
    _turned(ctx, "wake", event)


def on_trainer_vacated(ctx: Context, event: TrainerVacated) -> None:
    """A trainer keeps nothing on its device."""
    _turned(ctx, "vacate", event)


def _turned(ctx: Context, what: str, event: EngineSlept | EngineWoke | TrainerVacated) -> None:
    lease, key = ctx.state.fleet.leases.get(event.lease_id), f"{what}:{event.lease_id}"
    waiting = ctx.state.outstanding.get(key)
    if (
        lease is None
        or lease.child.incarnation != event.incarnation
        or waiting is None
        or waiting.no != event.command_no
    ):
        return
    ctx.answered(key)
    lease.sharing.asleep, lease.sharing.last_change = not isinstance(event, EngineWoke), event.command_no
    lease.weights.held.clear()
    lease.weights.previous.clear()


def _plays(ctx: Context) -> bool:
    """Tell whether an episode is not over that plays now. Those of a run that froze are played again later."""
    state = ctx.state
    if state.lifecycle.pause.frozen:
        return False
    return state.evaluation is not None or any(own.open and not stands_still(ctx, own) for own in state.cohorts)


def _trains(ctx: Context, work: Collection[str]) -> bool:
    """Tell whether trainers have something to do: gradients, steps, checkpoints, policies that none of them holds."""
    state, head = ctx.state, ctx.state.cohort
    if work or ctx.plan.trainers.own_devices:  # who has a device of its own does all else there
        return bool(work)
    if state.checkpoints or not all(policy.accumulator for policy in state.policies.values()):
        return True
    # What a step leads to, such as a checkpoint, is known once its books are closed, in the same decision.
    stepped = (
        head is not None and head.times.settled_at is not None and all(own.stepped for own in head.policies.values())
    )
    return head is not None and stepped and head.times.stepped_at is None


def _needs_shared(ctx: Context, name: str) -> bool:
    """Tell whether what a policy has to do waits for a shared device, or is done on one."""
    state, spec = ctx.state, ctx.plan.spec
    own = {lease.lease_id for lease in state.fleet.trainers() if not lease.sharing.engine_lease}
    gang, homes = state.policies[name].placement.gang, spec.mechanisms.allocation.homes.get(name, ())
    if gang:
        return not own.issuperset(gang)
    if homes:
        return min(homes) < spec.resources.training_devices - ctx.plan.trainers.own_devices
    residents: dict[int, list[int]] = {lease_id: [] for lease_id in own}
    for policy in state.policies.values():
        for lease_id in own.intersection(policy.placement.gang):
            residents[lease_id].append(len(policy.placement.gang))
    least, places = spec.policies[name].devices.least, spec.resources.trainer_policies or len(state.policies)
    room = [sizes for sizes in residents.values() if not sizes or (least == max(sizes) == 1 and len(sizes) < places)]
    return len(room) < least


def _why(side: Side, work: Collection[str], seconds: float) -> str:
    if side == "engines":
        return f"training is done after {seconds:.1f} s: trainers release the devices, engines wake"
    what = f"{', '.join(sorted(work))} to train" if work else "other work"
    return f"no episode is playing after {seconds:.1f} s and trainers have {what}: engines sleep"
