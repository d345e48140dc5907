"""Random clusters of mixed devices, and how far a choice on them is from simulating every set of devices."""

from random import Random
from typing import NamedTuple

import numpy as np

from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.simulator.choosing.choosing import objective, search
from flexmarl.simulator.choosing.objectives import DeviceObjective, KnownSpeeds, PoolStock
from flexmarl.simulator.choosing.setups import DeviceQuestion
from flexmarl.simulator.choosing.table import feasible
from flexmarl.simulator.prediction.predicting import simulated
from flexmarl.simulator.prediction.profile import Ends, Profile, ProfileFigure, complete
from flexmarl.simulator.reporting.report import SimulationReport

STEPS = 2


class RandomCluster(NamedTuple):
    spec: ExperimentSpec
    stock: tuple[PoolStock, ...]
    known: tuple[KnownSpeeds, ...]
    priced: bool
    """It is chosen by a budget; else by a deadline."""
    share: float
    """How much of the range of costs, or times, its limit allows."""


def played(spec: ExperimentSpec, profile: Profile, ends: Ends) -> SimulationReport:
    """Simulate two steps: both sides of a comparison alike."""
    return simulated(spec, profile, ends, STEPS, 0)


def cluster(seed: int) -> RandomCluster:
    """Draw a cluster of two or three kinds of devices, each with its speeds and price, and a run for it."""
    draw = Random(seed)
    batch = {
        "tasks_per_step": draw.choice([4, 6]), "episodes_per_task": 2,
        "micro_batch_groups": draw.choice([1, 2]), "rollout_groups": 4,
    }  # fmt: skip
    mechanisms = {"lag_policy": {"bound": draw.choice([0, 0, 1, 2])}}
    document = {"batch": batch, "mechanisms": mechanisms, "budget": {"train_steps": 50, "target": None}}
    spec = resolve(document, template="reference_game").spec
    kinds = "abc"[: draw.choice([2, 3])]
    engines, trainers = ({kind: 2 ** draw.uniform(2, 6) for kind in kinds} for _ in range(2))
    stock = tuple(
        PoolStock(
            name=kind, kind=kind, hosts=(size,), devices=size, price=round(2 ** draw.uniform(-1, 2), 2),
            preemptible=kind == "c" and draw.random() < 0.5,
        )
        for kind in kinds for size in [draw.randint(2, 6)]
    )  # fmt: skip
    known = tuple(
        KnownSpeeds(engine=one, each=1, trainer=other, profile=_profile(spec, engines[one], trainers[other]))
        for one in kinds for other in kinds
    )  # fmt: skip
    return RandomCluster(spec, stock, known, draw.random() < 0.5, draw.uniform(0.1, 0.9))


def _profile(spec: ExperimentSpec, engine: float, trainer: float) -> Profile:
    times = {"engine": engine, "trainer": trainer}
    figures = {
        name: value * times.get(name.split(".")[0], 1.0)
        for name, value in ((name, figure.likely) for name, figure in complete(spec, {}).items())
    }
    return Profile(
        figures={n: ProfileFigure(low=value, likely=value, high=value, source="runs") for n, value in figures.items()}
    )


def gap(given: RandomCluster) -> float:
    """Return by what share the chosen devices are worse than the best of all sets, all of them simulated."""
    own, stock, known, *_ = given
    every = search(DeviceQuestion(own, DeviceObjective(objective="fastest"), stock, known), played)
    for row in range(len(every.table.closed_s)):
        if row not in every.reports:
            every.simulate(row)
    wish = _wish(given, every.table.metrics())
    kept = feasible(every.table, wish)
    value = np.where(kept, objective(every.table, wish), np.inf)
    best = search(DeviceQuestion(own, wish, stock, known), played).best()
    return float("inf") if best is None else float(value[best] / value.min() - 1.0)


def _wish(given: RandomCluster, metrics: object) -> DeviceObjective:
    """Return a wish whose limit some sets keep and others do not."""
    assert isinstance(metrics, dict)
    if given.priced:
        limit = float(np.quantile(metrics["budget_per_hour"], given.share, method="lower"))
        return DeviceObjective(objective="fastest", budget_per_hour=limit)
    return DeviceObjective(objective="cheapest", deadline_s=float(np.quantile(metrics["deadline_s"], given.share)))
