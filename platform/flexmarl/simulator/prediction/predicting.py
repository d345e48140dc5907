"""What a run would take before it starts: simulations of its specification at both ends of what is known.

The likely figures are simulated under several seeds, and once at each corner of what is known: models and episodes at
their low or high end, and the platform at its own. A range spans all of them. So chance and ignorance show alike, and
`why` says which figures are known least. Equal arguments give equal predictions.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from statistics import fmean

from flexmarl.contracts.base import Record
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.simulator.prediction import memory
from flexmarl.simulator.prediction.fitting import machine
from flexmarl.simulator.prediction.memory import DeviceMemory
from flexmarl.simulator.prediction.memory_loads import asked_of
from flexmarl.simulator.prediction.profile import OF_A_MODEL, OF_A_ROLE, OF_THE_PLATFORM, Ends, Profile, Source
from flexmarl.simulator.prediction.splitting import Own, Simulated, SplitAdvice, advised
from flexmarl.simulator.reporting.report import CAUSES, EXPLAINED, USES, SimulationReport
from flexmarl.simulator.runs import simulate
from flexmarl.simulator.scenarios.scenario import RoleLoad, Scenario, Spread, Workload
from flexmarl.simulator.scenarios.teams import workload_of

ENDS = (Ends("low", "low"), Ends("high", "high"))
FURTHER = ((Ends(), 1), (Ends("low", "high"), 0), (Ends("high", "low"), 0), (Ends(), 2))
"""What else is simulated, and under which seed."""
MOST_TURNS = 6_000
"""Turns of a simulation: a team of many takes fewer steps."""
MOST_STEPS = 12
WIDE = 0.1
"""A figure whose range is wider than this share of it is a reason."""
REASONS = 4


class Range(Record):
    low: float
    likely: float
    high: float


class PredictedDevice(Record):
    """One engine or trainer of the run, and what it would hold on its device."""

    no: int
    use: str
    policies: tuple[str, ...]
    devices: int = 1
    """Of an engine that is split over several: how many; each of them holds what `memory` says."""


class Prediction(Record):
    """Of the whole run; shares are of the time in which devices are held."""

    step_s: Range
    tokens_s: Range
    """Trained reply tokens a second."""
    engine_busy: Range
    trainer_busy: Range
    bubble: dict[str, dict[str, Range]]
    """engine and trainer -> cause -> share."""
    seconds: Range
    """From asking for devices, which are free at once, to the end of the budget."""
    device_seconds: Range
    devices: tuple[PredictedDevice, ...]
    memory: tuple[DeviceMemory, ...]
    why: tuple[str, ...]
    """What makes the ranges wide, the worst first."""
    steps: int
    """Train steps of each simulation that count."""
    simulations: int
    split: SplitAdvice
    """Whether another split of the same devices would be faster."""


def workload(spec: ExperimentSpec, profile: Profile, ends: Ends) -> Workload:
    """Return how episodes go: as they went in earlier runs, or as the specification declares."""
    own = workload_of(spec)
    roles = dict(own.roles)
    for role in roles:
        if f"role.reply {role}" in profile.figures:
            prompt, reply = (profile.at(name, ends, role) for name in OF_A_ROLE)
            roles[role] = RoleLoad(prompt=Spread(mean=prompt), reply=Spread(mean=reply, least=1))
    changes: dict[str, object] = {"roles": roles}
    stage = fmean(len(asked) for asked in own.stages)
    most = float(sum(len(asked) for asked in own.stages))
    if profile.lasts is not None and profile.lasts[0] < most - 0.01:
        mean, sigma, alike = profile.lasts
        changes["lasts"] = Spread(mean=mean / stage, sigma=sigma / stage, least=1, most=len(own.stages))
        changes["lasts_alike"] = alike
    return own.model_copy(update=changes)


def predict(
    spec: ExperimentSpec,
    profile: Profile,
    go_on: Callable[[], bool] = lambda: True,
    spare: Callable[[int], bool] = lambda made: True,
) -> Prediction:
    """Predict a run. Raises SimulationError when it would come to no end.

    Three simulations are made whatever they take: the likely one and both ends. `go_on` is asked before each other,
    `spare`, with how many were made, before each one of another split of the devices.
    """
    turns = _turns(spec)
    steps = max(2, min(MOST_STEPS, MOST_TURNS // turns, spec.budget.train_steps))
    likely, corners = [simulated(spec, profile, Ends(), steps, 0)], []
    corners += [simulated(spec, profile, corner, steps, 0) for corner in ENDS]
    for ends, seed in FURTHER:
        if not go_on():
            break
        (likely if ends == Ends() else corners).append(simulated(spec, profile, ends, steps, seed))
    made = [*likely, *corners]

    def over(values: Iterable[float]) -> Range:
        found = list(values)
        return Range(low=min(found), likely=fmean(found[: len(likely)]), high=max(found))

    seconds = over(_whole(spec, report) for report in made)
    devices = _devices(spec, likely[0])
    held = spec.resources.most_rollout_devices + spec.own_trainers
    sizes = memory.parameters_of(spec, profile.parameters)
    holds = {"engine": memory.engine, "trainer": memory.trainer}
    asked = asked_of(spec, profile)
    return Prediction(
        step_s=over(report.step_s for report in made),
        tokens_s=over(report.tokens_s for report in made),
        engine_busy=over(report.busy["engine"] for report in made),
        trainer_busy=over(report.busy["trainer"] for report in made),
        bubble={use: {cause: over(report.idle[use][cause] for report in made) for cause in CAUSES} for use in USES},
        seconds=seconds,
        device_seconds=Range(low=seconds.low * held, likely=seconds.likely * held, high=seconds.high * held),
        devices=devices,
        memory=tuple(holds[device.use](spec, device.policies, sizes, asked) for device in devices),
        why=_why(profile, likely),
        steps=steps,
        simulations=len(made),
        split=_split(spec, profile, steps, Own(likely[0], *corners[: len(ENDS)]), partial(spare, len(made))),
    )


def _split(spec: ExperimentSpec, profile: Profile, steps: int, own: Own, spare: Callable[[], bool]) -> SplitAdvice:
    """Look for a better split of the devices."""

    def at(ends: Ends) -> Simulated:
        return lambda other: simulated(other, profile, ends, steps, 0)

    asked = Scenario(spec=spec, workload=workload(spec, profile, Ends()), machine=machine(spec, profile, Ends()))
    low, high = ENDS
    return advised(asked, own, (at(Ends()), at(low), at(high)), spare)


def simulated(spec: ExperimentSpec, profile: Profile, ends: Ends, steps: int, seed: int) -> SimulationReport:
    """Play one end of what is known; evaluations that would be seen once or never are spread over all steps."""
    told, machines = workload(spec, profile, ends), machine(spec, profile, ends)
    even = _evenly(spec, steps)
    return simulate(Scenario(spec=even, workload=told, machine=machines, steps=steps, evaluates=True, seed=seed))


def causes() -> dict[str, str]:
    """Say what each cause of a bubble means."""
    return {str(cause): text for cause, text in EXPLAINED.items()}


def _turns(spec: ExperimentSpec) -> int:
    """Return the turns of a train step, at most."""
    return max(1, spec.batch.tasks_per_step * spec.batch.episodes_per_task * len(workload_of(spec).stages))


def _evenly(spec: ExperimentSpec, steps: int) -> ExperimentSpec:
    """Spread evaluations that would be seen once or never over all steps: the same work, a part of it in each."""
    own = spec.evaluation
    if own.every_steps * 2 <= steps:
        return spec
    tasks = max(1, round(own.tasks / own.every_steps))
    return spec.model_copy(update={"evaluation": own.model_copy(update={"every_steps": 1, "tasks": tasks})})


def _whole(spec: ExperimentSpec, report: SimulationReport) -> float:
    """Return the seconds to the end of the budget: the start and first step as simulated, then a step like another."""
    seconds = report.began + max(0, spec.budget.train_steps - 1) * report.step_s
    limit = spec.budget.seconds
    return seconds if limit is None else min(seconds, report.began + limit)


def _devices(spec: ExperimentSpec, report: SimulationReport) -> tuple[PredictedDevice, ...]:
    """Say which device serves or trains which policies, as the simulated core placed them."""
    touched: dict[int, set[str]] = {lease: set() for lease in report.uses}
    for interval in report.intervals:
        if interval.policy:
            touched[interval.lease_id].add(interval.policy)
    order = list(spec.policies)
    return tuple(
        PredictedDevice(
            no=no,
            use=report.uses[lease],
            policies=tuple(sorted(touched[lease], key=order.index)),
            devices=spec.resources.engine_devices if report.uses[lease] == "engine" else 1,
        )
        for no, lease in enumerate(sorted(report.uses), start=1)
    )


def _why(profile: Profile, likely: Sequence[SimulationReport]) -> tuple[str, ...]:
    """Name what is known least of what took place at all, and how much chance alone does."""
    grouped: dict[tuple[str, Source, str], float] = {}
    unasked = set() if any(report.swaps for report in likely) else {"trainer.swap"}
    for name, figure in profile.figures.items():
        key = (name.partition(" ")[0], figure.source, figure.of)
        if figure.width > WIDE and figure.likely and key[0] not in unasked:
            grouped[key] = max(grouped.get(key, 0.0), figure.high / figure.likely - 1.0)
    known: Mapping[str, str] = {n: k.meaning for n, k in (OF_A_MODEL | OF_THE_PLATFORM | OF_A_ROLE).items()}
    words = [
        f"{known[name]}: up to {_percent(over)} more ({_from(source, of)})."
        for (name, source, of), over in sorted(grouped.items(), key=lambda entry: -entry[1])
    ]
    steps = [report.step_s for report in likely]
    chance = (max(steps) - min(steps)) / fmean(steps)
    alike = (f"Chance: steps of equal runs differ by {_percent(chance)}.",) if chance >= 0.005 else ()
    return (*words[:REASONS], *alike)


def _from(source: Source, of: str) -> str:
    words = {"runs": "measured in", "profile": "measured by", "declared": "declared by", "default": "a default"}
    return f"{words[source]} {of}".strip() if source != "default" else "not measured yet"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def shown(profile: Profile) -> Iterable[dict[str, object]]:
    """List the figures of a profile for people and scripts."""
    known = OF_A_MODEL | OF_THE_PLATFORM | OF_A_ROLE
    for name, figure in sorted(profile.figures.items()):
        what, _, of = name.partition(" ")
        yield {
            "name": what, "of": of, "unit": known[what].unit, "meaning": known[what].meaning, "low": figure.low,
            "likely": figure.likely, "high": figure.high, "source": figure.source, "source_text": figure.of,
        }  # fmt: skip
