"""Every legal set of devices with what the closed form says of it, as columns; simulated ones correct their neighbours.

Invariants: rows of one `DeviceSetup` differ in numbers of devices alone; a row's `step_s` is the closed form times how
far the simulator was from it at the nearest row that it played of the same kinds, or on the average of all it played.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flexmarl.contracts.specification.resources import MOST_ROLLOUT_DEVICES, MOST_TRAINING_DEVICES
from flexmarl.simulator.choosing.closed_form import Numbers, StepWork
from flexmarl.simulator.choosing.objectives import DeviceObjective, PoolStock

Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]
UNPLAYED = 0.4
"""How far off the closed form may be for kinds that were not simulated, once it is corrected on the average."""
BESIDE, FURTHER = 0.05, 0.15
"""How far off it may be beside a simulated row of the same kinds, and how much more per e-fold of a number."""


class SpeedKey(NamedTuple):
    """What decides how fast a number of engines and trainers is."""

    engine: str
    """Kind of device."""
    each: int
    trainer: str
    lag_bound: int


@dataclass(frozen=True, slots=True)
class DeviceSetup:
    """Pools, devices of an engine and a lag bound: what is left open are numbers."""

    rollout: PoolStock
    training: PoolStock
    each: int
    lag_bound: int
    work: StepWork

    @property
    def speed(self) -> SpeedKey:
        """Return what it has in common with all that are as fast."""
        return SpeedKey(self.rollout.kind, self.each, self.training.kind, self.lag_bound)

    def numbers(self) -> tuple[Numbers, Numbers]:
        """List the legal numbers of engines, with those of trainer devices."""
        fits = sum(size // self.each for size in self.rollout.hosts)
        engines = min(fits, min(self.rollout.devices, MOST_ROLLOUT_DEVICES) // self.each)
        trainers = min(self.training.devices, MOST_TRAINING_DEVICES, self.work.training.most)
        grid = np.meshgrid(np.arange(1, engines + 1), np.arange(1, trainers + 1), indexing="ij")
        served, trained = (numbers.ravel().astype(np.float64) for numbers in grid)
        if self.work.shared:
            legal = trained <= served * self.each
        elif self.rollout.name == self.training.name:
            legal = served * self.each + trained <= self.rollout.devices
        else:
            legal = np.ones_like(served, dtype=bool)
        return served[legal], trained[legal]


class Corrected(NamedTuple):
    """What the simulator said of a row."""

    row: int
    ratio: float
    """Its seconds per step over those of the closed form."""
    start_s: float
    """Until its first step began."""


class RunLength(NamedTuple):
    steps: int
    """Train steps."""
    limit_s: float | None
    """After so many seconds it ends in any case."""


@dataclass(slots=True)
class TableCorrection:
    """Row by row, what the simulator makes of the closed form."""

    ratio: Numbers
    """Of seconds per step."""
    late_s: Numbers
    """How much later the first step begins."""
    doubt: Numbers
    """How much less a step and the start may take, as a share of what is known."""


@dataclass(slots=True)
class DeviceTable:
    setups: Sequence[DeviceSetup]
    setup: Rows
    """Row -> index of its setup."""
    engines: Numbers
    trainers: Numbers
    devices: Numbers
    """Of both, in all."""
    per_hour: Numbers
    """NaN where a pool has no price."""
    closed_s: Numbers
    closed_start_s: Numbers
    """Until the first step begins."""
    length: RunLength
    known: TableCorrection = field(init=False)
    speed: Rows = field(init=False)
    """Row -> number of its speed key."""

    def __post_init__(self) -> None:
        keys = {key: number for number, key in enumerate(dict.fromkeys(one.speed for one in self.setups))}
        self.speed = np.array([keys[one.speed] for one in self.setups], dtype=np.int64)[self.setup]
        ones = np.ones_like(self.closed_s)
        self.known = TableCorrection(ratio=ones.copy(), late_s=0.0 * ones, doubt=UNPLAYED * ones)

    @property
    def step_s(self) -> Numbers:
        """Return seconds per step, as far as they are known."""
        return self.closed_s * self.known.ratio

    @property
    def start_s(self) -> Numbers:
        """Return seconds until the first step begins, as far as they are known."""
        return np.maximum(0.0, self.closed_start_s + self.known.late_s)

    @property
    def least_s(self) -> Numbers:
        """Return seconds per step at the least that may still be found."""
        return self.step_s * (1.0 - self.known.doubt)

    def seconds(self, *, at_least: bool = False) -> Numbers:
        """Return what the whole run takes, as far as it is known or at the least."""
        sure = 1.0 - self.known.doubt if at_least else 1.0
        start_s, steps_s = self.start_s * sure, self.length.steps * self.step_s * sure
        most = np.inf if self.length.limit_s is None else self.length.limit_s
        found: Numbers = start_s + np.minimum(steps_s, most)
        return found

    def metrics(self, *, at_least: bool = False) -> Mapping[str, Numbers]:
        """Return by limit what it limits, as far as it is known or at the least: the less the better."""
        step_s = self.least_s if at_least else self.step_s
        seconds = self.seconds(at_least=at_least)
        return {
            "budget": self.per_hour * seconds / 3600.0,
            "budget_per_hour": self.per_hour,
            "budget_per_step": self.per_hour * step_s / 3600.0,
            "deadline_s": seconds,
            "steps_per_hour": step_s,
        }

    def correct(self, simulated: Sequence[Corrected]) -> None:
        """Bring every row to where the simulator was at the nearest one that it played."""
        known = self.known
        late = {one.row: one.start_s - float(self.closed_start_s[one.row]) for one in simulated}
        known.ratio[:] = float(np.mean([one.ratio for one in simulated]))
        known.late_s[:] = float(np.mean(list(late.values())))
        known.doubt[:] = UNPLAYED
        for number in {int(self.speed[one.row]) for one in simulated}:
            rows = np.flatnonzero(self.speed == number)
            own = [one for one in simulated if self.speed[one.row] == number]
            far = np.array([self._far(rows, one.row) for one in own])
            nearby, nearest = far.argmin(axis=0), far.min(axis=0)
            known.ratio[rows] = np.array([one.ratio for one in own])[nearby]
            known.late_s[rows] = np.array([late[one.row] for one in own])[nearby]
            known.doubt[rows] = np.where(nearest > 0.0, np.minimum(UNPLAYED, BESIDE + FURTHER * nearest), 0.0)

    def alike(self, row: int) -> Rows:
        """Return the rows that are as fast as one: equal numbers of devices of equal kinds."""
        same = (self.engines == self.engines[row]) & (self.trainers == self.trainers[row])
        return np.flatnonzero(same & (self.speed == self.speed[row]))

    def _far(self, rows: Rows, row: int) -> Numbers:
        engines, trainers = np.log(self.engines[rows]), np.log(self.trainers[rows])
        found: Numbers = np.abs(engines - np.log(self.engines[row])) + np.abs(trainers - np.log(self.trainers[row]))
        return found


def table(setups: Sequence[DeviceSetup], length: RunLength) -> DeviceTable:
    """Return all legal rows of some setups."""
    numbers = [one.numbers() for one in setups]
    columns = list(_columns(setups, numbers))
    return DeviceTable(
        setups=setups,
        setup=np.repeat(np.arange(len(setups)), [len(engines) for engines, _ in numbers]),
        engines=np.concatenate([engines for engines, _ in numbers] or [np.zeros(0)]),
        trainers=np.concatenate([trainers for _, trainers in numbers] or [np.zeros(0)]),
        devices=np.concatenate([devices for devices, *_ in columns] or [np.zeros(0)]),
        per_hour=np.concatenate([per_hour for _, per_hour, *_ in columns] or [np.zeros(0)]),
        closed_s=np.concatenate([closed for _, _, closed, _ in columns] or [np.zeros(0)]),
        length=length,
        closed_start_s=np.concatenate([start for *_, start in columns] or [np.zeros(0)]),
    )


def _columns(
    setups: Sequence[DeviceSetup], numbers: Sequence[tuple[Numbers, Numbers]]
) -> Iterator[tuple[Numbers, Numbers, Numbers, Numbers]]:
    for own, (engines, trainers) in zip(setups, numbers, strict=True):
        rented = np.zeros_like(trainers) if own.work.shared else trainers
        prices = [np.nan if pool.price is None else pool.price for pool in (own.rollout, own.training)]
        served = engines * own.each
        per_hour = served * prices[0] + (rented * prices[1] if rented.any() else 0.0)
        step_s = own.work.step_s(engines, trainers, own.lag_bound)
        yield served + rented, per_hour, step_s, own.work.begins_s(trainers)


def feasible(found: DeviceTable, wish: DeviceObjective, without: str = "", *, at_least: bool = False) -> Mask:
    """Tell which rows keep all limits of a wish, one of them set aside; or which may, for all that is known."""
    metrics, kept = found.metrics(at_least=at_least), np.ones(len(found.closed_s), dtype=bool)
    for name, most in limits(wish):
        if name != without:
            kept &= metrics[name] <= most * (1.0 + 1e-9)
    return kept & ~np.isnan(found.per_hour) if wish.needs_prices else kept


def limits(wish: DeviceObjective) -> list[tuple[str, float]]:
    """List the limits of a wish as the most that their metric may be."""
    given = wish.model_dump(include={"budget", "budget_per_hour", "budget_per_step", "deadline_s", "steps_per_hour"})
    return [
        (name, 3600.0 / value if name == "steps_per_hour" else value)
        for name, value in given.items()
        if value is not None
    ]
