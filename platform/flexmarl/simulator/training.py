"""A model of the trainers: each carries out its commands one after the other, and only takes its time.

Invariants: a command that is void when its turn comes, or when it is done, is told of by nobody; a bind of a gang ends
when every rank has joined.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import NamedTuple

from flexmarl.contracts import commands as c
from flexmarl.contracts import events as e
from flexmarl.contracts.wire import TrainStats
from flexmarl.simulator.clock import Clock
from flexmarl.simulator.scenario import Machine
from flexmarl.simulator.trace import Kind, Trace

Order = (
    c.BindPolicy | c.JoinGang | c.SuspendPolicy | c.VacateTrainer | c.Accumulate | c.OptimizerStep | c.WriteCheckpoint
)
_KINDS: dict[str, Kind] = {
    "bind_policy": "bind", "join_gang": "join", "suspend_policy": "suspend", "vacate_trainer": "vacate",
    "accumulate": "accumulate", "optimizer_step": "step", "write_checkpoint": "checkpoint",
}  # fmt: skip


def digest(policy: str, version: int) -> str:
    """Name the weights of a version."""
    return sha256(f"{policy}:{version}".encode()).hexdigest()


@dataclass(slots=True)
class Lane:
    """The commands of a trainer."""

    lease_id: int
    life: str
    orders: deque[tuple[int, Order]] = field(default_factory=deque)
    busy: bool = False


class Cut(NamedTuple):
    """What there is to learn in a micro-batch."""

    rows: int
    tokens: int


class Training:
    """`cut` is what every micro-batch has to learn."""

    def __init__(
        self,
        clock: Clock,
        trace: Trace,
        machine: Machine,
        void: set[int],
        cut: Mapping[tuple[str, int], Cut],
        told: Callable[[e.Event], None],
    ) -> None:
        self._clock, self._trace, self._machine, self._void = clock, trace, machine, void
        self._cut, self._told = cut, told
        self.trained = 0
        """Tokens of all committed steps."""
        self._lanes: dict[int, Lane] = {}
        self._gangs: dict[str, tuple[int, ...]] = {}

    def host(self, lease_id: int, life: str) -> None:
        """A trainer is ready."""
        self._lanes[lease_id] = Lane(lease_id, life)

    def release(self, lease_id: int) -> None:
        """Its device goes back."""
        self._lanes.pop(lease_id, None)

    def take(self, no: int, order: Order) -> None:
        """Put a command behind the others of its trainer."""
        lane = self._lanes.get(order.lease_id)
        if lane is not None:
            lane.orders.append((no, order))
            self._next(lane)

    def _next(self, lane: Lane) -> None:
        while lane.orders and not lane.busy:
            no, order = lane.orders.popleft()
            if no in self._void:
                continue
            lane.busy = True
            seconds, policy = self._seconds(order), getattr(order, "policy", "")
            kind, now = _KINDS[order.kind], self._clock.now
            ranks = self._gangs.get(policy, ()) if kind in ("accumulate", "step") else ()
            open_ = [self._trace.begin(lease, kind, now, policy) for lease in ranks or (lane.lease_id,)]
            self._clock.after(seconds, self._done, lane, no, order, now, open_)

    def _done(self, lane: Lane, no: int, order: Order, began: float, intervals: list[int]) -> None:
        lane.busy = False
        for number in intervals:
            self._trace.end(number, self._clock.now)
        if no not in self._void and lane.lease_id in self._lanes:
            if isinstance(order, c.OptimizerStep):
                self.trained += sum(self._cut[order.policy, number].tokens for number in order.micro_batches)
            self._told(self._fact(lane, no, order, self._clock.now - began))
        self._next(lane)

    def _seconds(self, order: Order) -> float:
        own, policy = self._machine.trainer, getattr(order, "policy", "")
        times, ranks = self._machine.times(policy), max(1, len(self._gangs.get(policy, ())))
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

    def _fact(self, lane: Lane, no: int, order: Order, seconds: float) -> e.Event:
        match order:
            case c.BindPolicy(policy=policy):
                version = order.version or 0
                return e.PolicyBound(
                    lease_id=lane.lease_id, incarnation=lane.life, policy=policy, version=version, seconds=seconds,
                    digest=digest(policy, version), created=order.version is None, resumed=bool(order.resume),
                )  # fmt: skip
            case c.JoinGang():
                return e.RankJoined(
                    lease_id=lane.lease_id, incarnation=lane.life, policy=order.policy, meeting=order.meeting
                )
            case c.SuspendPolicy():
                return e.PolicySuspended(
                    lease_id=lane.lease_id, incarnation=lane.life, policy=order.policy, accumulator=order.accumulator,
                    ticket=f"{order.policy}-{no}", bytes=1, seconds=seconds, command_no=no,
                )  # fmt: skip
            case c.VacateTrainer():
                return e.TrainerVacated(lease_id=lane.lease_id, incarnation=lane.life, command_no=no)
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
        versions = {name: pin.version for name, pin in order.pins.items()}
        return e.CheckpointWritten(label=order.label, step=order.step, versions=versions, path="", bytes=0)
