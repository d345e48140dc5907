"""What the specification fixes for a whole run, worked out once. Immutable; never part of the state."""

from dataclasses import dataclass
from typing import Any, cast, get_args

from flexmarl.algorithms.advantages import ADVANTAGES, Advantage
from flexmarl.algorithms.arrangers import ARRANGERS, Arranger
from flexmarl.algorithms.filters import GROUP_FILTERS, GroupFilter
from flexmarl.algorithms.group_keys import GROUP_KEYS, GroupKey
from flexmarl.algorithms.member_counts import MEMBER_COUNTS, MemberCount
from flexmarl.algorithms.movers import MOVERS, Mover
from flexmarl.algorithms.redundancy import extra_of
from flexmarl.algorithms.rewards import RowRewards, answer_rewards
from flexmarl.algorithms.schedules import entropy_coefficient, learning_rate
from flexmarl.algorithms.shaping import SHAPERS, Shaper
from flexmarl.algorithms.task_sampler import TASK_SAMPLERS, TaskSampler
from flexmarl.algorithms.tree_advantage import TreeGrpo
from flexmarl.contracts.commands import Follow
from flexmarl.contracts.plugins import Readiness
from flexmarl.contracts.readiness import readiness
from flexmarl.contracts.specification.advantages import GrpoOptions
from flexmarl.contracts.specification.branch_controllers import ContinuingOptions
from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.contracts.specification.rollout_window import RolloutWindow
from flexmarl.contracts.specification.scaling import Scaling


@dataclass(frozen=True, slots=True)
class CohortPlan:
    """Groups of a cohort and members of a group. Read by `cohorts`."""

    groups: int
    members: int
    needed_members: int
    extra_groups: int
    """Groups proposed beyond those of a step."""
    surplus_continues: bool
    """What a step does not need goes on into the next: groups that play, and those that settled."""
    enough_members: int
    """Finished members at which the other members of a group are cancelled; 0: none are."""
    spares: int
    """Environments of a group beyond its members, in which its slowest are played a second time."""
    most_draws: int
    """Groups that a cohort proposes at most, those in the place of refused ones among them."""


@dataclass(frozen=True, slots=True)
class CuttingPlan:
    """How settled groups become micro-batches and optimizer steps. Read by `cohorts.cutting` and `training`."""

    slice_groups: int
    """Episode groups in a micro-batch."""
    by_episode: bool
    """Episodes settle one by one, and their rows are trained while the rest of their group plays."""
    streaming: bool
    """Cut and accumulate while the rest of the cohort plays."""
    part_groups: int
    """Episode groups of one optimizer step: all of the cohort, or a mini-batch of it."""
    one_part: bool
    """A cohort is one optimizer step of each policy."""
    arranger: Arranger[Any]
    """Says how often rows of a settled cohort count."""


@dataclass(frozen=True, slots=True)
class LagPlan:
    """When cohorts start, and what happens to those that play when weights change. Read by `cohorts.admission`."""

    bounded: bool
    """Cohorts start as the lag policy admits them: some policy's bound is above 0, and published when committed."""
    by_credit: bool
    """They are admitted group by group, as older ones are trained: some policy says so."""
    follows: dict[str, Follow]
    """Policies whose playing groups go on under newer weights, and how."""
    discards: frozenset[str]
    """Policies whose playing groups begin anew under newer weights."""
    fixed: bool
    """A cohort plays the weights of one step before in every case, also where it waits and newer ones are served: what
    an ordered run plays must not depend on when it plays."""


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """What an engine holds at once. Read by `serving` and `rollout`."""

    places: int | None
    """Policies that an engine holds at once, None: all of them."""
    one_version: bool
    """An engine plays the groups it was given to the end before it takes newer weights."""
    groups_at_once: int
    """Groups that such an engine is given at once: its part of a step's."""
    least: int
    """Engines that the run cannot do without."""
    most: int
    """Engines that it takes where devices are free."""
    scaling: Scaling | None = None
    """How it goes by measured rates between the two; None: it takes what is free."""


@dataclass(frozen=True, slots=True)
class TrainerPlan:
    """Where policies are trained. Read by `allocation` and `training`."""

    allocates: bool
    """There is a choice of trainer devices, or too few places on them: what is bound where is decided as it goes."""
    colocated: bool
    """Trainers share the devices of engines, in turns."""
    own_devices: int
    """Trainers with devices of their own: all of them, or the last ones of a colocated run."""
    window: RolloutWindow
    """How long engines have the devices that they share, in each step."""


