"""Where held device time went: busy, or idle by cause, over a window that is always said.

One definition everywhere: a device is *busy* while at least one closed interval covers the moment and *idle* for the
rest of the time in which the run held it; bubble = idle / held. Each idle second gets exactly one cause: the first in
the order below whose condition holds at that moment. So the causes add up to the bubble. Conditions are spans of
commands (written to settled, database clock) and intervals of other devices (their nodes' clocks); what no condition
explains is `decision`: nothing was asked of anybody.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.runs.models import Run
from flexmarl.controlplane.telemetry.timeline.spans import Spans, cut, length, merged
from flexmarl.controlplane.telemetry.timeline.windows import Window, window_of
from flexmarl.store.reads import activity
from flexmarl.store.reads.activity import CommandSpan, LeaseSpan
from flexmarl.store.telemetry import intervals
from flexmarl.store.telemetry.intervals import DeviceInterval

TRAINING = frozenset({"accumulate", "optimizer_step"})


class Cause(StrEnum):
    """Why a held device did nothing."""

    STARTING = "starting"
    HANDOVER = "handover"
    SAMPLES = "samples"
    TAIL = "tail"
    TURNS = "turns"
    TRAINER = "trainer"
    WEIGHTS = "weights"
    EVALUATION = "evaluation"
    CHECKPOINT = "checkpoint"
    PAUSED = "paused"
    DECISION = "decision"


TITLES: dict[Cause, str] = {
    Cause.STARTING: "Starting",
    Cause.HANDOVER: "Command in transit",
    Cause.SAMPLES: "Waiting for samples",
    Cause.TAIL: "Long tail",
    Cause.TURNS: "Between turns",
    Cause.TRAINER: "Waiting for trainer",
    Cause.WEIGHTS: "Waiting for weights",
    Cause.EVALUATION: "Evaluation",
    Cause.CHECKPOINT: "Checkpoint",
    Cause.PAUSED: "Paused",
    Cause.DECISION: "Between commands",
}
EXPLAINED: dict[Cause, str] = {
    Cause.STARTING: "The process had not worked yet: start-up, loading, binding.",
    Cause.HANDOVER: "Its command was issued and it was not working yet: transport, reading, reply.",
    Cause.SAMPLES: "The trainer had nothing to train while episode groups were still being played.",
    Cause.TAIL: "Episodes were still being played, on other engines only.",
    Cause.TURNS: "Episodes were being played and no engine generated: environment and rollout worker time.",
    Cause.TRAINER: "No training episodes were played while a trainer had gradients or an optimizer step to do.",
    Cause.WEIGHTS: "New weights were being loaded into an engine.",
    Cause.EVALUATION: "Only evaluation episodes were being played.",
    Cause.CHECKPOINT: "A checkpoint was being written.",
    Cause.PAUSED: "The run was paused by a user and kept its devices.",
    Cause.DECISION: "No command was issued: the driver's own time between an event and its command.",
}


@dataclass(frozen=True, slots=True)
class DeviceBubble:
    """One lease inside the window. Seconds; `busy + sum(causes) == held`."""

    lease: LeaseSpan
    held: Spans
    busy: Spans
    causes: Mapping[Cause, Spans]

    @property
    def held_s(self) -> float:
        """Seconds of the window in which the run held the device."""
        return length(self.held)

    @property
    def busy_s(self) -> float:
        """Seconds that closed intervals cover."""
        return length(self.busy)


def split(
    leases: Sequence[LeaseSpan],
    found: Iterable[DeviceInterval],
    commands: Sequence[CommandSpan],
    pauses: Sequence[tuple[float, float | None]],
    window: Window,
) -> list[DeviceBubble]:
    """Split the held time of each lease of ONE run into busy spans and idle spans by cause."""
    by_lease: dict[int, list[DeviceInterval]] = {lease.lease_id: [] for lease in leases}
    for interval in found:
        by_lease.setdefault(interval.lease_id, []).append(interval)
    rollout = {
        lease.served: merged((i.t0, i.t1) for i in by_lease[lease.lease_id] if i.phase == "rollout")
        for lease in leases
        if lease.use == "engine"
    }
    asked = _CommandSpans(commands, pauses, window)
    out = []
    for lease in leases:
        end = window.until if lease.until is None else min(lease.until, window.until)
        held = merged([(max(lease.since, window.since), end)])
        busy, idle = cut(held, merged((i.t0, i.t1) for i in by_lease[lease.lease_id]))
        others = merged(s for other, spans in rollout.items() if other != lease.served for s in spans)
        out.append(DeviceBubble(lease, held, busy, _causes(idle, asked.conditions(lease, others))))
    return [row for row in out if row.held]


class _CommandSpans:
    """Spans of the commands to the run's workers, by kind."""

    def __init__(
        self, commands: Sequence[CommandSpan], pauses: Sequence[tuple[float, float | None]], window: Window
    ) -> None:
        self._commands, self._end = commands, window.until
        self._since = window.since
        self._paused = merged((low, window.until if high is None else high) for low, high in pauses)
        self._played = self._of(lambda c: c.kind == "play_groups" and c.origin != "eval")
        self._evaluated = self._of(lambda c: c.kind == "play_groups" and c.origin == "eval")

    def _of(self, wanted: Any) -> Spans:
        return merged((c.t0, self._end if c.t1 is None else c.t1) for c in self._commands if wanted(c))

    def conditions(self, lease: LeaseSpan, others: Spans) -> list[tuple[Cause, Spans]]:
        """List the conditions of one device, in the order in which they are asked."""
        begun = self._end if lease.first_busy is None else lease.first_busy
        own = self._of(lambda c: c.lease_id == lease.served)
        trained = self._of(lambda c: c.kind in TRAINING)
        ordered = [(Cause.STARTING, merged([(min(lease.since, self._since), begun)])), (Cause.HANDOVER, own)]
        if lease.use == "engine":
            ordered += [
                (Cause.TAIL, cut(self._played, others)[0]),
                (Cause.TURNS, self._played),
                (Cause.TRAINER, trained),
            ]
        else:
            ordered += [(Cause.SAMPLES, self._played), (Cause.TRAINER, trained)]
        return [
            *ordered,
            (Cause.WEIGHTS, self._of(lambda c: c.kind == "load_weights")),
            (Cause.EVALUATION, self._evaluated),
            (Cause.STARTING, self._of(lambda c: c.kind == "bind_policy")),
            (Cause.CHECKPOINT, self._of(lambda c: c.kind == "write_checkpoint")),
            (Cause.PAUSED, self._paused),
        ]


