"""Why a command is decided, in one line for people. Pure and short: it is told with every command.

A part of the core that knows more than the command says gives its own reason instead.
"""

from collections.abc import Callable
from typing import Any

from flexmarl.contracts.commands import (
    Accumulate,
    BindPolicy,
    Command,
    CutMicroBatch,
    HoldGroups,
    HostLease,
    JoinGang,
    KeepCheckpoints,
    LoadWeights,
    OptimizerStep,
    PlayGroups,
    ReleaseLease,
    RequestDevices,
    SleepEngine,
    SuspendPolicy,
    UnloadPolicy,
    VacateTrainer,
    WakeEngine,
    WriteCheckpoint,
)
from flexmarl.contracts.events import DeviceUse
from flexmarl.contracts.status import TERMINAL, RunStatus
from flexmarl.contracts.wire import Origin
from flexmarl.orchestrator.state.fleet import LeaseState
from flexmarl.orchestrator.state.tree import RunState

POLICIES_NAMED = 4
"""Longest version vector that a reason spells out."""


def reason_of(state: RunState, command: Command, key: str = "", why: str = "") -> str:
    """Say why a command is decided now, in the words given or its own; one that failed before says how often."""
    text = why or _REASONS[type(command)](state, command)
    failure = state.failures.get(key) if key else None
    return text if failure is None else f"{text}; tried again after {_count(failure.count, 'failure')}"


def _request(state: RunState, command: RequestDevices) -> str:
    if command.replaces:
        lease = state.fleet.leases.get(command.replaces)
        where = lease.device_id if lease is not None else f"lease {command.replaces}"
        return f"{where} is recalled; the run keeps using it until another device is ready"
    if command.extra:
        return "another engine would be used; it is granted while nobody waits for devices"
    trainers = command.trainers + command.beside
    missing = [_count(n, use) for n, use in ((command.engines, "engine"), (trainers, "trainer")) if n]
    return f"the run lacks {' and '.join(missing)}; they are granted together"


def _host(state: RunState, command: HostLease) -> str:
    article = "an" if command.use is DeviceUse.ENGINE else "a"
    return f"{command.device_id} was granted for {article} {command.use}"


def _release(state: RunState, command: ReleaseLease) -> str:
    lease = state.fleet.leases.get(command.lease_id)
    if lease is not None and lease.recalled:
        return f"{lease.device_id} is recalled: {lease.recalled}"
    if lease is not None and lease.replaces:
        return f"{lease.device_id} was the replacement of a lease that stays or has ended"
    if state.lifecycle.pause.frozen and state.lifecycle.status not in TERMINAL | {RunStatus.PAUSED, RunStatus.PAUSING}:
        return f"a part of the run's devices is permanently lost, and other runs can use {_where(lease)}"
    return f"the run is {state.lifecycle.status} and no longer needs the device"


def _where(lease: LeaseState | None) -> str:
    return "it" if lease is None else lease.device_id


def _play(state: RunState, command: PlayGroups) -> str:
    groups = _count(len(command.groups), "group")
    if command.origin is Origin.EVAL:
        return f"evaluation after step {command.cohort}: {groups} under {_vector(command)}"
    verb = "is" if len(command.groups) == 1 else "are"
    where = (
        f", assigned to {_where(state.fleet.leases[command.engine])}" if command.engine in state.fleet.leases else ""
    )
    return f"{groups} of step {command.cohort + 1} {verb} open, pinned to {_vector(command)}{where}"


def _hold(state: RunState, command: HoldGroups) -> str:
    what = f"the surplus in {_count(len(command.commands), 'command')}"
    if command.hold:
        return f"step {state.step + 1} has its groups: {what} is suspended until it is trained"
    return f"{what} continues: step {state.step + 1} begins"


def _vector(command: PlayGroups) -> str:
    if len(command.pins) > POLICIES_NAMED:
        return f"a vector of {len(command.pins)} policies"
    return ", ".join(f"{name} v{pin.version}" for name, pin in command.pins.items())


def _bind(state: RunState, command: BindPolicy) -> str:
    if command.version is None:
        return f"{command.policy} has no version yet"
    if command.resume:
        return f"{command.policy} has work: it continues at v{command.version} with its accumulated gradients"
    return f"no trainer holds {command.policy}: it restarts from v{command.version}, the newest committed version"


