"""The batch arithmetic of a specification: tasks x episodes x turns -> samples -> micro-batches -> steps, per agent.

Computed here once; the API, the form and the driver's expectations read the same values.
"""

from flexmarl.contracts.base import Record
from flexmarl.contracts.ids import Name
from flexmarl.contracts.model_sizes import adapter_parameters
from flexmarl.contracts.specification.experiment import ExperimentSpec


class AgentArithmetic(Record):
    role: Name
    policy: Name
    trainable: bool
    turns: tuple[int, int]
    """Fewest and most model calls per episode."""
    samples: tuple[int, int]
    """Samples per train step."""


class PolicyArithmetic(Record):
    policy: Name
    roles: tuple[Name, ...]
    trainable: bool
    samples: tuple[int, int]
    micro_batches: int
    """Micro-batches per train step."""
    groups_per_micro_batch: int
    train_steps: int
    """Optimizer steps over the whole budget."""
    adapter_parameters: int | None = None
    """Trained parameters of its adapter; null: it has none, or its model is known only where the trainer reads it."""


class StepArithmetic(Record):
    tasks_per_step: int
    episodes_per_task: int
    episodes_per_step: int
    rollout_commands: int
    """Rollout commands per train step."""
    agents: tuple[AgentArithmetic, ...]
    policies: tuple[PolicyArithmetic, ...]
    evaluation_episodes: int
    evaluations: int
    total_episodes: int
    total_samples: tuple[int, int]


def arithmetic(spec: ExperimentSpec) -> StepArithmetic:
    """Derive the sizes of a run. Costs microseconds; never stored."""
    batch, steps = spec.batch, spec.budget.train_steps
    episodes = batch.tasks_per_step * batch.episodes_per_task
    turns = {role.name: (role.min_turns, role.max_turns) for role in spec.environment.facts().roles}
    agents = tuple(
        AgentArithmetic(
            role=role,
            policy=spec.policy_of(role),
            trainable=agent.trainable,
            turns=turns[role],
            samples=(episodes * turns[role][0], episodes * turns[role][1]),
        )
        for role, agent in spec.agents.items()
    )
    policies = tuple(_policy(spec, name, agents) for name in spec.policies)
    per_step = (sum(a.samples[0] for a in agents), sum(a.samples[1] for a in agents))
    return StepArithmetic(
        tasks_per_step=batch.tasks_per_step,
        episodes_per_task=batch.episodes_per_task,
        episodes_per_step=episodes,
        rollout_commands=-(-batch.tasks_per_step // batch.rollout_groups),
        agents=agents,
        policies=policies,
        evaluation_episodes=spec.evaluation.tasks * spec.evaluation.attempts,
        evaluations=1 + steps // spec.evaluation.every_steps,
        total_episodes=episodes * steps,
        total_samples=(per_step[0] * steps, per_step[1] * steps),
    )


def _policy(spec: ExperimentSpec, name: str, agents: tuple[AgentArithmetic, ...]) -> PolicyArithmetic:
    own = [agent for agent in agents if agent.policy == name]
    trainable = name in spec.trainable_policies()
    protocol = spec.mechanisms.trainer_protocol
    size = 1 if protocol == "per_group" else spec.batch.micro_batch_groups
    parts = spec.batch.mini_batches if protocol == "mini_batch" else 1
    return PolicyArithmetic(
        policy=name,
        roles=spec.roles_of(name),
        trainable=trainable,
        samples=(sum(a.samples[0] for a in own), sum(a.samples[1] for a in own)),
        micro_batches=_micro_batches(spec.batch.tasks_per_step, parts, size) if trainable else 0,
        groups_per_micro_batch=size,
        train_steps=spec.budget.train_steps * parts if trainable else 0,
        adapter_parameters=adapter_parameters(spec.policies[name]),
    )


def _micro_batches(groups: int, parts: int, size: int) -> int:
    """Count the slices of a cohort: none reaches from one optimizer step's part into the next."""
    part = -(-groups // parts)
    whole, rest = divmod(groups, part)
    return whole * -(-part // size) + -(-rest // size)
