"""A large team around the core: its specification, and answers to every command as workers would give them.

The specification's own limits on agents and engines are about what the platform runs today; the core has none, so the
team is put together behind the validation. Nothing here knows how the core works: commands in, facts out.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from flexmarl.contracts import commands as c
from flexmarl.contracts import events as e
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.wire import EpisodeOutcome, EpisodeStatus, Origin, SampleRef, TrainStats
from flexmarl.orchestrator import Decision

ADMITTED_AGENTS = 16


@dataclass(frozen=True)
class Size:
    agents: int = 64
    devices: int = 3000
    groups: int = 784
    members: int = 8
    acting: int = 8
    """Agents with a turn in one episode."""
    slice_groups: int = 8

    @property
    def samples_in_flight(self) -> int:
        """Rows of one open cohort."""
        return self.groups * self.members * self.acting


def team(size: Size, steps: int) -> ExperimentSpec:
    """Describe a run of this size."""
    names = [f"agent{i:02d}" for i in range(size.agents)]
    spec = ExperimentSpec.model_validate(
        {
            "agents": {name: {} for name in names[:ADMITTED_AGENTS]},
            "environment": {"type": "reference_game"},
            "batch": {
                "tasks_per_step": size.groups,
                "episodes_per_task": size.members,
                "micro_batch_groups": size.slice_groups,
                "rollout_groups": 8,
            },
            "budget": {"train_steps": steps},
            "evaluation": {"every_steps": steps + 1, "tasks": 1},
        }
    )
    if size.agents <= ADMITTED_AGENTS and size.devices == 2:
        return spec
    agent, policy = spec.agents[names[0]], spec.policies[names[0]]
    return spec.model_copy(
        update={
            "agents": dict.fromkeys(names, agent),
            "policies": dict.fromkeys(names, policy),
            "resources": spec.resources.model_copy(update={"rollout_devices": size.devices - 1}),
        }
    )


@dataclass
class Cluster:
    """Every worker of a run at once: answers a wave of commands with a wave of facts."""

    spec: ExperimentSpec
    size: Size
    lives: dict[int, str] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    next_lease: int = 1

    def answers(self, decisions: Sequence[Decision]) -> list[e.Event]:
        """Carry out what these decisions ask for."""
        void = {number for decision in decisions for number in decision.void}
        wave = [n for decision in decisions for n in decision.commands if n.no not in void]
        return [event for numbered in wave for event in self._answer(numbered.no, numbered.command)]

    def _answer(self, number: int, command: c.Command) -> Iterator[e.Event]:
        match command:
            case c.RequestDevices():
                yield self._grant(number, command)
            case c.HostLease(lease_id=lease_id, use=use):
                self.lives[lease_id] = f"life-{lease_id}"
                yield e.ChildReady(lease_id=lease_id, use=use, incarnation=self.lives[lease_id])
            case c.BindPolicy(lease_id=lease_id, policy=policy):
                version = command.version or 0
                yield e.PolicyBound(
                    lease_id=lease_id,
                    incarnation=self.lives[lease_id],
                    policy=policy,
                    version=version,
                    digest=self._digest(policy, version),
                )
            case c.LoadWeights(lease_id=lease_id, policy=policy, version=version, digest=digest):
                life = self.lives[lease_id]
                yield e.WeightsServed(
                    lease_id=lease_id,
                    incarnation=life,
                    policy=policy,
                    version=version,
                    digest=digest,
                    command_no=number,
                )
            case c.PlayGroups():
                for order in command.groups:
                    yield self._settled(number, command, order.draw)
            case c.Accumulate(policy=policy, micro_batch=no, accumulator=accumulator):
                stats = TrainStats(rows=8, tokens=64, z=64.0, loss_sum=1.0, entropy_sum=2.0, seconds=0.001)
                yield e.MicroBatchAccumulated(policy=policy, micro_batch=no, accumulator=accumulator, stats=stats)
            case c.OptimizerStep(policy=policy, next_version=version):
                yield e.StepCommitted(
                    policy=policy,
                    version=version,
                    parent=version - 1,
                    digest=self._digest(policy, version),
                    accumulator=command.accumulator,
                    grad_norm=0.5,
                    learning_rate=command.learning_rate,
                )
            case c.WriteCheckpoint(label=label, step=step):
                yield e.CheckpointWritten(label=label, step=step, versions={}, path="/x", bytes=1)

    def _digest(self, policy: str, version: int) -> str:
        return hashlib.sha256(f"{policy}:{version}".encode()).hexdigest()

    def _grant(self, number: int, command: c.RequestDevices) -> e.Event:
        leases = []
        for use, count in ((e.DeviceUse.TRAINER, command.trainers), (e.DeviceUse.ENGINE, command.engines)):
            for _ in range(count):
                device = f"node{self.next_lease // 8}.gpu{self.next_lease % 8}"
                leases.append(e.GrantedDevice(lease_id=self.next_lease, device_id=device, use=use))
                self.next_lease += 1
        return e.DevicesGranted(leases=tuple(leases), command_no=number)

    def _settled(self, number: int, command: c.PlayGroups, draw: int) -> e.Event:
        training = command.origin is Origin.TRAIN
        episodes = tuple(self._episode(draw, member) for member in range(self.size.members if training else 1))
        return e.GroupSettled(
            draw=draw,
            origin=command.origin,
            epoch=command.epoch,
            command_no=number,
            episodes=episodes,
            started_at=0.0,
            finished_at=1.0,
            versions={name: pin.version for name, pin in command.pins.items()},
        )

    def _episode(self, draw: int, member: int) -> EpisodeOutcome:
        score = (draw + member) % 3 / 2
        names = list(self.spec.agents)
        acting = [names[(draw * self.size.acting + i) % len(names)] for i in range(self.size.acting)]
        return EpisodeOutcome(
            member=member,
            attempt=1,
            status=EpisodeStatus.FINISHED,
            scores=dict.fromkeys(acting, score),
            team_score=score,
            solved=score == 1.0,
            samples=tuple(SampleRef(role=role, turn=0, tokens=8) for role in acting),
        )
