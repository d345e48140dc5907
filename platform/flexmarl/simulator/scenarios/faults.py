"""What goes wrong in a simulation, and when. Times are seconds from its start; devices count from 0, engines first.

A fault is only a cause: children die, hosts go and come back, devices are slow or are taken away. What follows from it
reaches the core as the facts that nodes, the store and the driver of a real run tell. Rewards that fail and
environments that break belong to the workload: `failure` and `outages`.
"""

from math import inf, log
from typing import Annotated, TypeVar

from pydantic import Field, model_validator

from flexmarl.contracts.base import Strict
from flexmarl.contracts.events import DeviceUse
from flexmarl.contracts.problems import broken_at
from flexmarl.simulator.scenarios import chance

At = Annotated[float, Field(ge=0.0)]
Device = Annotated[int, Field(ge=0)]


class ChildLoss(Strict):
    """The child on a device dies; its host starts another one. A device without a child loses none."""

    at: At
    device: Device


class LossRate(Strict):
    """Children of a kind die by chance, each device's after times of exponential distribution."""

    use: DeviceUse
    every: float = Field(gt=0.0)
    """Mean seconds between two losses of one device."""


class NodeLoss(Strict):
    """A host goes with all its devices."""

    at: At
    node: int = Field(ge=0)
    back: float | None = Field(default=None, ge=0.0)
    """Seconds until it is there again and goes on with its leases; absent: never."""


class SlowDevice(Strict):
    """A device takes longer for everything for a while."""

    device: Device
    factor: float = Field(gt=0.0)
    since: At = 0.0
    until: float = Field(default=inf, gt=0.0)

    @model_validator(mode="after")
    def _ends(self) -> "SlowDevice":
        return _in_order(self)


class SpotCapacity(Strict):
    """From a moment on, so many devices of the rollout pool are there."""

    at: At
    devices: int = Field(ge=0)


class WorkerLoss(Strict):
    """Rollout workers die with a share of the commands that are played; others play them again after a while."""

    at: At
    share: float = Field(default=1.0, gt=0.0, le=1.0)
    again: float = Field(default=10.0, ge=0.0)
    """Until the commands are taken by others: their claims have to expire."""


class Outage(Strict):
    """Rewards fail, or environments break, more often for a while: a share of the attempts that end in it."""

    since: At
    until: float = Field(gt=0.0)
    share: float = Field(gt=0.0, le=1.0)

    @model_validator(mode="after")
    def _ends(self) -> "Outage":
        return _in_order(self)


Window = TypeVar("Window", SlowDevice, Outage)


def _in_order(window: Window) -> Window:
    if window.until <= window.since:
        raise broken_at(("until",), f"{window.until:g} must lie after since, which is {window.since:g}")
    return window


class Faults(Strict):
    """All that goes wrong."""

    node_devices: int = Field(default=0, ge=0)
    """Devices of a host; 0: all are on one."""
    spares: int = Field(default=0, ge=0)
    """Further devices of the rollout pool that nobody needs at first."""
    children: tuple[ChildLoss, ...] = ()
    rates: tuple[LossRate, ...] = ()
    nodes: tuple[NodeLoss, ...] = ()
    slow: tuple[SlowDevice, ...] = ()
    spot: tuple[SpotCapacity, ...] = ()
    workers: tuple[WorkerLoss, ...] = ()
    notice: float = Field(default=30.0, ge=0.0)
    """Between the recall of a preempted device and its end."""
    detect: float = Field(default=5.0, ge=0.0)
    """Until a host that went is missed: its leases expire."""
    declare: float = Field(default=30.0, ge=0.0)
    """From its loss until a host that does not come back is declared gone, which ends its leases."""
    replace: float | None = Field(default=120.0, ge=0.0)
    """From the loss of a device for good until another one is in the pool; absent: there is none."""

    def pace(self, device: int, now: float) -> float:
        """Return how many times as long a device takes for everything now."""
        slow = 1.0
        for one in self.slow:
            if one.device == device and one.since <= now < one.until:
                slow *= one.factor
        return slow

    def takes(self, devices: frozenset[int], began: float, seconds: float) -> float:
        """Return how long work takes that would take so many seconds; the slowest of its devices sets the pace."""
        edges = sorted({t for one in self.slow if one.device in devices for t in (one.since, one.until) if t > began})
        now, left = began, seconds
        for edge in [*edges, inf]:
            slowest = max((self.pace(device, now) for device in devices), default=1.0)
            if left * slowest <= edge - now:
                return now + left * slowest - began
            left -= (edge - now) / slowest
            now = edge
        raise AssertionError("the last edge is never reached")

    def losses(self, use: DeviceUse, device: int, seed: int, number: int) -> float | None:
        """Return how long after the one before, by chance, a device's next loss comes; None: never."""
        every = sum(1.0 / rate.every for rate in self.rates if rate.use is use)
        if not every:
            return None
        key = chance.mixed(chance.mixed(chance.mixed(0, seed), device), number)
        return -log(chance.uniform(key, 9)) / every
