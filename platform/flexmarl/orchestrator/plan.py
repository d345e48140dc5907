"""What the specification fixes for a whole run, worked out once. Immutable; never part of the state."""

from dataclasses import dataclass

from flexmarl.algorithms.advantages import ADVANTAGES, AdvantageEstimator
from flexmarl.algorithms.aggregation import AGGREGATIONS, Aggregation
from flexmarl.algorithms.filters import GROUP_FILTERS, GroupFilter
from flexmarl.algorithms.group_keys import GROUP_KEYS, GroupKey
from flexmarl.algorithms.schedules import entropy_coefficient, learning_rate
from flexmarl.algorithms.task_sampler import TASK_SAMPLERS, TaskSampler
from flexmarl.contracts.spec.experiment import ExperimentSpec


@dataclass(frozen=True, slots=True)
class Plan:
    spec: ExperimentSpec
    policies: tuple[str, ...]
    trainable: tuple[str, ...]
    policy_of: dict[str, str]
    """Role -> policy."""
    trained_roles: frozenset[str]
    """Roles whose rows are trained: a shared policy may have a frozen seat."""
    groups: int
    members: int
    needed_members: int
    slice_groups: int
    """Episode groups in a micro-batch."""
    streaming: bool
    """Cut and accumulate while the rest of the cohort plays."""
    ordered: bool
    sampler: TaskSampler
    estimator: AdvantageEstimator
    group_key: GroupKey
    group_filter: GroupFilter
    aggregation: Aggregation

    def entropy_coefficient(self, step: int) -> float:
        """Return the entropy bonus's coefficient of a step, from 0."""
        return entropy_coefficient(self.spec.algorithm.entropy, step)

    def learning_rate(self, policy: str, step: int) -> float:
        """Return a policy's learning rate of a step, from 0."""
        return learning_rate(self.spec.policies[policy].optimizer, step, self.spec.budget.train_steps)


def make_plan(spec: ExperimentSpec) -> Plan:
    """Resolve a specification's names and sizes. Raises LookupError for a plug-in nobody has."""
    algorithm, sampling, batch = spec.algorithm, spec.sampling, spec.batch
    return Plan(
        spec=spec,
        policies=tuple(spec.policies),
        trainable=spec.trainable_policies(),
        policy_of={role: spec.policy_of(role) for role in spec.agents},
        trained_roles=frozenset(role for role, agent in spec.agents.items() if agent.trainable),
        groups=batch.tasks_per_step,
        members=batch.episodes_per_task,
        needed_members=batch.min_members or batch.episodes_per_task,
        slice_groups=batch.micro_batch_groups,
        streaming=spec.mechanisms.trainer_protocol == "micro_batch",
        ordered=spec.mechanisms.ordered,
        sampler=TASK_SAMPLERS.get(sampling.task_sampler),
        estimator=ADVANTAGES.get(algorithm.advantage.type),
        group_key=GROUP_KEYS.get(algorithm.group_key),
        group_filter=GROUP_FILTERS.get(sampling.group_filter),
        aggregation=AGGREGATIONS.get(algorithm.loss.aggregation),
    )
