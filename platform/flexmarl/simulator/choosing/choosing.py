"""Choose devices: all by the closed form, the promising ones by the simulator, until it agrees with what is chosen.

Each simulation corrects the closed form around it, and makes it less doubtful there. The next one is of the row that
may be the best for all that is known, until no row may be better than the best simulated one, there is no time, or
enough was simulated.

Invariants: what is chosen keeps every limit by the last figures there are, simulated ones where there was time; equal
questions without a limit of time have equal answers.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.simulator.choosing.closed_form import Numbers
from flexmarl.simulator.choosing.objectives import DeviceObjective
from flexmarl.simulator.choosing.setups import DeviceQuestion, setups
from flexmarl.simulator.choosing.table import Corrected, DeviceTable, Mask, RunLength, feasible, limits, table
from flexmarl.simulator.prediction.predicting import simulated
from flexmarl.simulator.prediction.profile import Ends, Profile
from flexmarl.simulator.prediction.whatif import Alternative, changed
from flexmarl.simulator.reporting.report import SimulationReport
from flexmarl.simulator.runs import SimulationError
from flexmarl.simulator.scenarios.teams import workload_of

TIE = 0.02
"""Plans within this share of the best one are as good: then the cheaper, or the faster one is chosen."""
ENOUGH = 20
"""Simulations that are made at most to find the best row."""
BETTER = 0.01
"""Share by which a row must possibly be better than the best simulated one, to be simulated too."""
MOST_STEPS, MOST_TURNS = 6, 3_000
Simulated = Callable[[ExperimentSpec, Profile, Ends], SimulationReport]


@dataclass(slots=True)
class DeviceSearch:
    """What was looked at for a question."""

    question: DeviceQuestion
    table: DeviceTable
    play: Simulated
    spare: Callable[[], bool]
    reports: dict[int, SimulationReport | None] = field(default_factory=dict)
    """Row -> what the simulator said; None: it came to no end."""
    made: int = 0
    """Simulations."""
    stopped: bool = False

    def specification(self, row: int) -> ExperimentSpec | None:
        """Return the run on a row's devices; None: rules refuse it."""
        found = changed(self.question.spec, Alternative("", paths(self, row)))
        return found if isinstance(found, ExperimentSpec) else None

    def simulate(self, row: int) -> None:
        """Play a row, and correct the table by it."""
        own = self.table.setups[int(self.table.setup[row])]
        spec, known = self.specification(row), self.question.speeds(own.speed)
        report = None
        if spec is not None:
            self.made += 1
            try:
                report = self.play(spec, known.profile, Ends())
            except SimulationError:
                report = None
        for alike in self.table.alike(row):
            self.reports[int(alike)] = report
        found = [
            Corrected(row, one.step_s / float(self.table.closed_s[row]), max(0.0, one.began - one.step_s))
            for row, one in self.reports.items()
            if one is not None
        ]
        if found:
            self.table.correct(found)

    def allowed(self, without: str = "", *, at_least: bool = False) -> Mask:
        """Tell which rows keep all limits, or may, of those that the simulator did not find impossible."""
        kept = feasible(self.table, self.question.wish, without, at_least=at_least)
        for row, report in self.reports.items():
            kept[row] &= report is not None
        return kept

    def seen(self) -> Mask:
        """Tell which rows were simulated."""
        found = np.zeros(len(self.table.closed_s), dtype=bool)
        found[list(self.reports)] = True
        return found

    def best(self) -> int | None:
        """Return the best row that keeps all limits, of simulated ones where there are any; None: none does."""
        kept = self.allowed() if len(self.table.closed_s) else self.seen()
        done = kept & self.seen()
        return chosen(self.table, self.question.wish, done if done.any() else kept) if kept.any() else None


def paths(search: DeviceSearch, row: int) -> dict[str, object]:
    """Return what a row changes of the specification, as dotted paths with values."""
    found, spec = search.table, search.question.spec
    own = found.setups[int(found.setup[row])]
    devices = int(found.engines[row]) * own.each
    elastic = spec.resources.elastic or own.rollout.preemptible
    shared = search.question.shared
    return {
        "resources.rollout_pool": own.rollout.name,
        "resources.rollout_devices": (
            {"min": _least(spec, own.each, devices), "max": devices} if elastic and not shared else devices
        ),
        **search.question.paths(own.each, own.lag_bound),
        "resources.training_pool": own.training.name,
        "resources.training_devices": int(found.trainers[row]),
        **_gangs(spec, int(found.trainers[row])),
    }


def _gangs(spec: ExperimentSpec, trainers: int) -> dict[str, object]:
    """Return what keeps the devices of each policy within those that there are."""
    found = dict[str, object]()
    for name in spec.trainable_policies():
        devices = spec.policies[name].devices
        if devices.most > trainers:
            found[f"policies.{name}.devices.most"] = trainers
        if devices.least > trainers:
            found[f"policies.{name}.devices.least"] = trainers
    return found


