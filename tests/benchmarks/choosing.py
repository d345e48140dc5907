"""Chosen devices of two kinds against the best of either kind alone, at equal price, in the simulator.

One policy of 7.6 billion parameters in bf16 (28 layers, 4 heads of keys and values of 128) plays 128 x 8 replies a
step, which may be four versions older than the weights. Kinds are told by their data sheets: dense bf16 arithmetic and
memory bandwidth; how much of either is used (`USED`) is the same for both. Nothing is fitted to a published figure.
Prices are assumed rentals; their ratio decides, so it is a setting.

`speed_N`: steps an hour of the mixed choice over the better one of both homogeneous choices, for replies of N tokens,
at the price of 24 of the dear devices. `price_N`: what a step costs on the better homogeneous
choice over what it costs on a mixed one that is as fast. AReaL-Hex (arXiv 2511.00796) tells up to 1.50 and up to 1.46.

`gap_mean`, `gap_most`: by what share choices on random clusters of two and three kinds are worse than the best of all
sets of devices, each simulated.
"""

import argparse
import time
from dataclasses import dataclass
from statistics import fmean

from harness import Report, start

from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.simulator.choosing.choosing import search
from flexmarl.simulator.choosing.explaining import told
from flexmarl.simulator.choosing.objectives import DeviceObjective, DevicePlan, KnownSpeeds, PoolStock
from flexmarl.simulator.choosing.setups import DeviceQuestion
from flexmarl.simulator.prediction.predicting import simulated
from flexmarl.simulator.prediction.profile import Ends, Profile, ProfileFigure, complete
from flexmarl.simulator.reporting.report import SimulationReport
from tests.support.clusters import cluster, gap

PARAMETERS, LAYERS, CACHED = 7.6e9, 28, 4 * 128
CACHE_BYTES = 2 * 2 * LAYERS * CACHED
"""Of one token."""
USED = {"arithmetic": 0.4, "bandwidth": 0.7}
TOGETHER = 32
"""Replies of an engine for which a decode step takes what weights and cache take, or what the arithmetic takes."""
PROMPT = 512
REPLIES = (2048, 8192, 16384)
STOCK = {"H800": 64, "H20": 128}
BUDGETED = 24
LAG = 4
STEPS = 3


@dataclass(frozen=True, slots=True)
class Kind:
    flops: float
    """Dense, in bf16, a second."""
    bytes_s: float


KINDS = {"H800": Kind(989e12, 3.35e12), "H20": Kind(148e12, 4.0e12)}


def spec() -> ExperimentSpec:
    """Return a run of one policy whose trainers may be a gang of all devices."""
    document = {
        "name": "two kinds",
        "agents": {"speaker": {"policy": "solver"}, "listener": {"policy": "solver"}},
        "environment": {"type": "reference_game"},
        "policies": {"solver": {"devices": {"least": 1, "most": 64}}},
        "resources": {"training_devices": 64},
        "batch": {"tasks_per_step": 128, "episodes_per_task": 8, "micro_batch_groups": 16, "rollout_groups": 32},
        "mechanisms": {"lag_policy": {"bound": LAG}},
        "budget": {"train_steps": 100, "target": None},
        "evaluation": {"every_steps": 100, "tasks": 1},
    }
    return resolve(document).spec


def profile(own: ExperimentSpec, engine: Kind, trainer: Kind, reply: int) -> Profile:
    """Return exact figures of engines and trainers by arithmetic and bandwidth."""
    forward = 2.0 * PARAMETERS
    weights = 2.0 * PARAMETERS / (engine.bytes_s * USED["bandwidth"])
    read = (PROMPT + reply / 2) * CACHE_BYTES / (engine.bytes_s * USED["bandwidth"])
    computed = forward / (engine.flops * USED["arithmetic"])
    step = max(weights + TOGETHER * read, TOGETHER * computed)
    figures = {
        "engine.token solver": weights,
        "engine.row solver": (step - weights) / TOGETHER,
        "engine.prompt solver": computed,
        "trainer.token solver": 4.0 * forward / (trainer.flops * USED["arithmetic"]),
    }
    for role, prompt, length in (("speaker", PROMPT, reply), ("listener", 1, 1)):  # one turn counts, the other is none
        figures |= {f"role.prompt {role}": float(prompt), f"role.reply {role}": float(length)}
    exact = {n: ProfileFigure(low=v, likely=v, high=v, source="declared") for n, v in figures.items()}
    return Profile(figures=complete(own, exact))


def played(own: ExperimentSpec, known: Profile, ends: Ends) -> SimulationReport:
    """Simulate some steps of a run."""
    return simulated(own, known, ends, STEPS, 0)


def chosen(
    own: ExperimentSpec, reply: int, prices: dict[str, float], names: list[str], wish: DeviceObjective
) -> DevicePlan:
    """Choose among pools of some kinds."""
    stock = tuple(
        PoolStock(name=n, kind=n, hosts=(8,) * (STOCK[n] // 8), devices=STOCK[n], price=prices[n]) for n in names
    )
    known = tuple(
        KnownSpeeds(engine=one, each=1, trainer=other, profile=profile(own, KINDS[one], KINDS[other], reply))
        for one in names
        for other in names
    )
    best = told(search(DeviceQuestion(own, wish, stock, known), played)).best
    assert best is not None, "a budget for 24 devices buys two"
    return best


def compare(report: Report, reply: int, prices: dict[str, float]) -> None:
    """Record how much faster, and how much cheaper, a mixed choice is for replies of a length."""
    own, budget = spec(), BUDGETED * prices["H800"]
    wish = DeviceObjective(objective="fastest", budget_per_hour=budget)
    alone = min((chosen(own, reply, prices, [name], wish) for name in KINDS), key=lambda one: one.step_s.likely)
    began = time.perf_counter()
    mixed = chosen(own, reply, prices, list(KINDS), wish)
    report.figures[f"chosen_in_s_{reply}"] = time.perf_counter() - began
    report.figures[f"speed_{reply}"] = alone.step_s.likely / mixed.step_s.likely
    equal = DeviceObjective(objective="cheapest", steps_per_hour=3600.0 / alone.step_s.likely)
    cheap = chosen(own, reply, prices, list(KINDS), equal)
    assert alone.cost is not None
    assert cheap.cost is not None
    report.figures[f"price_{reply}"] = alone.cost.per_step.likely / cheap.cost.per_step.likely
    for name, plan in (("alone", alone), ("mixed", mixed), ("cheap", cheap)):
        report.settings[f"{name}_{reply}"] = (
            f"{plan.rollout_devices} {plan.rollout_pool} + {plan.training_devices} {plan.training_pool}: "
            f"{plan.step_s.likely:.1f} s at {plan.cost.per_hour if plan.cost else 0.0:.1f} an hour"
        )


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dear", type=float, default=5.28, help="price of an H800 hour")
    parser.add_argument("--cheap", type=float, default=1.85, help="price of an H20 hour")
    parser.add_argument("--clusters", type=int, default=50)


def main() -> None:
    report = start("choosing", __doc__ or "", _options)
    prices = {"H800": float(str(report.settings["dear"])), "H20": float(str(report.settings["cheap"]))}
    for reply in REPLIES[1:2] if report.quick else REPLIES:
        compare(report, reply, prices)
    gaps = [gap(cluster(seed)) for seed in range(1 if report.quick else int(str(report.settings["clusters"])))]
    report.figures |= {"gap_mean": fmean(gaps), "gap_most": max(gaps)}
    report.finish()


if __name__ == "__main__":
    main()
