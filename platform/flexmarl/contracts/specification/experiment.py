"""The root of the specification and its cross-field rules."""

from typing import Annotated

from pydantic import Field, model_validator

from flexmarl.contracts.base import Strict
from flexmarl.contracts.ids import Name
from flexmarl.contracts.plugins import OneOf
from flexmarl.contracts.specification.algorithm import AlgorithmSpec, Batch, SamplingFamily
from flexmarl.contracts.specification.environment import EnvironmentSpec
from flexmarl.contracts.specification.mechanisms import LagPolicy, Mechanisms
from flexmarl.contracts.specification.resources import Budget, Checkpoints, Evaluation, Resources, Trajectories
from flexmarl.contracts.specification.reward import REWARD, EnvironmentReward, RewardOptions
from flexmarl.contracts.specification.team import AgentSpec, PolicySpec, TeamReference

SPEC_SCHEMA_VERSION = 1
UNKNOWN_REPLY = 64
"""Tokens of a reply whose length neither its agent nor the environment says."""


class ExperimentSpec(Strict):
    """A complete, resolved experiment. `agents` must be exactly the roles of the environment (checked at submit)."""

    schema_version: int = Field(default=SPEC_SCHEMA_VERSION, ge=1, le=SPEC_SCHEMA_VERSION)
    name: str = Field(default="untitled", min_length=1, max_length=64)
    seed: int = Field(default=0, ge=0, le=2**31 - 1)
    team: TeamReference | None = None
    """Team that agents, policies and the environment's graph come from, in place of those of a template; what is set
    beside it is laid over."""
    agents: dict[Name, AgentSpec] = Field(min_length=1, max_length=16)
    policies: dict[Name, PolicySpec] = {}
    """Settings per policy; policies named by agents only get the defaults."""
    environment: EnvironmentSpec
    reward: Annotated[RewardOptions, OneOf(REWARD)] = EnvironmentReward()
    """Where an episode's reward comes from: the environment's own scores, or a reward function."""
    algorithm: AlgorithmSpec = AlgorithmSpec()
    sampling: SamplingFamily = SamplingFamily()
    batch: Batch = Batch()
    mechanisms: Mechanisms = Mechanisms()
    resources: Resources = Resources()
    budget: Budget = Budget()
    evaluation: Evaluation = Evaluation()
    checkpoints: Checkpoints = Checkpoints()
    trajectories: Trajectories = Trajectories()

    @model_validator(mode="before")
    @classmethod
    def _describe_every_policy(cls, data: object) -> object:
        """Give each policy that an agent acts with an entry, so that readers never fall back on their own."""
        if not isinstance(data, dict) or not isinstance(data.get("agents"), dict):
            return data
        policies = data.get("policies") or {}
        if not isinstance(policies, dict):
            return data
        policies = dict(policies)
        for role, agent in data["agents"].items():
            external = agent.get("external") if isinstance(agent, dict) else getattr(agent, "external", None)
            if external is not None:
                continue
            own = agent.get("policy") if isinstance(agent, dict) else getattr(agent, "policy", None)
            if own is None or isinstance(own, str):
                policies.setdefault(own or role, {})
        return {**data, "policies": policies}

    @property
    def reports_demand(self) -> bool:
        """Whether the core decides by what rollout workers ask which engine for."""
        return self.resources.has_places(len(self.policies)) or self.mechanisms.mover.repack_every_s is not None

    def policy_of(self, role: str) -> str:
        """Return the name of the policy a role acts with."""
        return self.agents[role].policy or role

    def roles_of(self, policy: str) -> tuple[str, ...]:
        """Return the roles that act with a policy, in the order of the specification."""
        return tuple(role for role in self.agents if self.policy_of(role) == policy)

    def longest_reply(self, role: str) -> int:
        """Return the most tokens of a reply of a role: its agent's limit, and what the environment asks for."""
        known = (self.agents[role].sampling.max_tokens, self.environment.longest_reply(role))
        return min((one for one in known if one is not None), default=UNKNOWN_REPLY)

    def trainable_policies(self) -> tuple[str, ...]:
        """Return the policies with at least one trainable agent, in the order of the specification."""
        return tuple(name for name in self.policies if any(self.agents[r].trainable for r in self.roles_of(name)))

    @property
    def version_steps(self) -> int:
        """Return how many optimizer steps of a policy the run has: the number of its last version."""
        cohorts = self.budget.train_steps
        return cohorts * self.batch.mini_batches if self.mechanisms.trainer_protocol == "mini_batch" else cohorts

    @property
    def own_trainers(self) -> int:
        """Count the trainers that have devices of their own; the others share those of engines."""
        allocation = self.mechanisms.allocation
        return allocation.own_devices if allocation.type == "colocated" else self.resources.training_devices

    def lag_policy_pointer(self, policy: str) -> str:
        """Return where the record stands that rules the lag of a policy's rows."""
        shared = self.policies[policy].lag_policy is None
        return "/mechanisms/lag_policy" if shared else f"/policies/{policy}/lag_policy"

    def lag_policy_of(self, policy: str) -> LagPolicy:
        """Return the record that rules the lag of a policy's rows."""
        own = self.policies[policy].lag_policy
        return self.mechanisms.lag_policy if own is None else own

    def abandon_bounds(self) -> dict[str, int]:
        """Return the bound of every trained policy, where episodes that are too old for all of them are abandoned."""
        rules = {name: self.lag_policy_of(name) for name in self.trainable_policies()}
        if not rules or any(rule.at_turn != "abandon" for rule in rules.values()):
            return {}
        return {name: rule.bound for name, rule in rules.items()}