@dataclass(frozen=True, slots=True)
class SettlementPlan:
    """How a settled group is rewarded, compared and kept. Read by `cohorts.cohorts`."""

    rewards: RowRewards
    """Rewards of rows, before they are compared."""
    advantage: Advantage[Any]
    group_key: GroupKey
    shaper: Shaper[Any]
    reply_limits: dict[str, int]
    """Role -> most tokens of a reply."""
    group_filter: GroupFilter[Any]


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """Which tasks are played. Read by `cohorts.task_choice`."""

    sampler: TaskSampler[Any]
    chosen_from: int
    """Size of the set that the sampler chooses from; 0: it chooses none, and a draw's number is its task."""
    best_score: float
    """Of the team, in an episode; read where tasks are chosen."""
    counter: MemberCount[Any]
    """Says how many members the group of a chosen task has."""
    ranked_from: int = 0
    """Size of the set of which lengths are remembered, to send the longest first; 0: groups go as they were drawn."""


@dataclass(frozen=True, slots=True)
class Plan:
    spec: ExperimentSpec
    policies: tuple[str, ...]
    trainable: tuple[str, ...]
    policy_of: dict[str, str]
    """Role -> policy."""
    trained_roles: frozenset[str]
    """Roles whose rows are trained: a shared policy may have a frozen seat."""
    opening: frozenset[str]
    """Policies of the first turns of an episode."""
    ordered: bool
    mover: Mover[Any]
    tasks: TaskPlan
    cohort: CohortPlan
    cutting: CuttingPlan
    lag: LagPlan
    engines: EnginePlan
    trainers: TrainerPlan
    settlement: SettlementPlan

    def training_seed(self, number: int) -> int:
        """Return the task seed of a draw, or of a chosen task: its number, where the environment lists its tasks."""
        environment = self.spec.environment
        if environment.lists_training or (self.tasks.chosen_from and environment.training_tasks):
            return number
        return self.tasks.sampler.train(self.spec.seed, number).seed

    def evaluation_seed(self, index: int) -> int:
        """Return the task seed of the `index`-th evaluation task: its place, where the environment lists them."""
        if self.spec.environment.lists_held_out:
            return index
        return self.tasks.sampler.evaluation(self.spec.seed, index).seed

    def members_of(self, long_round: bool) -> int:
        """Return the members that a group of a cohort plays: a long round plays none beyond those it needs."""
        return self.spec.batch.episodes_per_task if long_round else self.cohort.members

    def entropy_coefficient(self, step: int) -> float:
        """Return the entropy bonus's coefficient of a step, from 0."""
        return entropy_coefficient(self.spec.algorithm.entropy, step)

    def learning_rate(self, policy: str, step: int) -> float:
        """Return a policy's learning rate of a step, from 0."""
        return learning_rate(self.spec.policies[policy].optimizer, step, self.spec.budget.train_steps)


