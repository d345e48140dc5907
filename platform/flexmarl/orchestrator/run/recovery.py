"""Devices and the children on them: granted, ready, lost, ended; and commands that failed.

Invariants: an event of another life than the one known is ignored; what a lost child was asked for is void; nothing
that was committed is undone. A lease that ends while the run wants it is replaced by a new request, a bounded number
of times between two finished steps.
"""

from dataclasses import dataclass

from flexmarl.contracts.commands import HostLease, ReleaseLease, RequestDevices
from flexmarl.contracts.decisions import NoteLevel
from flexmarl.contracts.events import ChildLost, ChildReady, CommandFailed, DevicesGranted, DeviceUse, LeaseEnded
from flexmarl.contracts.status import (
    MEMORY_NEXT,
    QUOTA_NEXT,
    SPACE_NEXT,
    TERMINAL,
    UPLOAD_NEXT,
    RunReason,
    RunStatus,
)
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.pool.device_requests import GANG, JOIN, replaced_by, request_of, rollout_pool, training_pool
from flexmarl.orchestrator.run import attempts
from flexmarl.orchestrator.run.children import forget_child
from flexmarl.orchestrator.run.elasticity import may_do_without, note_loss, size_text
from flexmarl.orchestrator.run.lease_recalls import give_back_pair
from flexmarl.orchestrator.run.lifecycle import fail, move
from flexmarl.orchestrator.run.pausing import needs_devices
from flexmarl.orchestrator.state.fleet import DeviceSharing, LeaseState
from flexmarl.orchestrator.training.trainers import unbind

MAX_REPLACEMENTS = 4
"""Leases lost between two finished steps before the run is given up: more is a fault, not bad luck. A run of more
devices may lose each of them once, since a host that goes takes all of its own."""
MENDED_BY_BINDING = frozenset({"version_differs", "version_conflict", "accumulator_differs"})
"""Refusals of the store that a fresh bind at the committed version mends."""
GONE = frozenset({"not_bound", "other_accumulator"})
"""Refusals by which a trainer says that it does not hold what it is to suspend."""
BEGINNING = frozenset({RunStatus.STARTING, RunStatus.RESUMING})
"""Statuses in which a child that cannot start is the run's first of its kind: another device would be tried in vain."""
REMEMBERED_LIVES = 16
"""Lost lives of a lease that are recognised when their announcement comes late."""
REMEMBERED_LEASES = 64
"""Ended leases that are recognised when their grant comes late."""


@dataclass(frozen=True, slots=True)
class _Wait:
    """What a refusal that only people mend makes the run say."""

    reason: RunReason
    words: str
    next: str


WAITS = {
    "state_full": _Wait(RunReason.WAITING_FOR_SPACE, "disk space", SPACE_NEXT),
    "upload_quota": _Wait(RunReason.WAITING_FOR_SPACE, "room on another node", QUOTA_NEXT),
    "upload_unavailable": _Wait(RunReason.WAITING_FOR_UPLOAD, "an upload", UPLOAD_NEXT),
}
"""Refusals of nodes that somebody outside the run mends. Nothing is lost: the work is tried again until then."""
SELF_EXPLAINED = frozenset({"origin_forbidden"})
"""Refusals that say by themselves what to do."""
MAX_FAILURES = 5
"""Failures of the same work in a row before the run is given up."""


def drive_devices(ctx: Context) -> None:
    """Ask for the devices the run wants and does not have, as one gang."""
    resources = ctx.plan.spec.resources
    engines = ctx.plan.engines.least - len(ctx.state.fleet.at_work(DeviceUse.ENGINE))
    held = ctx.state.fleet.at_work(DeviceUse.TRAINER)
    own = ctx.plan.trainers.own_devices - sum(not lease.sharing.engine_lease for lease in held)
    beside = (
        resources.training_devices
        - ctx.plan.trainers.own_devices
        - sum(lease.sharing.engine_lease > 0 for lease in held)
    )
    if (engines > 0 or own > 0 or beside > 0) and needs_devices(ctx.state) and ctx.wanted("devices"):
        attempts.begin(ctx)
        command = RequestDevices(
            pool=rollout_pool(ctx),
            engines=max(engines, 0),
            trainers=max(own, 0),
            engine_devices=resources.engine_devices,
            trainer_pool=training_pool(ctx),
            beside=max(beside, 0),
        )
        ctx.issue("devices", command)


