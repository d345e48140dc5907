"""A model of device workers: one child at a time on a leased device, started again when it is lost.

Invariants: a child that is gone does nothing and is told of once; a lease ends once, with nothing left on its device;
turns of an engine that is gone go on at another one with the tokens that were streamed, as real ones do.
"""

from collections.abc import Callable
from dataclasses import dataclass

from flexmarl.contracts import commands as c
from flexmarl.contracts import events as e
from flexmarl.simulator.cluster.pool import PoolDevice, SimulatedPool
from flexmarl.simulator.devices.clock import Clock
from flexmarl.simulator.devices.engines import SimulatedEngine
from flexmarl.simulator.devices.losses import DeviceLoss
from flexmarl.simulator.devices.stepping import SteppedEngine
from flexmarl.simulator.devices.trace import Trace
from flexmarl.simulator.devices.training import Training
from flexmarl.simulator.rollout.playing import RolloutModel
from flexmarl.simulator.scenarios.scenario import Scenario

RESTART_S = 0.2
"""What a device worker waits before it starts the next child."""


@dataclass(slots=True)
class SimulatedChild:
    """What is on a lease's device."""

    lease_id: int
    use: e.DeviceUse
    devices: tuple[PoolDevice, ...]
    lives: int = 0
    starts: str = ""
    """Life that is being started."""
    life: str = ""
    """Life that answers; empty while none does."""
    worked: bool = False
    """This life has done what it is there for."""
    ends: bool = False
    """No child is started any more."""
    cut_off: bool = False
    """Its host is gone: nobody there can end it."""

    @property
    def device(self) -> PoolDevice:
        return self.devices[0]


class SimulatedHosting:
    def __init__(
        self,
        clock: Clock,
        host: Clock,
        trace: Trace,
        scenario: Scenario,
        pool: SimulatedPool,
        playing: RolloutModel,
        training: Training,
        tell: Callable[[e.Event], None],
    ) -> None:
        self.children: dict[int, SimulatedChild] = {}
        """By lease, those that have ended left out."""
        self.losses = training.losses
        self.gone_made = 0.0
        """Tokens made by engines that are no more."""
        self._clock, self._host, self._trace, self._pool = clock, host, trace, pool
        self._machine, self._faults = scenario.machine, scenario.faults
        self._playing, self._training, self._tell = playing, training, tell

    def granted(self, one: e.GrantedDevice) -> None:
        """Note a lease; its child is started on command."""
        devices = self._pool.devices_of(one.lease_id)
        self.children[one.lease_id] = SimulatedChild(one.lease_id, one.use, devices)

    def host(self, command: c.HostLease) -> None:
        """Start the child of a lease, and keep it."""
        child = self.children.get(command.lease_id)
        if child is not None and not child.lives:
            self._start(child)

    def life(self, lease_id: int) -> str:
        """Return the life that answers on a lease, nothing while none does."""
        child = self.children.get(lease_id)
        return "" if child is None else child.life

    def takes(self, leases: tuple[int, ...], seconds: float) -> float:
        """Return how long a trainer's work takes that begins now on these devices."""
        if not self._machine.kinds and not self._faults.slow:
            return seconds
        numbers = frozenset(self.children[lease].device.number for lease in leases if lease in self.children)
        if self._machine.kinds:
            seconds *= max((self._machine.kind(number).times for number in numbers), default=1.0)
        return self._faults.takes(numbers, self._clock.now, seconds) if self._faults.slow else seconds

    def made(self) -> float:
        """Return the tokens that all engines made, those included that are no more."""
        return self.gone_made + sum(engine.made() for engine in self._playing.engines.values())

    def works(self, lease_id: int) -> None:
        """Note that the child of a lease does what it is there for."""
        child = self.children[lease_id]
        if not child.worked:
            child.worked = True
            self.losses.works(lease_id, child.use, self._clock.now)

    def lose(
        self, child: SimulatedChild, cause: str, *, told_after: float = 0.0, again: float | None = RESTART_S
    ) -> None:
        """Let a child die; its host tells so, or its lease expires, and starts another one where `again` says."""
        life = child.life
        self._note(child, cause)
        self._stop(child)
        if life:
            fact = e.ChildLost(lease_id=child.lease_id, incarnation=life, reason=f"simulated: {cause} lost")
            self._clock.after(told_after, self._tell, fact)
        if again is not None:
            self._clock.after(again, self._start, child)

    def come_back(self, child: SimulatedChild) -> None:
        """Go on with a lease whose host was gone."""
        child.cut_off = False
        if child.ends:
            self._end(child, "released")
        else:
            self._start(child)

    def release(self, lease_id: int) -> None:
        """End a lease on request, or as soon as its host is back."""
        child = self.children.get(lease_id)
        if child is not None:
            child.ends = True
            if not child.cut_off:
                self._end(child, "released")

    def take_away(self, child: SimulatedChild, cause: str) -> None:
        """End a lease whose device is gone for good."""
        if child.lease_id in self.children:
            self._note(child, cause)
            self._end(child, f"simulated: {cause}")
            self.losses.lease_ended(child.lease_id)

    def pace(self) -> None:
        """Let engines be as slow as their devices are now."""
        for lease_id, engine in self._playing.engines.items():
            engine.slow(self._pace_of(self.children[lease_id]))

    def _pace_of(self, child: SimulatedChild) -> float:
        return self._faults.pace(child.device.number, self._clock.now)

    def _note(self, child: SimulatedChild, cause: str) -> None:
        if not child.ends:
            loss = DeviceLoss(self._clock.now, cause, child.use, child.device.device_id, child.lease_id)
            self.losses.note(loss)

    def _start(self, child: SimulatedChild) -> None:
        if child.ends or child.starts or child.life or child.cut_off:
            return
        child.lives += 1
        child.starts = f"{child.use}{child.lease_id}.{child.lives}"
        number = self._trace.begin(child.lease_id, "start", self._clock.now)
        seconds = self.takes((child.lease_id,), self._machine.delays.start)
        self._host.after(seconds, self._ready, child, child.starts, number)

    def _ready(self, child: SimulatedChild, life: str, number: int) -> None:
        self._trace.end(number, self._clock.now)
        if child.starts != life:
            return
        child.starts, child.life, child.worked = "", life, False
        lease = child.lease_id
        if child.use is e.DeviceUse.TRAINER:
            self._training.host(lease, life)
        else:
            kind = self._machine.kind(child.device.number)
            made = SteppedEngine if kind.engine.stepped else SimulatedEngine
            engine = made(self._host, self._trace, kind.engine, lease, kind.hardware)
            self._playing.engines.add(engine)
            engine.slow(self._pace_of(child))
        self._tell(e.ChildReady(lease_id=lease, use=child.use, incarnation=life))

    def _stop(self, child: SimulatedChild) -> None:
        lease, child.starts, child.life = child.lease_id, "", ""
        self._training.release(lease)
        engine = self._playing.engines.remove(lease)
        if engine is not None:
            self.gone_made += engine.made()
            for turn in engine.requests():
                self._playing.hand_back(turn)
        self._trace.break_off(lease, self._clock.now)

    def _end(self, child: SimulatedChild, reason: str) -> None:
        self._stop(child)
        child.ends = True
        del self.children[child.lease_id]
        self._pool.end(child.lease_id)
        self._trace.held[child.lease_id].until = self._clock.now
        self._tell(e.LeaseEnded(lease_id=child.lease_id, reason=reason))
