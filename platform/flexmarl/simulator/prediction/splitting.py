"""Whether another split of a run's devices would be faster: planned from its stages, then simulated as the run itself.

Only the split changes - how many devices engines and trainers have, or that they share them in turns - and every other
setting stays. The planner proposes, the simulator decides: a split is compared with the run's own on the same draws,
at both ends of what is known, by time per trained token. What rules refuse is no candidate.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, get_args

from flexmarl.algorithms.placement import plan_placement
from flexmarl.contracts.base import Record
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.simulator.prediction.placing import EDGES, Kind, cohort_work, most_trainers, profile
from flexmarl.simulator.prediction.whatif import Alternative, changed
from flexmarl.simulator.reporting.report import SimulationReport
from flexmarl.simulator.scenarios.scenario import Scenario

WORTH = 0.02
"""Least share of time that a split must save to be told of."""
Simulated = Callable[[ExperimentSpec], SimulationReport]


class Change(Record):
    """A setting that a split needs otherwise."""

    pointer: str
    before: Any
    value: Any


class Split(Record):
    """A split that takes less time; shares are of the time per trained token."""

    engines: int
    """Devices of them."""
    trainers: int
    shared: bool
    """Engines and trainers have the same devices, in turns."""
    changes: tuple[Change, ...]
    step_s: tuple[float, float, float]
    """Low, likely, high: the run's own split at both ends of what is known, and this one there."""
    gain: tuple[float, float, float]


class SplitAdvice(Record):
    devices: int
    """Of all, that the run asks for."""
    looked_at: int
    """Other splits that were simulated."""
    stopped: bool = False
    """Others were not, since there was no time."""
    better: Split | None = None


@dataclass(frozen=True, slots=True)
class Own:
    """The run as it is asked for, simulated at what is likely and at both ends."""

    likely: SimulationReport
    low: SimulationReport
    high: SimulationReport


def devices_of(spec: ExperimentSpec) -> int:
    """Count the devices that a run asks for: trainers that share those of engines have none of their own."""
    resources = spec.resources
    shares = spec.mechanisms.allocation.type == "colocated"
    return resources.most_rollout_devices + (0 if shares else resources.training_devices)


def proposed(scenario: Scenario) -> Iterator[dict[str, Any]]:
    """List other splits of the same devices, the most promising first, as dotted paths with values.

    Of devices apart the planner's best, then one device to either side of it; and all of them in turns.
    """
    spec, devices = scenario.spec, devices_of(scenario.spec)
    whole = spec.mechanisms.trainer_protocol == "batch"
    parts = 1 if whole else -(-spec.batch.tasks_per_step // spec.batch.micro_batch_groups)
    work, most = cohort_work(scenario), most_trainers(spec)
    apart: list[dict[str, Any]] = []
    in_turns: list[dict[str, Any]] = []
    for kind in get_args(Kind):
        plan = plan_placement(profile(scenario, work, parts, kind), EDGES, devices, parts, kind)
        if plan is None:
            continue
        if kind == "temporal":
            in_turns = [_shared(devices, min(devices, most))]
        else:
            each = spec.resources.engine_devices
            best = max(each, plan.devices()["rollout"] // each * each)
            counts = [count for count in (best, best + each, best - each) if 0 < count < devices]
            apart = [_apart(spec, count, min(devices - count, most)) for count in counts]
    yield from (*apart[:1], *in_turns, *apart[1:])


def _shared(engines: int, trainers: int) -> dict[str, Any]:
    return {
        "resources.rollout_devices": engines,
        "resources.training_devices": trainers,
        "resources.engine_policies": None,
        "mechanisms.allocation.type": "colocated",
    }


def _apart(spec: ExperimentSpec, engines: int, trainers: int) -> dict[str, Any]:
    own = spec.mechanisms.allocation.type
    return {
        "resources.rollout_devices": engines,
        "resources.training_devices": trainers,
        "mechanisms.allocation.type": "agent_centric" if own == "colocated" else own,
    }


def advised(
    scenario: Scenario, own: Own, simulated: tuple[Simulated, Simulated, Simulated], spare: Callable[[], bool]
) -> SplitAdvice:
    """Look for a better split. `simulated` are for what is likely, the low and the high end; `spare` is asked before
    each simulation. A split whose ends could not be simulated any more is told with what is likely alone."""
    spec, looked_at, stopped = scenario.spec, 0, False
    best: tuple[float, ExperimentSpec, SimulationReport] | None = None
    for paths in proposed(scenario):
        found = changed(spec, Alternative("", paths))
        if not isinstance(found, ExperimentSpec) or found == spec:
            continue
        if stopped := not spare():
            break
        looked_at += 1
        report = simulated[0](found)
        gain = _gain(own.likely, report)
        if gain >= WORTH and (best is None or gain > best[0]):
            best = gain, found, report
    better = None if best is None else _told(spec, best, own, simulated, spare)
    return SplitAdvice(devices=devices_of(spec), looked_at=looked_at, stopped=stopped, better=better)


def _told(
    spec: ExperimentSpec,
    best: tuple[float, ExperimentSpec, SimulationReport],
    own: Own,
    simulated: tuple[Simulated, Simulated, Simulated],
    spare: Callable[[], bool],
) -> Split:
    gain, found, report = best
    steps, gains = [report.step_s], [gain]
    for base, ends in ((own.low, simulated[1]), (own.high, simulated[2])):
        if spare():
            there = ends(found)
            steps.append(there.step_s)
            gains.append(_gain(base, there))
    resources = found.resources
    return Split(
        engines=resources.most_rollout_devices,
        trainers=resources.training_devices,
        shared=found.mechanisms.allocation.type == "colocated",
        changes=tuple(_changes(spec, found)),
        step_s=(min(steps), report.step_s, max(steps)),
        gain=(min(gains), gain, max(gains)),
    )


def _gain(own: SimulationReport, other: SimulationReport) -> float:
    return 1.0 - own.tokens_s / other.tokens_s


def _changes(spec: ExperimentSpec, found: ExperimentSpec) -> Iterator[Change]:
    """List the settings that differ, of those that a split may change."""
    before, after = spec.model_dump(mode="json"), found.model_dump(mode="json")
    for path in _shared(0, 0):
        was, now = before, after
        for name in path.split("."):
            was, now = was[name], now[name]
        if was != now:
            yield Change(pointer="/" + path.replace(".", "/"), before=was, value=now)