def on_devices_granted(ctx: Context, event: DevicesGranted) -> None:
    """Start a child on every granted device; a run that ended meanwhile gives them back."""
    if ctx.state.lifecycle.status in TERMINAL:
        for lease in event.leases:
            ctx.emit(ReleaseLease(lease_id=lease.lease_id))
        return
    key = request_of(ctx, event)
    if key is None:
        return
    if key == JOIN:
        ctx.state.outstanding.pop(key)  # a device is there; whether its engine starts decides when to ask again
    else:
        ctx.answered(key)
    for granted in event.leases:
        if granted.lease_id not in ctx.state.fleet.leases and granted.lease_id not in ctx.state.fleet.ended:
            own = LeaseState(
                granted.lease_id,
                granted.device_id,
                granted.use,
                membership="joining" if key == JOIN else "member",
                replaces=replaced_by(key),
                sharing=DeviceSharing(engine_lease=granted.beside),
            )
            ctx.state.fleet.leases[own.lease_id] = own
            _host(ctx, own)
    if ctx.state.lifecycle.status is RunStatus.QUEUED:
        move(ctx, RunStatus.STARTING, RunReason.STARTING_CHILDREN, "starting the engine and the trainer")


def _host(ctx: Context, lease: LeaseState) -> None:
    command = HostLease(lease_id=lease.lease_id, device_id=lease.device_id, use=lease.use)
    ctx.issue(f"host:{lease.lease_id}", command, lease_id=lease.lease_id)


def on_child_ready(ctx: Context, event: ChildReady) -> None:
    """A child answers on its device. Whatever its predecessor held is gone."""
    lease = ctx.state.fleet.leases.get(event.lease_id)
    if lease is None or lease.releasing or event.incarnation in (*lease.child.alive, *lease.child.gone):
        return
    if lease.child.incarnation:
        forget_child(ctx, lease)
    ctx.answered(f"host:{event.lease_id}")
    lease.child.alive.append(event.incarnation)
    lease.child.incarnation = event.incarnation
    lease.sharing.awaits_successor = False
    if lease.child.losses:
        ctx.note(f"{lease.use} on {lease.device_id} is back", target=f"lease:{lease.lease_id}")


def on_child_lost(ctx: Context, event: ChildLost) -> None:
    """The child of a lease is gone; its device worker starts the next one by itself."""
    lease = ctx.state.fleet.leases.get(event.lease_id)
    if not event.ready:
        _say_not_started(ctx, lease, event.reason)
        return
    lost = event.incarnation or (lease.child.incarnation if lease is not None else "")
    if lease is None or not lost or lost in lease.child.gone:
        return
    lease.child.gone = [*lease.child.gone, lost][-REMEMBERED_LIVES:]
    lease.child.alive = [life for life in lease.child.alive if life != lost]
    if lost != lease.child.incarnation:
        return
    forget_child(ctx, lease)
    lease.child.losses += 1
    lease.child.incarnation = lease.child.alive[-1] if lease.child.alive else ""
    lease.sharing.awaits_successor = lease.sharing.awaits_successor and not lease.child.incarnation
    if not lease.releasing:
        why = f": {event.reason}" if event.reason else ""
        ctx.note(f"{lease.use} on {lease.device_id} lost{why}", NoteLevel.WARNING, target=f"lease:{lease.lease_id}")


def _say_not_started(ctx: Context, lease: LeaseState | None, why: str) -> None:
    """Say on the run at once that a child ended before it was ready, while its device worker tries again."""
    if lease is None or lease.releasing or ctx.state.lifecycle.status in TERMINAL:
        return
    text = f"{lease.use} on {lease.device_id} did not start: {why}; it is restarted"
    ctx.note(text, NoteLevel.WARNING, target=f"lease:{lease.lease_id}")
    if ctx.state.lifecycle.status is RunStatus.STARTING:
        ctx.state.lifecycle.reason_text = text


