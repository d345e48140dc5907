"""What a scenario's stages take, and the settings by which a planned placement of them is carried out.

Stages are two here: rollout, with environments and rewards, which have no devices of their own, and training. What they
take is worked out from the same models and the same draws that a simulation plays: never measured, and never fitted.
"""

from dataclasses import dataclass
from typing import Any, Literal

from flexmarl.algorithms.placement import Plan, Stage, plan_placement
from flexmarl.contracts.spec import ExperimentSpec
from flexmarl.simulator.draws import Scripts
from flexmarl.simulator.scenario import Scenario

EDGES = frozenset({("rollout", "training")})


@dataclass(frozen=True, slots=True)
class Placement:
    plan: Plan
    micro_batch_groups: int
    settings: dict[str, Any]
    """What it changes of a specification."""


def place(scenario: Scenario, devices: int, mode: Literal["temporal", "spatial"] | None = None) -> Placement | None:
    """Return the placement on so many devices that takes least per step, of one kind or of both; None: too few."""
    batch = scenario.spec.batch
    sizes = [size for size in (1, 2, 4, 8, 16, 32, 64) if size < batch.tasks_per_step] + [batch.tasks_per_step]
    plans = []
    for size in sizes:
        parts = -(-batch.tasks_per_step // size)
        plan = plan_placement(profile(scenario, parts), EDGES, devices, parts, mode)
        if plan is not None:
            plans.append((plan.seconds, size, plan))
    if not plans:
        return None
    _, size, plan = min(plans, key=lambda one: one[:2])
    return Placement(plan, size, _settings(scenario, plan, size))


def profile(scenario: Scenario, parts: int) -> dict[str, Stage]:
    """Return what rollout and training take for a cohort in so many micro-batches of each policy.

    Replies that run together each take `token` a step, and slow one another down by `token / batch`: n of them end when
    the longest does, later by all other tokens over `batch`.
    """
    engine, trainer, spec = scenario.machine.engine, scenario.machine.trainer, scenario.spec
    longest, tokens, prompts = _drawn(scenario)
    trained = spec.trainable_policies()
    learnt = sum(tokens.get(name, 0) * scenario.machine.times(name) for name in trained)
    rows = spec.batch.tasks_per_step * spec.batch.episodes_per_task
    return {
        "rollout": Stage(
            work_s=sum(tokens.values()) * engine.token / engine.batch + prompts / engine.prefill,
            least_s=longest,
            close_s=engine.load * max(scenario.machine.times(name) for name in trained),
            switch_s=2.0 * engine.turn,
        ),
        "training": Stage(
            work_s=learnt * trainer.token
            + rows * trainer.row
            + trainer.micro_batch * parts * len(trained)
            + 2.0 * trainer.swap * _swaps(spec),
            close_s=trainer.step,
            switch_s=2.0 * trainer.swap,
            most=_most(spec),
        ),
    }


def _drawn(scenario: Scenario) -> tuple[float, dict[str, int], float]:
    """Return how long the longest episode takes alone, and a cohort's reply tokens by policy and prompt tokens."""
    spec, workload, token = scenario.spec, scenario.workload, scenario.machine.engine.token
    draws = Scripts(workload, {role: number for number, role in enumerate(sorted(spec.agents))}, scenario.seed)
    longest, tokens, prompts = 0.0, dict.fromkeys(spec.policies, 0), 0.0
    for draw in range(spec.batch.tasks_per_step):
        for member in range(spec.batch.episodes_per_task):
            script = draws.script(draw, member, spec.batch.episodes_per_task, 1)
            took = sum(script.waits) + script.reward_s
            for stage in range(len(script.waits)):
                slowest = 0
                for _ in range(draws.widths[stage % len(draws.widths)]):
                    role, _number, prompt, reply = next(script.turns)
                    tokens[spec.policy_of(role)] += reply
                    prompts += prompt
                    slowest = max(slowest, reply)
                took += slowest * token
            longest = max(longest, took)
    return longest, tokens, prompts


def _most(spec: ExperimentSpec) -> int:
    """Return the trainer devices that its policies can use at once."""
    return sum(spec.policies[name].devices.most for name in spec.trainable_policies())


def _swaps(spec: ExperimentSpec) -> int:
    """Return how often a policy is suspended in a cohort where trainers do not hold all: each at least once."""
    policies = len(spec.trainable_policies())
    return policies if (spec.resources.trainer_policies or policies) < policies else 0


def _settings(scenario: Scenario, plan: Plan, size: int) -> dict[str, Any]:
    devices, shared = plan.devices(), plan.beside("rollout", "training")
    trainers = min(devices["training"], _most(scenario.spec))
    resources: dict[str, Any] = {"rollout_devices": devices["rollout"], "training_devices": trainers}
    mechanisms = {
        "allocation": {"type": "colocated" if shared else "agent_centric"},
        "trainer_protocol": "batch" if shared else "micro_batch",
    }
    if shared:
        resources["engine_policies"] = None
    return {"mechanisms": mechanisms, "resources": resources, "batch": {"micro_batch_groups": size}}
