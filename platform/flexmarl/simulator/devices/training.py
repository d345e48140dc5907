"""A model of the trainers: each carries out its commands one after the other, and only takes its time.

Invariants: a command that is void when its turn comes, or when it is done, is told of by nobody; a bind of a gang ends
when every rank has joined.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import NamedTuple

from flexmarl.contracts import commands as c
from flexmarl.contracts import events as e
from flexmarl.contracts.wire import MicroBatchRef, TrainStats
from flexmarl.simulator.devices.clock import Clock
from flexmarl.simulator.devices.losses import Losses
from flexmarl.simulator.devices.trace import Kind, Trace
from flexmarl.simulator.scenarios.scenario import Machine

SHOWN: dict[str, Kind] = {
    "bind_policy": "bind", "join_gang": "join", "suspend_policy": "suspend", "vacate_trainer": "vacate",
    "accumulate": "train", "optimizer_step": "step", "write_checkpoint": "checkpoint",
}  # fmt: skip
"""What a trainer is asked for -> what it shows while it does it; anything else takes no time and shows nothing."""


def digest(policy: str, version: int) -> str:
    """Name the weights of a version."""
    return sha256(f"{policy}:{version}".encode()).hexdigest()


@dataclass(slots=True, eq=False)
class Running:
    """An order that a trainer is at."""

    no: int
    order: c.Command
    began: float
    ranks: tuple[int, ...]
    """Leases of all that are needed for it."""
    intervals: list[int]


@dataclass(slots=True)
class TrainerLane:
    """The commands of a trainer."""

    lease_id: int
    life: str
    orders: deque[tuple[int, c.Command]] = field(default_factory=deque)
    running: Running | None = None


class MicroBatchSize(NamedTuple):
    """What there is to learn in a micro-batch."""

    rows: int
    tokens: int
    new: int
    """Of the tokens: those that no step was taken on before."""


@dataclass(slots=True)
class SharedDevices:
    """What trainers share with others."""

    takes: Callable[[tuple[int, ...], float], float] = lambda leases, seconds: seconds
    """How long work takes on these devices."""
    works: Callable[[int], None] = lambda lease: None
    """Told of whatever a trainer has done."""


class Training:
    def __init__(
        self,
        clock: Clock,
        host: Clock,
        trace: Trace,
        machine: Machine,
        void: set[int],
        told: Callable[[e.Event], None],
    ) -> None:
        self._clock, self._host, self._trace, self._machine, self._void = clock, host, trace, machine, void
        self._told = told
        self.trained = 0
        """Tokens of all committed steps, each from its first one on."""
        self.losses = Losses()
        self.shared = SharedDevices()
        self._cut: dict[tuple[str, int], MicroBatchSize] = {}
        self._lanes: dict[int, TrainerLane] = {}
        self._gangs: dict[str, tuple[int, ...]] = {}

    @property
    def works(self) -> bool:
        """Tell whether any trainer has a command: that its node carries to it, or that it works on."""
        return any(lane.running is not None for lane in self._lanes.values())

    def cut(self, ref: MicroBatchRef, rows: int, tokens: int, new: int) -> None:
        """Note what a micro-batch has to learn, and how many of its tokens for the first time."""
        self._cut[ref.policy, ref.no] = MicroBatchSize(rows, tokens, new)

    def host(self, lease_id: int, life: str) -> None:
        """A trainer is ready."""
        self._lanes[lease_id] = TrainerLane(lease_id, life)

    def release(self, lease_id: int) -> None:
        """A trainer is gone. What a gang was at that it belonged to breaks off, as its leader tells."""
        gone = self._lanes.pop(lease_id, None)
        if gone is not None:
            self._break_off(gone)
        for lane in list(self._lanes.values()):
            running = lane.running
            if running is not None and lease_id in running.ranks:
                self._break_off(lane)
                for number in running.intervals:
                    self._trace.end(number, self._clock.now)
                if running.no not in self._void:
                    code = "gang_incomplete" if isinstance(running.order, c.BindPolicy) else "rank_lost"
                    self._told(
                        e.CommandFailed(
                            command_no=running.no, command_kind=running.order.kind, code=code, retryable=True,
                            message=f"simulated: rank {running.ranks.index(lease_id)} is gone",
                        )
                    )  # fmt: skip
                self._next(lane)

    def take(self, no: int, order: c.Command) -> None:
        """Put a command behind the others of its trainer."""
        lane = self._lanes.get(getattr(order, "lease_id", 0))
        if lane is not None:
            lane.orders.append((no, order))
            self._next(lane, idle=True)

    def _next(self, lane: TrainerLane, *, idle: bool = False) -> None:
        """Begin with the next command, if none is under way; a lane that was idle has read nothing ahead."""
        while lane.orders and lane.running is None:
            no, order = lane.orders.popleft()
            if no in self._void:
                continue
            seconds, policy = self._seconds(order), getattr(order, "policy", "")
            kind, now = SHOWN.get(order.kind), self._clock.now
            if isinstance(order, c.BindPolicy) and order.resume:
                kind = "resume"
            ranks = (self._gangs.get(policy, ()) if kind in ("train", "step", "bind", "resume") else ()) or (
                lane.lease_id,
            )
            shown = ranks if kind in ("train", "step") else (lane.lease_id,)
            lane.running = Running(no, order, now, ranks, [])
            begin = partial(self._begin, lane, lane.running, seconds, kind, policy, shown)
            if around := self._around(order, idle):
                self._host.after(self.shared.takes((lane.lease_id,), around), begin)
            else:
                begin()

    def _around(self, order: c.Command, idle: bool) -> float:
        """Return what the node takes around a command."""
        delays = self._machine.delays
        match order:
            case c.OptimizerStep():
                return delays.carry + delays.commit
            case c.Accumulate() if idle:
                return delays.carry + delays.fetch
        return delays.carry

    def _break_off(self, lane: TrainerLane) -> None:
        """Let a trainer be at nothing any more."""
        lane.running = None

    def _begin(
        self,
        lane: TrainerLane,
        running: Running,
        seconds: float,
        kind: Kind | None,
        policy: str,
        shown: tuple[int, ...],
    ) -> None:
        """Let what has been carried to a trainer be worked on."""
        if lane.running is not running:
            return  # it broke off
        running.began = self._clock.now
        if kind is not None:
            running.intervals += [self._trace.begin(lease, kind, running.began, policy) for lease in shown]
        self._going_on(kind)(self.shared.takes(running.ranks, seconds), self._done, lane, running)

    def _going_on(self, kind: Kind | None) -> Callable[..., None]:
        """Return what lets so much of a kind of work be done: gradients want a core, unless they keep a pace."""
        if self._machine.trainer.declared and kind in ("train", "step"):
            return self._clock.after
        return self._host.work if kind == "train" else self._host.after

    def _done(self, lane: TrainerLane, running: Running) -> None:
        if lane.running is not running:
            return  # it broke off
        lane.running = None
        order, seconds = running.order, self._clock.now - running.began
        for number in running.intervals:
            self._trace.end(number, self._clock.now)
        if running.no not in self._void and lane.lease_id in self._lanes:
            if isinstance(order, c.Accumulate):
                key = order.policy, order.micro_batch
                self.losses.computed(key, self._cut[key].tokens, seconds)
            elif isinstance(order, c.OptimizerStep):
                self.trained += sum(self._cut[order.policy, number].new for number in order.micro_batches)
            self.shared.works(lane.lease_id)
            self._told(self._fact(lane, running.no, order, seconds))
        self._next(lane)

    def _seconds(self, order: c.Command) -> float:
        own, policy = self._machine.trainer, getattr(order, "policy", "")
        times, ranks = self._machine.times(policy) * own.times, max(1, len(self._gangs.get(policy, ())))
        shared = ranks * self._machine.width
        match order:
            case c.Accumulate():
                cut = self._cut[order.policy, order.micro_batch]
                rows = -(-cut.rows // ranks) / self._machine.width
                return own.micro_batch + times * (own.row * rows + own.token * cut.tokens / shared)
            case c.OptimizerStep():
                return own.step * times
            case c.BindPolicy():
                self._gangs[policy] = order.gang
                moved = own.create if order.version is None else own.swap
                return moved * times + (own.form if order.gang else 0.0)
            case c.SuspendPolicy():
                return own.swap * times
            case c.WriteCheckpoint():
                return own.checkpoint
        return 0.0

    def _fact(self, lane: TrainerLane, no: int, order: c.Command, seconds: float) -> e.Event:
        match order:
            case c.BindPolicy(policy=policy):
                version = order.version or 0
                return e.PolicyBound(
                    lease_id=lane.lease_id, incarnation=lane.life, policy=policy, version=version, seconds=seconds,
                    digest=digest(policy, version), created=order.version is None, resumed=bool(order.resume),
                )  # fmt: skip
            case c.SuspendPolicy():
                return e.PolicySuspended(
                    lease_id=lane.lease_id, incarnation=lane.life, policy=order.policy, accumulator=order.accumulator,
                    ticket=f"{order.policy}-{no}", bytes=1, seconds=seconds, command_no=no,
                )  # fmt: skip
            case c.Accumulate():
                cut = self._cut[order.policy, order.micro_batch]
                stats = TrainStats(rows=cut.rows, tokens=cut.tokens, z=float(cut.tokens), seconds=seconds)
                return e.MicroBatchAccumulated(
                    policy=order.policy, micro_batch=order.micro_batch, accumulator=order.accumulator, stats=stats
                )
            case c.OptimizerStep(policy=policy, next_version=version):
                return e.StepCommitted(
                    policy=policy, version=version, parent=version - 1, digest=digest(policy, version),
                    accumulator=order.accumulator, learning_rate=order.learning_rate, seconds=seconds,
                )  # fmt: skip
            case c.WriteCheckpoint():
                versions = {name: pin.version for name, pin in order.pins.items()}
                return e.CheckpointWritten(label=order.label, step=order.step, versions=versions, path="", bytes=0)
        about = c.COMMAND_KINDS[order.kind]
        return about.answered(order, incarnation=lane.life, command_no=no, seconds=seconds)
