"""What a scenario's stages take, and the settings by which a planned placement of them is carried out.

Stages are two here: rollout, with environments and rewards, which have no devices of their own, and training. What they
take is worked out from the same models and the same draws that a simulation plays: never measured, and never fitted.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from statistics import fmean
from typing import Any, Literal

from flexmarl.algorithms.placement import PlacementPlan, Stage, plan_placement
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.simulator.scenarios.draws import Scripts
from flexmarl.simulator.scenarios.scenario import Scenario

EDGES = frozenset({("rollout", "training")})
COHORTS = 4
Kind = Literal["temporal", "spatial"]


@dataclass(frozen=True, slots=True)
class CohortWork:
    """What there is to do in a cohort."""

    longest_s: float
    """What its longest episode takes alone."""
    replies: dict[str, float]
    """Policy -> tokens."""
    prompts: dict[str, float]


@dataclass(frozen=True, slots=True)
class PlacementChoice:
    plan: PlacementPlan
    micro_batch_groups: int
    settings: dict[str, Any]
    """What it changes of a specification."""


def place(scenario: Scenario, devices: int, mode: Kind | None = None) -> PlacementChoice | None:
    """Return the placement on so many devices that takes least per step, of one kind or of both; None: too few."""
    kinds: tuple[Kind, ...] = ("temporal", "spatial") if mode is None else (mode,)
    found = [one for kind in kinds for one in _placements(scenario, devices, kind)]
    return min(found, key=lambda one: (one.plan.seconds, one.micro_batch_groups), default=None)


def _placements(scenario: Scenario, devices: int, kind: Kind) -> Iterator[PlacementChoice]:
    """List the best placement of a kind for each size of micro-batches."""
    batch, work = scenario.spec.batch, cohort_work(scenario)
    sizes = [size for size in (1, 2, 4, 8, 16, 32, 64) if size < batch.tasks_per_step] + [batch.tasks_per_step]
    for size in sizes:
        parts = -(-batch.tasks_per_step // size)
        plan = plan_placement(profile(scenario, work, parts, kind), EDGES, devices, parts, kind)
        if plan is not None:
            yield PlacementChoice(plan, size, _settings(scenario, plan, size))


def profile(scenario: Scenario, work: CohortWork, parts: int, kind: Kind) -> dict[str, Stage]:
    """Return what rollout and training take for a cohort in so many micro-batches of each policy.

    Replies that run together each take `token` a step, and slow one another down by `token / batch`: n of them end when
    the longest does, later by all other tokens over `batch`. Where engines hold a part of the policies alone, the most
    asked one has no more than its share of them; engines that share their devices hold all.
    """
    engine, trainer, spec = scenario.machine.wide_engine, scenario.machine.trainer, scenario.spec
    trained = spec.trainable_policies()
    learnt = sum(work.replies[name] * scenario.machine.times(name) for name in trained)
    rows = spec.batch.tasks_per_step * spec.batch.episodes_per_task
    each = {
        name: scenario.machine.answers(name)
        * (work.replies[name] * engine.token / engine.batch + work.prompts[name] / engine.prefill)
        for name in work.replies
    }
    served = sum(each.values())
    if kind == "spatial" and spec.resources.has_places(len(spec.policies)):
        served = max(served, max(each.values()) * len(spec.policies) / (spec.resources.engine_policies or 1))
    return {
        "rollout": Stage(
            work_s=served,
            least_s=work.longest_s,
            close_s=engine.load * max(scenario.machine.times(name) for name in trained),
            switch_s=2.0 * engine.turn,
        ),
        "training": Stage(
            work_s=(learnt * trainer.token / scenario.machine.width + rows * trainer.row) * trainer.times
            + trainer.micro_batch * parts * len(trained)
            + 2.0 * trainer.swap * _swaps(spec),
            close_s=trainer.step * trainer.times,
            switch_s=2.0 * trainer.swap,
            most=most_trainers(spec),
        ),
    }


def cohort_work(scenario: Scenario) -> CohortWork:
    """Return what there is to do in a cohort, on the average of some."""
    spec, token, times = scenario.spec, scenario.machine.engine.token, scenario.machine.answers
    roles = {role: number for number, role in enumerate(sorted(spec.agents))}
    draws = Scripts(scenario.workload, roles, scenario.seed)
    replies, prompts = dict.fromkeys(spec.policies, 0.0), dict.fromkeys(spec.policies, 0.0)
    longest, widths = [0.0] * COHORTS, [len(stage) for stage in scenario.workload.stages]
    for draw in range(spec.batch.tasks_per_step * COHORTS):
        for member in range(spec.batch.episodes_per_task):
            script = draws.script(draw, member, spec.batch.episodes_per_task, 1, draw)
            took = sum(script.waits) + script.reward_s
            for stage in range(len(script.waits)):
                asked = list(islice(script.turns, widths[stage % len(widths)]))
                took += max(reply * times(spec.policy_of(role)) for role, _, _, reply in asked) * token
                for role, _, prompt, reply in asked:
                    replies[spec.policy_of(role)] += reply / COHORTS
                    prompts[spec.policy_of(role)] += prompt / COHORTS
            cohort = draw // spec.batch.tasks_per_step
            longest[cohort] = max(longest[cohort], took)
    return CohortWork(fmean(longest), replies, prompts)


def most_trainers(spec: ExperimentSpec) -> int:
    """Return the trainer devices that its policies can use at once."""
    return sum(spec.policies[name].devices.most for name in spec.trainable_policies())


def _swaps(spec: ExperimentSpec) -> int:
    """Return how often a policy is suspended in a cohort where trainers do not hold all: each at least once."""
    policies = len(spec.trainable_policies())
    return policies if (spec.resources.trainer_policies or policies) < policies else 0


def _settings(scenario: Scenario, plan: PlacementPlan, size: int) -> dict[str, Any]:
    devices, shared = plan.devices(), plan.beside("rollout", "training")
    trainers = min(devices["training"], most_trainers(scenario.spec))
    resources: dict[str, Any] = {"rollout_devices": devices["rollout"], "training_devices": trainers}
    mechanisms = {
        "allocation": {"type": "colocated" if shared else "agent_centric"},
        "trainer_protocol": "batch" if shared else "micro_batch",
    }
    if shared:
        resources["engine_policies"] = None
    return {"mechanisms": mechanisms, "resources": resources, "batch": {"micro_batch_groups": size}}
