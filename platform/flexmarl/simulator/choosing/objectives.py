"""What somebody wants of a run's devices, what there is, and what is chosen; prices in the installation's own unit."""

from typing import Literal

from pydantic import Field

from flexmarl.contracts.base import Record, Strict
from flexmarl.simulator.prediction.profile import Profile
from flexmarl.simulator.prediction.splitting import Change

Objective = Literal["fastest", "cheapest"]
Limit = Literal["budget", "budget_per_hour", "budget_per_step", "deadline_s", "steps_per_hour"]
LIMITS: tuple[Limit, ...] = ("budget", "budget_per_hour", "budget_per_step", "deadline_s", "steps_per_hour")
PRICED: frozenset[str] = frozenset({"budget", "budget_per_hour", "budget_per_step"})
"""Limits that nobody can keep without prices."""
Bottleneck = Literal["engines", "trainers", "path"]
MOST_LAG = 8
"""Lag bounds that are looked at, at most."""


class PoolStock(Strict):
    """What a pool has for a run."""

    name: str
    kind: str
    """Of its devices, as `cuda NVIDIA H20`: pools of one kind are equally fast."""
    hosts: tuple[int, ...]
    """Devices of each host that the run may have. An engine has all of its devices on one host."""
    devices: int = Field(ge=0)
    """Devices that it may have in all: no more than those of the hosts, or than a quota allows."""
    price: float | None = None
    """Of a device hour; None: nobody has said."""
    preemptible: bool = False
    """Its hosts may be taken away at any time."""
    memory_bytes: int = 0
    """Of its smallest device; 0: not known."""


class DeviceObjective(Strict):
    """An objective, and what no plan may exceed."""

    objective: Objective
    budget: float | None = Field(default=None, gt=0.0)
    """Cost of the whole run."""
    budget_per_hour: float | None = Field(default=None, gt=0.0)
    budget_per_step: float | None = Field(default=None, gt=0.0)
    deadline_s: float | None = Field(default=None, gt=0.0)
    """From devices that are free at once until the end of the budget."""
    steps_per_hour: float | None = Field(default=None, gt=0.0)
    """At least."""
    max_lag: int | None = Field(default=None, ge=0, le=MOST_LAG)
    """Highest lag bound that may be chosen; None: that of the specification stays."""
    preemptible: Literal["rollout", "never"] = "rollout"
    """What pools whose hosts may be taken away are used for. Training never: a lost trainer costs the step."""

    @property
    def needs_prices(self) -> bool:
        """Tell whether only plans with a price can be compared."""
        return self.objective == "cheapest" or any(getattr(self, name) is not None for name in PRICED)


class KnownSpeeds(Strict):
    """How fast a run is on engines of some devices of one kind, with trainers of another one."""

    engine: str
    each: int
    trainer: str
    profile: Profile
    derived_from: int | None = None
    """Devices of the engines that were measured instead; None: none were, or these."""


class Ranged(Record):
    low: float
    likely: float
    high: float


class PlannedCost(Record):
    per_hour: float
    per_step: Ranged
    whole: Ranged
    """Of the run."""


class DevicePlan(Record):
    """One set of devices, and what the run would take on it."""

    rollout_pool: str
    rollout_devices: int
    engine_devices: int
    training_pool: str
    training_devices: int
    shared: bool
    """Trainers share the devices of engines, in turns."""
    lag_bound: int
    step_s: Ranged
    hours: Ranged
    cost: PlannedCost | None
    """None where a pool has no price."""
    engines_busy: float
    trainers_busy: float
    simulated: bool
    """False: by the closed form alone, corrected by what was simulated."""
    bottleneck: Bottleneck
    why: tuple[str, ...]
    """What bounds a step, and what one more device of either side would change."""
    changes: tuple[Change, ...]
    """What of the specification to change for it."""


class OutOfReach(Record):
    """A limit that no plan keeps."""

    limit: Limit
    asked: float
    best: float
    """The best that any plan reaches that keeps the other limits, or any plan where none does."""
    text: str


class DeviceChoice(Record):
    best: DevicePlan | None
    others: tuple[DevicePlan, ...] = ()
    """Runners-up, in other pools or with other numbers, the best first."""
    asked: DevicePlan | None = None
    """The devices of the specification as it is; None: they are not among those looked at."""
    out_of_reach: OutOfReach | None = None
    looked_at: int = 0
    """Sets of devices, by the closed form."""
    simulated: int = 0
    stopped: bool = False
    """There was no time to simulate all that were promising."""
    left_out: tuple[str, ...] = ()
    """Pools that were not looked at, and why."""
    unmeasured: tuple[str, ...] = ()
    """Kinds of devices whose speed is a default, the same as that of any other."""