def _causes(idle: Spans, conditions: Iterable[tuple[Cause, Spans]]) -> dict[Cause, Spans]:
    """Give every idle second to the first condition that holds."""
    out: dict[Cause, Spans] = {}
    rest = idle
    for cause, spans in conditions:
        taken, rest = cut(rest, spans)
        if taken:
            out[cause] = merged([*out.get(cause, []), *taken])
    if rest:
        out[Cause.DECISION] = rest
    return out


def read(run: Run, window: Window) -> tuple[list[DeviceBubble], list[DeviceInterval], list[CommandSpan]]:
    """Read and split a run's window: (devices, intervals, commands)."""
    conn = store_connection()
    found = intervals.between(conn, run.no, window.since, window.until)
    commands = activity.commands_between(conn, run.no, window.since, window.until)
    held = activity.leases_between(conn, [run.no], window.since, window.until)
    return split(held, found, commands, activity.pauses(conn, run.no), window), found, commands


def bubble(
    run: Run, window_s: float | None = None, *, step: int | None = None, until: float | None = None
) -> dict[str, Any]:
    """Return a run's held device time by busy and cause, with tokens per second by policy, over a window."""
    window = window_of(run, window_s, step=step, until=until)
    devices, found, _ = read(run, window)
    return {**account(devices, window), "agents": rates(found, devices), "seq": run.state.seq}


def account(devices: Sequence[DeviceBubble], window: Window) -> dict[str, Any]:
    """Sum devices up: totals, causes longest first, and the same per device."""
    held, busy = sum(d.held_s for d in devices), sum(d.busy_s for d in devices)
    total: dict[Cause, float] = {}
    for device in devices:
        for cause, spans in device.causes.items():
            total[cause] = total.get(cause, 0.0) + length(spans)
    return {
        "window": [window.since, window.until],
        "window_s": round(window.seconds, 3),
        "step": window.step,
        "basis": f"of {len({d.lease.device_id for d in devices})} devices leased, {window.words()}",
        "held_s": round(held, 3),
        "busy_s": round(busy, 3),
        "bubble_s": round(held - busy, 3),
        "busy_share": round(busy / held, 4) if held else None,
        "bubble_share": round(1 - busy / held, 4) if held else None,
        "causes": causes_list(total, held),
        "devices": [
            {
                "device_id": d.lease.device_id,
                "node": d.lease.node,
                "use": d.lease.use,
                "lease_id": d.lease.lease_id,
                "held_s": round(d.held_s, 3),
                "busy_s": round(d.busy_s, 3),
                "bubble_share": round(1 - d.busy_s / d.held_s, 4),
                "causes": causes_list({cause: length(spans) for cause, spans in d.causes.items()}, d.held_s),
            }
            for d in devices
        ],
    }


def causes_list(seconds: Mapping[Cause, float], held: float) -> list[dict[str, Any]]:
    """List causes longest first; `share` is of held time."""
    rows = sorted(((cause, s) for cause, s in seconds.items() if s > 0), key=lambda row: -row[1])
    return [
        {
            "cause": cause.value,
            "title": TITLES[cause],
            "text": EXPLAINED[cause],
            "seconds": round(s, 3),
            "share": round(s / held, 4) if held else 0.0,
        }
        for cause, s in rows
    ]


def rates(found: Iterable[DeviceInterval], devices: Sequence[DeviceBubble]) -> list[dict[str, Any]]:
    """Return device seconds per policy and its generated tokens per second of the time an engine was held."""
    serving = length(merged(span for d in devices if d.lease.use == "engine" for span in d.held))
    rows: dict[str, dict[str, float]] = {}
    for interval in found:
        row = rows.setdefault(interval.policy, {"rollout_s": 0.0, "train_s": 0.0, "other_s": 0.0, "tokens": 0.0})
        row[_KIND.get(interval.phase, "other_s")] += interval.t1 - interval.t0
        row["tokens"] += interval.tokens if interval.phase == "rollout" else 0
    return [
        {
            "policy": policy,
            **{name: round(value, 3) for name, value in row.items() if name != "tokens"},
            "tokens": round(row["tokens"]),
            "tokens_per_s": round(row["tokens"] / serving, 2) if serving else 0.0,
        }
        for policy, row in sorted(rows.items())
    ]


_KIND = {"rollout": "rollout_s", "train": "train_s", "step": "train_s"}