def on_lease_ended(ctx: Context, event: LeaseEnded) -> None:
    """A device is free again. If the run still wanted it, another is asked for."""
    lease = ctx.state.fleet.leases.get(event.lease_id)
    ctx.state.fleet.ended = [*ctx.state.fleet.ended, event.lease_id][-REMEMBERED_LEASES:]
    if lease is None:
        return
    spare = ctx.plan.spec.resources.elastic and may_do_without(ctx, lease)
    if lease.child.incarnation:
        forget_child(ctx, lease)
    del ctx.state.fleet.leases[event.lease_id]
    ctx.state.outstanding.pop(f"host:{event.lease_id}", None)
    if lease.releasing or ctx.state.lifecycle.status in TERMINAL:
        return
    why = event.reason or "no reason given"
    if spare:
        text = f"engine on {lease.device_id} ended: {why}; {size_text(ctx)}"
        ctx.note(text, NoteLevel.WARNING, target=f"lease:{lease.lease_id}")
        note_loss(ctx, lease)
        return
    give_back_pair(ctx, lease)
    ctx.state.fleet.replacements += 1
    ctx.note(f"{lease.use} on {lease.device_id} ended: {why}", NoteLevel.ERROR, target=f"lease:{lease.lease_id}")
    alone = not any(other.child.incarnation for other in ctx.state.fleet.at_work(lease.use))
    if event.cannot_start and alone and ctx.state.lifecycle.status in BEGINNING:
        text = f"the {lease.use} on {lease.device_id} cannot start: {why}"
        fail(ctx, RunReason.CANNOT_START, f"{text}; then retry the run")
        return
    resources = ctx.plan.spec.resources
    devices = resources.most_rollout_devices + resources.training_devices
    if ctx.state.fleet.replacements > max(MAX_REPLACEMENTS, devices):
        text = (
            f"{ctx.state.fleet.replacements} leases ended without a finished step between them; the last reason: {why}"
        )
        reason = RunReason.OUT_OF_MEMORY if why.startswith(RunReason.OUT_OF_MEMORY) else RunReason.CHILDREN_LOST
        fail(ctx, reason, f"{text}; read the log of {lease.device_id}'s node")
        return
    ctx.withdraw(GANG)  # a request on its way asks for less than the run lacks now, and a gang is asked for whole


def on_command_failed(ctx: Context, event: CommandFailed) -> None:
    """Repeat what may be repeated, after a back-off; otherwise give up with the cause in words."""
    key = ctx.state.outstanding.key_of(event.command_no)
    if key is None or ctx.state.lifecycle.status in TERMINAL:
        return
    kind, _, name = key.partition(":")
    del ctx.state.outstanding[key]
    if kind == "suspend" and event.code not in GONE:
        ctx.failed(key)  # it stays where it is and goes on; whoever waits for its devices waits on
        ctx.note(f"{name} cannot be suspended ({event.code}): {event.message[:500]}", NoteLevel.WARNING)
        return
    if kind in ("accumulate", "step", "bind", "join", "suspend"):
        # The trainer's state is in doubt now: one back-off per policy, and everything of it again.
        name = name.partition(":")[0]
        key = f"policy:{name}"
        unbind(ctx, name)
    if (wait := WAITS.get(event.code)) is not None:
        _wait(ctx, key, event, wait)
        return
    count = ctx.failed(key)
    ctx.note(
        f"{event.command_kind} failed ({event.code}): {event.message[:500]}",
        NoteLevel.WARNING,
        target=f"command:{event.command_no}",
    )
    if (event.retryable or event.code in MENDED_BY_BINDING) and count < MAX_FAILURES:
        return
    _give_up(ctx, kind, name, event)


def _wait(ctx: Context, key: str, event: CommandFailed, wait: _Wait) -> None:
    """Hold work back until it can be done, and say so once: the same words every ten seconds would fill a disk."""
    text = f"{event.command_kind.replace('_', ' ')} waits for {wait.words}: {event.message[:300]}; {wait.next}"
    if ctx.failed(key, text, wait.reason) == 1:
        ctx.note(text, NoteLevel.ERROR, target=f"command:{event.command_no}")


def _give_up(ctx: Context, kind: str, name: str, event: CommandFailed) -> None:
    if kind == "checkpoint":
        wanted = ctx.state.checkpoints.pop(name, None)
        step = "" if wanted is None else f" after step {wanted.step}"
        ctx.note(f"the {name} checkpoint{step} was not written: {event.message[:300]}", NoteLevel.ERROR)
        return
    words = f"{event.command_kind} failed: {event.message[:300]} ({event.code})"
    if event.code == RunReason.OUT_OF_MEMORY:
        fail(ctx, RunReason.OUT_OF_MEMORY, f"{words}; {MEMORY_NEXT}")
        return
    advice = {
        "play": "open the log of the rollout worker",
        "load": "open the log of the engine",
        "unload": "open the log of the engine",
        "sleep": "open the log of the engine",
        "wake": "open the log of the engine",
        "host": "open the log of the device's node",
    }.get(kind, "open the log of the trainer")
    if event.code in SELF_EXPLAINED:
        advice = "it was not tried again"
    fail(ctx, RunReason.COMMAND_FAILED, f"{words}; {advice}")


def drive_hosts(ctx: Context) -> None:
    """Issue the hosting of a lease again whose command failed."""
    failed = sorted(int(key.partition(":")[2]) for key in ctx.state.failures if key.startswith("host:"))
    for lease, key in [(ctx.state.fleet.leases.get(lease_id), f"host:{lease_id}") for lease_id in failed]:
        if lease is not None and not lease.child.incarnation and not lease.releasing and ctx.wanted(key):
            _host(ctx, lease)
