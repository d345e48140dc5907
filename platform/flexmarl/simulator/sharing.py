"""Several virtual runs that share pools: they arrive, wait, work and give their devices back.

Invariants: the arbiter of real runs decides who gets devices, so a gang gets all or none; every run ends by its own
budget, or stands waiting at the end and says for what.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pydantic import Field, ValidationError, field_validator, model_validator

from flexmarl.contracts.base import Strict
from flexmarl.contracts.problems import Problem, SpecProblems, broken_at, problems_of
from flexmarl.contracts.status import TERMINAL, RunStatus
from flexmarl.orchestrator.pool.arbiter import PATIENCE_S
from flexmarl.orchestrator.pool.types import DEFAULT_PRIORITY
from flexmarl.simulator.cluster.cluster import Cluster
from flexmarl.simulator.cluster.fault_injection import virtual_device
from flexmarl.simulator.cluster.pool import SimulatedPool, Tenancy
from flexmarl.simulator.devices.clock import Clock
from flexmarl.simulator.devices.trace import BUSY, DeviceTenure, TraceInterval
from flexmarl.simulator.reporting.checks import SchedulingFault
from flexmarl.simulator.runs import STILL_S, SimulationError, shortened
from flexmarl.simulator.scenarios.faults import Faults
from flexmarl.simulator.scenarios.library import compose
from flexmarl.simulator.scenarios.scenario import Scenario


class Arrival(Strict):
    """A run of a shared pool."""

    name: str = Field(min_length=1)
    scenario: Scenario
    at: float = Field(default=0.0, ge=0.0)
    """When it asks for its devices."""
    priority: int = Field(default=DEFAULT_PRIORITY, ge=0, le=100)
    project: str = "default"

    @field_validator("scenario")
    @classmethod
    def _without_faults(cls, scenario: Scenario) -> Scenario:
        if scenario.faults != Faults():
            raise broken_at(("faults",), "runs that share a pool are simulated without faults: remove `faults`")
        if scenario.spec.sampling.copies:
            raise broken_at(("spec", "sampling", "branch_controller"), "branching members are not simulated: set none")
        return scenario


class Quota(Strict):
    project: str
    pool: str = "default"
    devices: int = Field(ge=0)


class SharedPools(Strict):
    """What is shared, and by whom."""

    devices: dict[str, int] = Field(min_length=1)
    """Pool -> devices."""
    node_devices: int = Field(default=0, ge=0)
    """Devices of a host; 0: all are on one."""
    weights: dict[str, float] = {}
    """Project -> its part beside others of the same priority; 1 when absent."""
    quotas: tuple[Quota, ...] = ()
    runs: tuple[Arrival, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _names_differ(self) -> "SharedPools":
        names = [run.name for run in self.runs]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise broken_at(("runs",), f"two runs are named {twice}; each needs its own name")
        return self


@dataclass(frozen=True, slots=True)
class Sharer:
    """How a run fared. Seconds since the simulation began."""

    name: str
    arrived: float
    granted: float | None
    """When it got its first devices."""
    ended: float | None
    status: RunStatus
    says: str
    """Why it ended, or what it waits for."""
    steps: tuple[float, ...]
    """How long each train step took, the first one left out: it lasts from the start."""

    @property
    def wait_s(self) -> float | None:
        """Return how long it waited for its first devices; None while it has none."""
        return None if self.granted is None else self.granted - self.arrived

    @property
    def step_s(self) -> float | None:
        """Return the mean time per step; None with less than two of them."""
        return sum(self.steps) / len(self.steps) if self.steps else None


@dataclass(frozen=True, slots=True)
class PoolReport:
    runs: tuple[Sharer, ...]
    began: float
    """When the first one came."""
    seconds: float
    """From the first arrival to the last end."""
    leased: float
    """Share of the devices' time in which some run held them."""
    busy: float
    """Share of the devices' time in which they worked."""
    events: int
    intervals: tuple[TraceInterval, ...]
    held: dict[int, tuple[str, DeviceTenure]]
    """Lease -> run and device."""


def read_pools(document: Mapping[str, Any]) -> SharedPools:
    """Read a file that names runs by workload and preset. Raises SpecProblems with every refusal."""
    runs = document.get("runs", [])
    if not isinstance(runs, Sequence) or not all(isinstance(run, Mapping) for run in runs):
        detail = "It is a list of mappings with name, workload and preset."
        raise SpecProblems([Problem(pointer="/runs", code="wrong_type", detail=detail, hint="See docs/simulator.md.")])
    made = [_composed(number, dict(run)) for number, run in enumerate(runs)]
    whole = {**document, "runs": made}
    try:
        return SharedPools.model_validate(whole)
    except ValidationError as error:
        raise SpecProblems(problems_of(error, SharedPools, whole)) from error


