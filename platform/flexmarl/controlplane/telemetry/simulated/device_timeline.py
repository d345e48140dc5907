"""What a simulated run did, in the form in which pages draw real ones: devices, busy intervals, idle time by cause.

Invariant: nothing is drawn or accounted for otherwise than for a real run; only where rows come from differs. A moment
of a simulation is its seconds since 1970.
"""

from typing import Any

from flexmarl.contracts import commands as c
from flexmarl.contracts import events as e
from flexmarl.contracts.wire import Origin
from flexmarl.controlplane.telemetry.timeline import bubble
from flexmarl.controlplane.telemetry.timeline.timeline import device_rows
from flexmarl.controlplane.telemetry.timeline.windows import Window
from flexmarl.simulator.devices.trace import TOLD, DeviceTenure
from flexmarl.simulator.reporting.invariants import answered_by, asked_by
from flexmarl.simulator.reporting.watching import RunWatch
from flexmarl.store.reads.activity import CommandSpan, LeaseSpan
from flexmarl.store.telemetry.intervals import DeviceInterval


def timeline(watch: RunWatch, since: float, until: float) -> dict[str, Any]:
    """Return what `telemetry.timeline` returns of a real run, for a window of a simulated one."""
    window = Window(since, until)
    devices, found, _ = accounts(watch, window)
    return {
        "devices": device_rows(devices, found, window),
        "window": [since, until],
        "steps": steps(watch, window),
        "bubble": bubble.account(devices, window),
        "agents": bubble.rates(found, devices),
        "seq": watch.cluster.driver.handled,
    }


def intervals(watch: RunWatch, until: float) -> list[DeviceInterval]:
    """List the busy intervals that real children would have told, by device and time."""
    held = watch.cluster.trace.held
    found = [
        DeviceInterval(
            held[one.lease_id].device_id, one.lease_id, one.kind, one.policy, one.began, one.ended, round(one.tokens)
        )
        for one in watch.cluster.trace.until(until)
        if one.kind in TOLD
    ]
    return sorted(found, key=lambda one: (one.device_id, one.t0))


def commands(watch: RunWatch) -> list[CommandSpan]:
    """List what was asked of workers, from the decision to its answer."""
    answers: dict[Any, float] = {}
    settled: dict[int, float] = {}
    for now, fact in watch.facts:
        answers.setdefault(answered_by(fact), now)
        if isinstance(fact, e.GroupSettled):
            settled[fact.command_no] = now
    waiting = {command.no for command in watch.cluster.driver.core.state.outstanding.values()}
    spans = []
    for no, numbered in watch.commands.items():
        command, began = numbered.command, watch.decided[no]
        ended = watch.void.get(no, settled.get(no, answers.get(asked_by(no, command))))
        spans.append(
            CommandSpan(
                no=no, kind=command.kind, policy=getattr(command, "policy", ""),
                lease_id=getattr(command, "lease_id", 0), origin=getattr(command, "origin", Origin.TRAIN).value,
                cohort=getattr(command, "cohort", -1), micro_batch=getattr(command, "micro_batch", -1), t0=began,
                taken=began, t1=None if no in waiting else began if ended is None else ended, status="",
                version=_version(command),
            )
        )  # fmt: skip
    return spans


def _version(command: c.Command) -> int:
    """Return the version that a command makes or loads; -1 for others."""
    match command:
        case c.OptimizerStep():
            return command.next_version
        case c.LoadWeights():
            return command.version
    return -1


def accounts(
    watch: RunWatch, window: Window
) -> tuple[list[bubble.DeviceBubble], list[DeviceInterval], list[CommandSpan]]:
    """Return what `bubble.read` returns of a real run: devices, intervals and commands of a window."""
    since, until = window.since, window.until
    told = intervals(watch, until)
    found = [one for one in told if one.t1 > since and one.t0 < until]
    begun: dict[int, float] = {}
    for one in told:
        begun[one.lease_id] = min(one.t0, begun.get(one.lease_id, one.t0))
    held = watch.cluster.trace.held
    leases = [_lease(watch, lease, own, begun.get(lease)) for lease, own in held.items() if own.since < until]
    asked = commands(watch)
    return bubble.split(leases, found, asked, [], window), found, asked


def steps(watch: RunWatch, window: Window) -> list[dict[str, Any]]:
    """List the train steps that reach into a window."""
    stepped = [0.0, *watch.cluster.log.stepped]
    return [
        {"step": number, "t0": stepped[number - 1], "t1": at}
        for number, at in enumerate(stepped[1:], start=1)
        if at > window.since and stepped[number - 1] < window.until
    ]


def _lease(watch: RunWatch, lease_id: int, own: DeviceTenure, first_busy: float | None) -> LeaseSpan:
    until = None if own.until == float("inf") else own.until
    device = watch.cluster.pool.devices[own.device_id]
    return LeaseSpan(
        lease_id=lease_id, device_id=own.device_id, node=device.node, kind="virtual", pool=device.pool, use=own.use,
        state="held" if until is None else "ended", run_id=watch.cluster.name.run_id, since=own.since, until=until,
        first_busy=first_busy,
    )  # fmt: skip
