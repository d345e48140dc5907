"""Devices between virtual runs, given out by the arbiter of real ones.

Invariants: the arbiter alone decides who gets which devices, a gang all or none; a device has one run at a time, and
two leases only where a trainer stands beside an engine; it is free once all its leases have ended. A device that is
gone is given to nobody, whoever held it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

from flexmarl.contracts import commands as c
from flexmarl.contracts import events as e
from flexmarl.contracts.status import RunStatus
from flexmarl.orchestrator.pool import recalls, surplus
from flexmarl.orchestrator.pool.arbiter import PATIENCE_S, Arbitration, arbitrate
from flexmarl.orchestrator.pool.types import (
    DEFAULT_PRIORITY,
    DeviceDemand,
    FreeDevice,
    Grant,
    Rules,
    SurplusEngine,
    wanted_of,
)
from flexmarl.orchestrator.pool.wording import in_words
from flexmarl.simulator.devices.clock import Clock

_WITHOUT = frozenset({RunStatus.QUEUED, RunStatus.RESUMING})
"""Where a run is not at work yet."""


@dataclass(frozen=True, slots=True)
class Tenancy:
    """Who a run is to the arbiter."""

    run_id: int = 1
    project: str = "default"
    priority: int = DEFAULT_PRIORITY


class Tenant(Protocol):
    """A run that asks for devices."""

    name: Tenancy

    def standing(self) -> tuple[RunStatus, float]:
        """Return how the run is, and since when."""

    def least_engines(self) -> int:
        """Return how many engines it cannot do without."""

    def told(self, fact: e.Event) -> None:
        """Take a fact about its devices."""


@dataclass(slots=True)
class PoolDevice:
    device_id: str
    node: str
    pool: str
    number: int
    gone: bool = False
    leases: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Open:
    """A request that waits."""

    tenant: Tenant
    no: int
    request: c.RequestDevices
    asked_at: float


@dataclass(frozen=True, slots=True)
class _Lease:
    tenant: Tenant
    device: PoolDevice
    further: tuple[PoolDevice, ...]
    use: e.DeviceUse
    beside: int

    @property
    def devices(self) -> tuple[PoolDevice, ...]:
        return (self.device, *self.further)


class SimulatedPool:
    def __init__(
        self, clock: Clock, devices: Iterable[PoolDevice], weights: Mapping[str, float] | None = None,
        quotas: Mapping[tuple[str, str], int] | None = None,
    ) -> None:  # fmt: skip
        self.devices = {device.device_id: device for device in devices}
        self.waiting: dict[int, str] = {}
        """Run -> what it lacks, by the last look."""
        self._clock = clock
        self._weights, self._quotas = weights or {}, quotas or {}
        self._open: dict[tuple[int, int], _Open] = {}
        self._leases: dict[int, _Lease] = {}
        self._next = 1
        self._due: float | None = None
        self._looking = False
        self._called: set[tuple[int, int, int]] = set()
        """(lease, run, request) for which an engine was called back."""

    def ask(self, tenant: Tenant, no: int, request: c.RequestDevices) -> None:
        """Let a run wait for devices."""
        self._open[tenant.name.run_id, no] = _Open(tenant, no, request, self._clock.now)
        self.look()

    def withdraw(self, tenant: Tenant, numbers: Iterable[int]) -> None:
        """Forget requests that are void."""
        gone = [self._open.pop((tenant.name.run_id, no), None) for no in numbers]
        if any(gone):
            self.look()

    def end(self, lease_id: int) -> None:
        """Note that nothing of a lease runs any more."""
        lease = self._leases.pop(lease_id)
        for device in lease.devices:
            device.leases.remove(lease_id)
        self.look()

    def add(self, device: PoolDevice) -> None:
        """Put a device into its pool."""
        self.devices[device.device_id] = device
        self.look()

    def lose(self, device: PoolDevice, gone: bool = True) -> None:
        """Count a device as gone, or as there again."""
        device.gone = gone
        self.look()

    def devices_of(self, lease_id: int) -> tuple[PoolDevice, ...]:
        """Return the devices of a lease that has not ended. Raises KeyError for any other."""
        return self._leases[lease_id].devices

    def look(self) -> None:
        """Have the arbiter look before the clock goes on, once for all that happens at this moment."""
        if not self._looking and self._open:
            self._looking = True
            self._clock.after(0.0, self._arbitrate)

    def _arbitrate(self) -> None:
        self._looking = False
        demands = [self._demand(one) for one in self._open.values()]
        if not demands:
            self.waiting = {}
            return
        free = [FreeDevice(d.device_id, d.node, d.pool) for d in self.devices.values() if not d.gone and not d.leases]
        rules = self._rules(demands)
        result = arbitrate(demands, free, rules)
        extra = {(demand.run_id, demand.command_no) for demand in demands if demand.extra}
        self.waiting = {
            one.run_id: in_words(one.requirement) for one in result.waiting if (one.run_id, one.command_no) not in extra
        }
        for grant in result.grants:
            self._grant(grant)
        if not result.grants and not self._call_back(demands, result, free, rules):
            self._recall(demands, result, free, rules)
        self._look_again(demands, result)

    def _demand(self, one: _Open) -> DeviceDemand:
        """Describe a request as the store does."""
        tenant, request = one.tenant, one.request
        own = {number: lease for number, lease in self._leases.items() if lease.tenant is tenant}
        status, since = tenant.standing()
        waits = status in _WITHOUT
        holds: dict[str, int] = {}
        for lease in own.values():
            holds.setdefault(lease.device.pool, 0)
            holds[lease.device.pool] += 0 if lease.beside else sum(not device.gone for device in lease.devices)
        uses = {lease.use for lease in own.values()}
        wanted = {e.DeviceUse.ENGINE: request.engines, e.DeviceUse.TRAINER: request.trainers + request.beside}
        return DeviceDemand(
            tenant.name.run_id, one.no, request.pool, request.engines, request.trainer_pool, request.trainers,
            engine_devices=request.engine_devices, project=tenant.name.project, priority=tenant.name.priority,
            since=since if waits else one.asked_at,
            running=not waits or bool(own), replaces=request.replaces in own, holds=holds or None,
            stalled=any(count and use not in uses for use, count in wanted.items()), extra=request.extra,
        )  # fmt: skip

    def _rules(self, demands: Sequence[DeviceDemand]) -> Rules:
        capacity: dict[str, int] = {}
        for device in self.devices.values():
            capacity[device.pool] = capacity.get(device.pool, 0) + (not device.gone)
        held: dict[tuple[str, str], int] = {}
        for lease in self._leases.values():
            if not lease.beside:
                seat = lease.tenant.name.project, lease.device.pool
                held[seat] = held.get(seat, 0) + len(lease.devices)
        for demand in demands:
            for pool, count in wanted_of(demand).items() if demand.lacks else ():  # a quota counts gangs whole
                held[demand.project, pool] = held.get((demand.project, pool), 0) + count
        return Rules(capacity, {}, self._quotas, held, self._weights, now=self._clock.now)

    def _grant(self, grant: Grant) -> None:
        asked = self._open.pop((grant.run_id, grant.command_no))
        first = [at for at, placement in enumerate(grant.placements) if placement.rank == 0]
        granted = [
            self._lease(asked.tenant, [self.devices[p.device_id] for p in grant.placements[at:end]], use)
            for at, end in pairwise((*first, len(grant.placements)))
            for use in (grant.placements[at].use,)
        ]
        engines = [one for one in granted if one.use is e.DeviceUse.ENGINE][: asked.request.beside]
        for one in engines:
            device = self.devices[one.device_id]
            granted.append(self._lease(asked.tenant, [device], e.DeviceUse.TRAINER, beside=one.lease_id))
        asked.tenant.told(e.DevicesGranted(leases=tuple(granted), command_no=asked.no))

    def _lease(
        self, tenant: Tenant, devices: Sequence[PoolDevice], use: e.DeviceUse, beside: int = 0
    ) -> e.GrantedDevice:
        lease_id, self._next = self._next, self._next + 1
        first, *others = devices
        self._leases[lease_id] = _Lease(tenant, first, tuple(others), use, beside)
        for device in devices:
            device.leases.append(lease_id)
        further = tuple(device.device_id for device in others)
        return e.GrantedDevice(lease_id=lease_id, device_id=first.device_id, use=use, beside=beside, further=further)

    def _call_back(
        self, demands: Sequence[DeviceDemand], result: Arbitration, free: Sequence[FreeDevice], rules: Rules
    ) -> bool:
        """Tell runs to let engines above their minimum leave, each once for a request; True when one was told."""
        found = surplus.leaves(demands, result, free, rules, self._surplus())
        fresh = [one for one in found if (one.lease_id, one.for_run, one.for_command) not in self._called]
        for leave in fresh:
            self._called.add((leave.lease_id, leave.for_run, leave.for_command))
            fact = e.SurplusRecalled(lease_id=leave.lease_id, reason=surplus.in_words(leave))
            self._leases[leave.lease_id].tenant.told(fact)
        return bool(fresh)

    def _surplus(self) -> list[SurplusEngine]:
        """List the youngest engines of each run, as many as it holds above its minimum."""
        engines: dict[int, list[int]] = {}
        for number, lease in self._leases.items():
            if lease.use is e.DeviceUse.ENGINE:
                engines.setdefault(lease.tenant.name.run_id, []).append(number)
        found = []
        for numbers in engines.values():
            for number in numbers[self._leases[numbers[0]].tenant.least_engines() :]:
                lease = self._leases[number]
                devices = tuple(FreeDevice(d.device_id, d.node, d.pool) for d in lease.devices if not d.gone)
                if len(devices) == len(lease.devices):
                    name = lease.tenant.name
                    found.append(SurplusEngine(name.run_id, number, devices, name.project, name.priority))
        return found

    def _recall(
        self, demands: Sequence[DeviceDemand], result: Arbitration, free: Sequence[FreeDevice], rules: Rules
    ) -> None:
        for recall in recalls.recalls(demands, result, free, rules):
            waiting = self._open[recall.run_id, recall.command_no]
            reason = recalls.in_words(recall)
            waiting.tenant.told(e.GangRecalled(command_no=recall.command_no, reason=reason))

    def _look_again(self, demands: Sequence[DeviceDemand], result: Arbitration) -> None:
        """Come back when waiting alone changes what the arbiter says."""
        waiting = {(one.run_id, one.command_no) for one in result.waiting}
        moments = [
            demand.since + wait
            for demand in demands
            if (demand.run_id, demand.command_no) in waiting
            for wait in (recalls.RECALL_AFTER_S, PATIENCE_S)
            if demand.since + wait > self._clock.now
        ]
        if moments and min(moments) != self._due:
            self._due = min(moments)
            self._clock.at(self._due, self.look)