def make_plan(spec: ExperimentSpec, opening: frozenset[str] | None = None) -> Plan:
    """Resolve a specification's names and sizes. Raises LookupError for a plug-in nobody has.

    `opening` names the policies of the first turns where no environment of ours is played: a simulated workload.
    """
    opening = _opening(spec) if opening is None else opening
    return Plan(
        spec=spec,
        policies=tuple(spec.policies),
        trainable=_first_turns_first(spec, opening),
        policy_of={role: spec.policy_of(role) for role in spec.agents},
        trained_roles=frozenset(role for role, agent in spec.agents.items() if agent.trainable),
        opening=opening,
        ordered=spec.mechanisms.ordered,
        mover=MOVERS.make(spec.mechanisms.mover),
        tasks=_task_plan(spec),
        cohort=_cohort_plan(spec),
        cutting=_cutting_plan(spec),
        lag=_lag_plan(spec),
        engines=EnginePlan(
            places=_places(spec),
            one_version=spec.resources.engine_versions == 1,
            groups_at_once=-(-spec.batch.tasks_per_step // spec.resources.most_engines),
            least=spec.resources.engines,
            most=spec.resources.most_engines,
            scaling=_scaling(spec),
        ),
        trainers=TrainerPlan(
            allocates=_allocates(spec),
            colocated=spec.mechanisms.allocation.type == "colocated",
            own_devices=spec.own_trainers,
            window=spec.mechanisms.allocation.window,
        ),
        settlement=_settlement_plan(spec),
    )


def _task_plan(spec: ExperimentSpec) -> TaskPlan:
    options, environment = spec.sampling.task_sampler, spec.environment
    sampler, counter = TASK_SAMPLERS.make(options), MEMBER_COUNTS.make(spec.sampling.members)
    ranks = spec.mechanisms.dispatch == "longest_first"
    if not options.chooses:
        return TaskPlan(sampler, 0, 1.0, counter, ranks * (environment.training_tasks or 0))
    tasks = options.own_tasks or environment.training_tasks or 0
    return TaskPlan(sampler, tasks, environment.facts().best_score, counter, ranks * tasks)


def _cohort_plan(spec: ExperimentSpec) -> CohortPlan:
    batch, redundancy = spec.batch, spec.mechanisms.redundancy
    extra = extra_of(redundancy, batch.tasks_per_step, batch.episodes_per_task)
    return CohortPlan(
        groups=batch.tasks_per_step,
        members=batch.episodes_per_task + extra.members,
        needed_members=_needed_members(spec),
        extra_groups=extra.groups,
        surplus_continues=bool(extra.groups) and redundancy.goes_on,
        enough_members=batch.episodes_per_task if extra.members else 0,
        spares=extra.environments,
        most_draws=batch.tasks_per_step * spec.sampling.group_filter.most_draws,
    )


def _cutting_plan(spec: ExperimentSpec) -> CuttingPlan:
    batch, protocol = spec.batch, spec.mechanisms.trainer_protocol
    parts = batch.mini_batches if protocol == "mini_batch" else 1
    return CuttingPlan(
        slice_groups=1 if protocol == "per_group" else batch.micro_batch_groups,
        by_episode=batch.settle == "episode",
        streaming=protocol != "batch",
        part_groups=-(-batch.tasks_per_step // parts),
        one_part=parts == 1,
        arranger=ARRANGERS.make(spec.sampling.arranger),
    )


def _lag_plan(spec: ExperimentSpec) -> LagPlan:
    return LagPlan(
        bounded=_bounded(spec),
        by_credit=_by_credit(spec),
        follows=_follows(spec),
        discards=frozenset(n for n in spec.trainable_policies() if spec.lag_policy_of(n).in_flight == "discard"),
        fixed=spec.mechanisms.ordered and spec.mechanisms.publication.type == "delayed",
    )


def _settlement_plan(spec: ExperimentSpec) -> SettlementPlan:
    algorithm = spec.algorithm
    advantage = ADVANTAGES.make(algorithm.advantage)
    controller = spec.sampling.branch_controller
    if isinstance(controller, ContinuingOptions) and isinstance(algorithm.advantage, GrpoOptions):
        advantage = TreeGrpo(algorithm.advantage, controller.lone_turns == "nearest")
    return SettlementPlan(
        rewards=answer_rewards if spec.sampling.branches else advantage.rewards,
        advantage=advantage,
        group_key=GROUP_KEYS[algorithm.group_key],
        shaper=SHAPERS.make(algorithm.shaping),
        reply_limits={role: spec.longest_reply(role) for role in spec.agents},
        group_filter=GROUP_FILTERS.make(spec.sampling.group_filter),
    )


def _places(spec: ExperimentSpec) -> int | None:
    return spec.resources.engine_policies if spec.resources.has_places(len(spec.policies)) else None


def _scaling(spec: ExperimentSpec) -> Scaling | None:
    scaling = spec.mechanisms.scaling
    return scaling if spec.resources.elastic and scaling.type == "dead_band" else None


def _allocates(spec: ExperimentSpec) -> bool:
    resources, policies = spec.resources, len(spec.trainable_policies())
    if spec.mechanisms.allocation.type == "colocated":
        return True
    return resources.training_devices > 1 or (resources.trainer_policies or policies) < policies


def _bounded(spec: ExperimentSpec) -> bool:
    lagging = any(spec.lag_policy_of(name).bound > 0 for name in spec.trainable_policies())
    return lagging and spec.mechanisms.publication.type == "cohort"


def _by_credit(spec: ExperimentSpec) -> bool:
    rules = (spec.lag_policy_of(name) for name in spec.trainable_policies())
    return _bounded(spec) and any(rule.at_admission == "trained" for rule in rules)


def _follows(spec: ExperimentSpec) -> dict[str, Follow]:
    rules = {name: spec.lag_policy_of(name).in_flight for name in spec.trainable_policies()}
    return {name: cast("Follow", rule) for name, rule in rules.items() if rule in get_args(Follow)}


def _needed_members(spec: ExperimentSpec) -> int:
    """Return the finished members a group needs: rows that need no peer are ready one episode at a time."""
    if spec.batch.min_members is not None:
        return spec.batch.min_members
    alone = readiness(spec) in (Readiness.ROW, Readiness.EPISODE)
    return 1 if alone else spec.batch.episodes_per_task


def _opening(spec: ExperimentSpec) -> frozenset[str]:
    """Return the policies an episode may ask before anybody has spoken."""
    roles = spec.environment.facts().roles
    opening = (role.name for role in roles if role.opens and role.name in spec.agents)
    # An external agent has no weights: whatever it opens waits for nobody.
    return frozenset(spec.policy_of(role) for role in opening if spec.agents[role].external is None)


def _first_turns_first(spec: ExperimentSpec, opening: frozenset[str]) -> tuple[str, ...]:
    """Order the trainable policies so that those an episode asks first are trained first where that matters."""
    if spec.mechanisms.publication.type != "wavefront":
        return spec.trainable_policies()
    return tuple(sorted(spec.trainable_policies(), key=lambda name: name not in opening))
