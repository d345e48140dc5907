"""The real core over real trainer processes: groups settle by a plan, gradients and steps are real, times are paced.

No database and no rollout stand between: what the core decides goes over HTTP to the trainers, one command at a time
each, as a node's lanes send them, and what they answer comes back as the facts that the store would tell.
"""

import asyncio
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import msgspec
import numpy as np
from harness import ROOT

from flexmarl.contracts import commands as c
from flexmarl.contracts import events as e
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.wire import EpisodeOutcome, EpisodeStatus, SampleRef, TrainStats
from flexmarl.orchestrator import Orchestrator
from flexmarl.store.control.leases import ChildEndpoint
from workers.child import ChildConfig, ReadyLine
from workers.nodes.child_client import ChildClient
from workers.training import wire

Rows = Callable[[int, str], int]
"""(cohort, role) -> rows that each episode gives."""
TOKENS = 2
WORDS = 20


@dataclass
class Trainer:
    """A trainer process and the lane of its commands."""

    process: subprocess.Popen[bytes]
    client: ChildClient
    orders: asyncio.Queue[c.Command] = field(default_factory=asyncio.Queue)


class Cluster:
    """One run, from its start until it has made its steps."""

    def __init__(self, spec: ExperimentSpec, rows: Rows, rollout_s: float, home: Path) -> None:
        self.core = Orchestrator(spec)
        self.stepped: list[float] = []
        """When each cohort was done."""
        self.rulings: list[str] = []
        self._spec, self._rows, self._rollout_s, self._home = spec, rows, rollout_s, home
        self._facts: asyncio.Queue[e.Event] = asyncio.Queue()
        self._trainers: dict[int, Trainer] = {}
        self._cut: dict[tuple[str, int], int] = {}
        self._states: dict[tuple[str, int], wire.StepReply | wire.BindReply] = {}
        self._void: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._next_lease = 1

    def _now(self) -> float:
        return time.time()

    async def run(self, steps: int) -> None:
        """Play until so many steps are done."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
            self._session = session
            try:
                self._facts.put_nowait(e.RunVerb(verb=e.Verb.START))
                deadline: float | None = None
                while len(self.stepped) < steps:
                    deadline = await self._turn(deadline)
            finally:
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)
                for trainer in self._trainers.values():
                    assert trainer.process.stdin is not None
                    trainer.process.stdin.close()
                    await asyncio.to_thread(trainer.process.wait, 120)

    async def _turn(self, deadline: float | None) -> float | None:
        try:
            left = None if deadline is None else max(0.0, deadline - self._now())
            fact = await asyncio.wait_for(self._facts.get(), left)
        except TimeoutError:
            fact = e.TimerFired()
        before = self.core.state.step
        decision = self.core.handle(fact, self._now())
        self.stepped += [self._now()] * (self.core.state.step - before)
        self._void.update(decision.void)
        self.rulings += [f"{r.kind} {r.policy}: {r.reason}" for r in decision.rulings if r.kind.startswith("devices_")]
        for numbered in decision.commands:
            self._carry_out(numbered.no, numbered.command)
        if decision.status in ("failed", "completed"):
            raise RuntimeError(decision.reason_text)
        return decision.deadline

    def _carry_out(self, no: int, command: c.Command) -> None:
        match command:
            case c.RequestDevices():
                self._grant(no, command)
            case c.HostLease(lease_id=lease_id, use=e.DeviceUse.ENGINE):
                life = {"lease_id": lease_id, "use": e.DeviceUse.ENGINE, "incarnation": "engine"}
                self._facts.put_nowait(e.ChildReady(**life))
            case c.HostLease(lease_id=lease_id):
                self._begin(self._host(lease_id))
            case c.LoadWeights():
                told = command.model_dump(include={"lease_id", "policy", "version", "digest", "keeps"})
                self._facts.put_nowait(e.WeightsServed(**told, incarnation="engine", command_no=no))
            case c.PlayGroups():
                self._begin(self._play(no, command))
            case c.WriteCheckpoint(label=label, step=step):  # of the evaluation before the first step
                self._facts.put_nowait(e.CheckpointWritten(label=label, step=step, versions={}, path="", bytes=0))
            case c.KeepCheckpoints():
                pass
            case c.CutMicroBatch():
                self._cut[command.ref.policy, command.ref.no] = len(command.samples)
            case c.BindPolicy() | c.JoinGang() | c.SuspendPolicy() | c.Accumulate() | c.OptimizerStep():
                self._send(no, command)
            case other:
                raise RuntimeError(f"nobody carries out {other.kind}")

    def _send(self, no: int, command: c.Command) -> None:
        self._trainers[command.lease_id].orders.put_nowait((no, command))

    def _begin(self, work) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)

    def _grant(self, no: int, command: c.RequestDevices) -> None:
        leases = []
        for use, count in ((e.DeviceUse.ENGINE, command.engines), (e.DeviceUse.TRAINER, command.trainers)):
            for _ in range(count):
                device = f"box.{use}{self._next_lease}"
                leases.append(e.GrantedDevice(lease_id=self._next_lease, device_id=device, use=use))
                self._next_lease += 1
        self._facts.put_nowait(e.DevicesGranted(leases=tuple(leases), command_no=no))

    async def _host(self, lease_id: int) -> None:
        secret, life = secrets.token_hex(16), f"t{lease_id}.1.1"
        config = ChildConfig(
            use="trainer", run_id=1, lease_id=lease_id, fence=1, incarnation=life, device="cpu", threads=1,
            host="127.0.0.1", secret=secret, home=str(self._home), spec=self._spec.model_dump(mode="json"),
        )  # fmt: skip
        environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'platform'}", "PATH": "/usr/bin:/bin"}
        process = await asyncio.to_thread(
            subprocess.Popen, [sys.executable, "-m", "workers.training.serve"], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(msgspec.json.encode(config) + b"\n")
        process.stdin.flush()
        ready = msgspec.json.decode(await asyncio.to_thread(process.stdout.readline), type=ReadyLine)
        endpoint = ChildEndpoint(
            lease_id, 1, "", e.DeviceUse.TRAINER, life, f"http://127.0.0.1:{ready.port}", secret,
            f"127.0.0.1:{ready.rendezvous}",
        )  # fmt: skip
        trainer = self._trainers[lease_id] = Trainer(process, ChildClient(self._session, endpoint))
        self._begin(self._lane(trainer))
        self._facts.put_nowait(e.ChildReady(lease_id=lease_id, use=e.DeviceUse.TRAINER, incarnation=life))

    async def _play(self, no: int, command: c.PlayGroups) -> None:
        """Settle the groups of a command one after the other, spread over the time that rollout takes."""
        each = self._rollout_s / self._spec.batch.tasks_per_step
        first = command.groups[0].draw % self._spec.batch.tasks_per_step
        for place, group in enumerate(command.groups):
            await asyncio.sleep(each * (first + 1 if place == 0 else 1))
            now = self._now()
            self._facts.put_nowait(
                e.GroupSettled(
                    draw=group.draw, origin=command.origin, epoch=command.epoch, command_no=no, started_at=now,
                    finished_at=now, episodes=tuple(self._episode(m, command.cohort) for m in range(group.members)),
                    versions={name: pin.version for name, pin in command.pins.items()},
                )
            )  # fmt: skip

    def _episode(self, member: int, cohort: int) -> EpisodeOutcome:
        score = float(member % 2)
        samples = tuple(
            SampleRef(role=role, turn=turn, tokens=TOKENS, reward=score)
            for role in self._spec.agents
            for turn in range(self._rows(max(cohort, 0), role))
        )
        return EpisodeOutcome(
            member=member, attempt=1, status=EpisodeStatus.FINISHED, scores=dict.fromkeys(self._spec.agents, score),
            team_score=score, samples=samples,
        )  # fmt: skip

    async def _lane(self, trainer: Trainer) -> None:
        while True:
            no, command = await trainer.orders.get()
            if no in self._void:
                continue
            fact = await self._done(no, command, trainer.client)
            if no not in self._void:
                self._facts.put_nowait(fact)

    async def _done(self, no: int, command: c.Command, client: ChildClient) -> e.Event:
        common = {"lease_id": command.lease_id, "incarnation": client.child.incarnation, "policy": command.policy}
        match command:
            case c.BindPolicy():
                reply = await client.train("bind", self._bind(command), wire.BindReply)
                self._states[reply.policy, reply.version] = reply
                told = {"version": reply.version, "digest": reply.digest, "seconds": reply.seconds}
                return e.PolicyBound(**common, **told, created=reply.created, resumed=reply.resumed, bytes=reply.bytes)
            case c.JoinGang():
                await client.train("join", self._join(command), wire.JoinReply)
                return e.RankJoined(**common, meeting=command.meeting)
            case c.SuspendPolicy():
                request = wire.SuspendRequest(command.policy, command.accumulator, command.reach)
                left = await client.train("suspend", request, wire.SuspendReply)
                told = {"ticket": left.ticket, "bytes": left.bytes, "seconds": left.seconds, "command_no": no}
                return e.PolicySuspended(**common, **told, accumulator=command.accumulator)
            case c.Accumulate():
                rows = _rows(self._cut[command.policy, command.micro_batch], command.micro_batch)
                request = wire.AccumulateRequest(
                    command.policy, command.accumulator, command.micro_batch, command.entropy_coef, rows
                )  # fmt: skip
                done = await client.train("accumulate", request, wire.AccumulateReply)
                stats = TrainStats.model_validate(done.stats)
                told = command.model_dump(include={"policy", "micro_batch", "accumulator"})
                return e.MicroBatchAccumulated(**told, stats=stats)
            case c.OptimizerStep():
                return await self._step(command, client)
        raise RuntimeError(f"no trainer does {command.kind}")

    async def _step(self, command: c.OptimizerStep, client: ChildClient) -> e.Event:
        request = wire.StepRequest(
            command.policy, command.accumulator, list(command.micro_batches), command.next_version,
            command.learning_rate,
        )  # fmt: skip
        reply = await client.train("step", request, wire.StepReply)
        self._states[command.policy, reply.version] = reply
        return e.StepCommitted(
            policy=command.policy, version=reply.version, parent=reply.version - 1, digest=reply.digest,
            accumulator=command.accumulator, grad_norm=reply.grad_norm, learning_rate=command.learning_rate,
            seconds=reply.seconds,
        )  # fmt: skip

    def _bind(self, command: c.BindPolicy) -> wire.BindRequest:
        shared = {"gang": list(command.gang), "meeting": command.meeting}
        if command.version is None:
            return wire.BindRequest(command.policy, **shared)
        own, first = self._states[command.policy, command.version], self._states[command.policy, 0]
        return wire.BindRequest(
            command.policy, command.version, own.digest, own.state, references=[first.digest], resume=command.resume,
            accumulator=command.accumulator, **shared,
        )  # fmt: skip

    def _join(self, command: c.JoinGang) -> wire.JoinRequest:
        leader = self._trainers[command.gang[0]].client.child
        return wire.JoinRequest(
            policy=command.policy, rank=command.gang.index(command.lease_id), ranks=len(command.gang),
            meeting=command.meeting, leader=leader.rendezvous,
            key=wire.rendezvous_key(leader.secret, command.policy, command.meeting),
        )  # fmt: skip


def _rows(count: int, seed: int) -> list[wire.TrainRow]:
    rng = np.random.default_rng(seed)
    return [
        wire.TrainRow(
            prompt=rng.integers(1, WORDS, 3).astype("<i4").tobytes(),
            response=rng.integers(1, WORDS, TOKENS).astype("<i4").tobytes(),
            logprobs=np.full(TOKENS, -3.0, "<f4").tobytes(),
            allowed=b"",
            temperature=1.0,
            advantages=[float(rng.standard_normal())],
            weight=1.0,
        )
        for _ in range(count)
    ]