def _least(spec: ExperimentSpec, each: int, devices: int) -> int:
    """Return what an elastic fleet begins with: as many as the run asks for, or one engine."""
    own = spec.resources.least_rollout_devices if spec.resources.elastic else each
    return max(each, min(devices, own // each * each))


def search(
    question: DeviceQuestion, play: Simulated | None = None, spare: Callable[[], bool] = lambda: True
) -> DeviceSearch:
    """Look for the best devices of a run. `spare` is asked before each simulation but the first."""
    found = list(setups(question))
    budget = question.spec.budget
    rows = table(found, RunLength(max(1, budget.train_steps), budget.seconds))
    made = DeviceSearch(question, rows, play or played, spare)
    if len(rows.closed_s):
        _improve(made)
    return made


def _improve(made: DeviceSearch) -> None:
    """Simulate what is best, until it has been simulated and nothing that may be better has not."""
    own = asked_row(made)
    if own is not None:
        made.simulate(own)
    while made.made < ENOUGH:
        row = _next(made)
        if row is None:
            return
        if made.made and not made.spare():
            made.stopped = True
            return
        made.simulate(row)


def _next(made: DeviceSearch) -> int | None:
    """Return the row to simulate: what may be the best for all that is known; None: nothing may be better than the
    best of those that were."""
    seen = made.seen()
    open_rows = made.allowed(at_least=True) & ~seen
    value = objective(made.table, made.question.wish, at_least=True)
    done = made.allowed() & seen
    if done.any():
        own = objective(made.table, made.question.wish)
        open_rows &= value < own[done].min() * (1.0 - BETTER)
    if not open_rows.any():
        return None if done.any() else _nearest(made)
    return int(np.where(open_rows, value, np.inf).argmin())


def _nearest(made: DeviceSearch) -> int | None:
    """Return the row that comes closest to the limits that no row keeps; None once it was simulated."""
    name, row = closest(made)
    return row if name and row not in made.reports else None


def closest(made: DeviceSearch) -> tuple[str, int]:
    """Return a limit that keeps any row from being chosen, and the row that is best by it.

    That is one without which some rows keep all others; where there is none, the first one, of all rows.
    """
    metrics = made.table.metrics()
    for name, _ in limits(made.question.wish):
        rest = made.allowed(without=name)
        if rest.any():
            return name, int(np.where(rest, metrics[name], np.inf).argmin())
    given = limits(made.question.wish)
    return (given[0][0], int(np.nan_to_num(metrics[given[0][0]], nan=np.inf).argmin())) if given else ("", 0)


def objective(found: DeviceTable, wish: DeviceObjective, *, at_least: bool = False) -> Numbers:
    """Return what a wish wants least of, as far as it is known or at the least."""
    if wish.objective == "fastest":
        return found.least_s if at_least else found.step_s
    return found.metrics(at_least=at_least)["budget"]


def chosen(found: DeviceTable, wish: DeviceObjective, kept: Mask) -> int:
    """Return the best of some rows; of those that are as good the cheaper or faster one, then the smaller bound."""
    value = np.where(kept, objective(found, wish), np.inf)
    ties = np.flatnonzero(value <= value.min() * (1.0 + TIE))
    dear = np.nan_to_num(found.per_hour, nan=np.inf)
    second = dear if wish.objective == "fastest" else found.step_s

    def order(row: int) -> tuple[float, float, int, float]:
        bound = found.setups[int(found.setup[row])].lag_bound
        return float(second[row]), float(found.devices[row]), bound, float(value[row])

    return min((int(row) for row in ties), key=order)


def asked_row(made: DeviceSearch) -> int | None:
    """Return the row of the specification's own devices; None: it is not among those looked at."""
    own, found = made.question.spec.resources, made.table
    for number, setup in enumerate(found.setups):
        same = (setup.rollout.name, setup.each, setup.lag_bound) == (
            own.rollout_pool, own.engine_devices, made.question.own_bound,
        )  # fmt: skip
        if same and (made.question.shared or setup.training.name == own.training_pool):
            engines, trainers = own.most_rollout_devices // own.engine_devices, own.training_devices
            rows = (found.setup == number) & (found.engines == engines) & (found.trainers == trainers)
            if rows.any():
                return int(np.flatnonzero(rows)[0])
    return None


def played(spec: ExperimentSpec, profile: Profile, ends: Ends) -> SimulationReport:
    """Simulate a few steps of a run, less of one whose steps are large."""
    turns = spec.batch.tasks_per_step * spec.batch.episodes_per_task * len(workload_of(spec).stages)
    steps = max(2, min(MOST_STEPS, MOST_TURNS // max(1, turns), spec.budget.train_steps))
    whole = spec.resources.model_copy(update={"rollout_devices": spec.resources.most_rollout_devices})
    return simulated(spec.model_copy(update={"resources": whole}), profile, ends, steps, 0)