def _composed(number: int, run: dict[str, Any]) -> dict[str, Any]:
    workload, preset = run.pop("workload", "hub"), run.pop("preset", "flexmarl")
    changes = run.pop("changes", {})
    if not isinstance(changes, Mapping):
        detail, hint = f"{changes!r} is not a mapping.", "Write it like {steps: 4, spec: {...}}."
        raise SpecProblems([Problem(pointer=f"/runs/{number}/changes", code="wrong_type", detail=detail, hint=hint)])
    try:
        return {**run, "scenario": compose(workload, preset, changes)}
    except SpecProblems as refused:
        problems = [p.model_copy(update={"pointer": f"/runs/{number}{p.pointer}"}) for p in refused.problems]
        raise SpecProblems(problems) from refused


def simulate_pool(shared: SharedPools) -> PoolReport:
    """Play all runs to their ends, or until none of them can go on. Raises SimulationError when nobody made a step."""
    clock = Clock()
    places = [pool for pool, count in shared.devices.items() for _ in range(count)]
    devices = [virtual_device(number, pool, shared.node_devices) for number, pool in enumerate(places)]
    quotas = {(quota.project, quota.pool): quota.devices for quota in shared.quotas}
    pool = SimulatedPool(clock, devices, shared.weights, quotas)
    clusters = []
    for number, run in enumerate(shared.runs, start=1):
        name = Tenancy(number, run.project, run.priority)
        cluster = Cluster(shortened(run.scenario), clock, pool, name)
        clusters.append(cluster)
        clock.at(run.at, cluster.start)
    moved = 0.0
    while any(cluster.log.status not in TERMINAL or cluster.hosting.children for cluster in clusters):
        if not clock.play() or clock.now - moved > STILL_S:
            break
        moved = max([moved, *(c.log.stepped[-1] for c in clusters if c.log.stepped)])
    if not any(cluster.log.stepped for cluster in clusters):
        raise SimulationError(f"No run completed a step: {'; '.join(_says(cluster, pool) for cluster in clusters)}")
    return _report(shared, clusters, pool, clock)


def starved(report: PoolReport) -> list[SchedulingFault]:
    """Find runs that waited on beyond the arbiter's patience while some that came later got devices."""
    found = []
    for run in report.runs:
        overdue, until = run.arrived + PATIENCE_S, report.began + report.seconds if run.granted is None else run.granted
        later = [
            other
            for other in report.runs
            if other.arrived > run.arrived and other.granted is not None and overdue <= other.granted < until
        ]
        if later:
            names = ", ".join(other.name for other in later)
            found.append(
                SchedulingFault(
                    "starvation", run.arrived, until,
                    f"{run.name} waits for devices since {run.arrived:.0f} s; after {PATIENCE_S:.0f} s of that {names} "
                    "came later and got devices",
                    "Serve whoever waited beyond the patience first, whatever the others' priority and share.",
                )
            )  # fmt: skip
    return found


def _says(cluster: Cluster, pool: SimulatedPool) -> str:
    state = cluster.driver.core.state
    return (
        state.lifecycle.reason_text
        if cluster.driver.ended
        else pool.waiting.get(cluster.name.run_id, state.lifecycle.reason_text)
    )


def _report(shared: SharedPools, clusters: Sequence[Cluster], pool: SimulatedPool, clock: Clock) -> PoolReport:
    runs = tuple(_sharer(run, cluster, pool) for run, cluster in zip(shared.runs, clusters, strict=True))
    began = min(run.at for run in shared.runs)
    ended = max([began, *(held.until for cluster in clusters for held in cluster.trace.held.values())])
    ended = clock.now if ended == float("inf") else ended
    held = {
        lease: (run.name, own)
        for run, cluster in zip(shared.runs, clusters, strict=True)
        for lease, own in cluster.trace.held.items()
    }
    intervals = tuple(one for cluster in clusters for one in cluster.trace.until(ended))
    capacity = (ended - began) * sum(shared.devices.values()) or 1.0
    leased = sum(min(own.until, ended) - own.since for _, own in held.values() if not own.beside)
    busy = sum(one.ended - one.began for one in intervals if one.kind in BUSY)
    return PoolReport(runs, began, ended - began, leased / capacity, busy / capacity, clock.events, intervals, held)


def _sharer(run: Arrival, cluster: Cluster, pool: SimulatedPool) -> Sharer:
    log, over = cluster.log, cluster.log.status in TERMINAL
    return Sharer(
        run.name, run.at, log.granted[0] if log.granted else None, log.since if over else None, log.status,
        _says(cluster, pool), tuple(after - before for before, after in pairwise(log.stepped)),
    )  # fmt: skip