def _suspend(state: RunState, command: SuspendPolicy) -> str:
    lease = state.fleet.leases.get(command.lease_id)
    where = f"lease {command.lease_id}" if lease is None else lease.device_id
    if lease is not None and lease.sharing.engine_lease and state.fleet.shared.side == "engines":
        return f"the engine on {where} must wake"
    return f"{where} is needed for another policy than {command.policy}"


def _vacate(state: RunState, command: VacateTrainer) -> str:
    return f"the engine on {_where(state.fleet.leases.get(command.lease_id))} must wake"


def _sleep(state: RunState, command: SleepEngine) -> str:
    return f"no episode is playing, and the trainer on {_where(state.fleet.leases.get(command.lease_id))} has work"


def _wake(state: RunState, command: WakeEngine) -> str:
    return f"the trainer on {_where(state.fleet.leases.get(command.lease_id))} holds no policy"


def _join(state: RunState, command: JoinGang) -> str:
    rank = command.gang.index(command.lease_id)
    return f"{command.policy} is bound to {len(command.gang)} devices, and this one is its rank {rank}"


def _cut(state: RunState, command: CutMicroBatch) -> str:
    groups = len({sample.draw for sample in command.samples})
    if command.replayed:
        rows = _count(len(command.samples), "row")
        return f"step {command.cohort + 1} is taken on {rows} of {_count(groups, 'earlier group')} again"
    give = "gives" if groups == 1 else "give"
    return f"{_count(groups, 'kept group')} of step {command.cohort + 1} {give} {_count(len(command.samples), 'row')}"


def _accumulate(state: RunState, command: Accumulate) -> str:
    return f"micro-batch {command.micro_batch} is cut and accumulator {command.accumulator} is open"


def _step(state: RunState, command: OptimizerStep) -> str:
    parts = _count(len(command.micro_batches), "micro-batch", "micro-batches")
    return f"step {command.step + 1} is complete for {command.policy}: {parts} accumulated, so v{command.next_version}"


def _load(state: RunState, command: LoadWeights) -> str:
    lease = state.fleet.leases.get(command.lease_id)
    held = None if lease is None else lease.weights.held.get(command.policy)
    where = f"lease {command.lease_id}" if lease is None else lease.device_id
    return f"{where} holds {'no version' if held is None else f'v{held}'}, v{command.version} is to be served"


def _unload(state: RunState, command: UnloadPolicy) -> str:
    lease = state.fleet.leases.get(command.lease_id)
    if lease is not None and command.to:
        destination = _where(state.fleet.leases.get(command.to))
        return f"replies of {lease.device_id} continue at {destination}; it loads new weights"
    if lease is None:
        return f"lease {command.lease_id} no longer serves {command.policy}"
    if not lease.weights.assigned:
        return f"{lease.device_id} no longer serves this version of {command.policy}"
    return f"{lease.device_id} serves {', '.join(lease.weights.assigned)} and no longer {command.policy}"


def _checkpoint(state: RunState, command: WriteCheckpoint) -> str:
    why = {"best": "one of the best evaluated vectors so far", "last": "the newest vector"}.get(
        command.label, "its interval"
    )
    return f"{why}, after step {command.step}"


def _keep(state: RunState, command: KeepCheckpoints) -> str:
    steps = ", ".join(f"{kept.step} ({' and '.join(kept.why)})" for kept in command.kept)
    return f"of the checkpoints up to step {command.newest} the rules keep {steps or 'none'}"


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


_REASONS: dict[type[Any], Callable[[RunState, Any], str]] = {
    RequestDevices: _request,
    HostLease: _host,
    ReleaseLease: _release,
    PlayGroups: _play,
    HoldGroups: _hold,
    BindPolicy: _bind,
    SuspendPolicy: _suspend,
    JoinGang: _join,
    CutMicroBatch: _cut,
    Accumulate: _accumulate,
    OptimizerStep: _step,
    LoadWeights: _load,
    UnloadPolicy: _unload,
    SleepEngine: _sleep,
    WakeEngine: _wake,
    VacateTrainer: _vacate,
    WriteCheckpoint: _checkpoint,
    KeepCheckpoints: _keep,
}
