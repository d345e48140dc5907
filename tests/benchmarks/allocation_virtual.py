"""The cluster of `allocation_cluster` under a virtual clock: trainers only take their time, and a trace is kept."""

import asyncio
import itertools
from dataclasses import dataclass
from pathlib import Path

from allocation_cluster import TOKENS, Cluster, Rows, Trainer
from allocation_losses import WORK, Trace

from flexmarl.contracts import commands as c
from flexmarl.contracts import events as e
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.wire import TrainStats
from flexmarl.store.control.leases import ChildEndpoint
from workers.nodes.child_client import ChildClient


@dataclass(frozen=True, slots=True)
class Durations:
    """What trainers take under a virtual clock, in seconds."""

    row: float
    step: float
    swap: float = 0.03
    """To suspend a policy, and to bind or bring one back."""
    form: float = 0.15
    """To form a gang, beside that."""
    hop: float = 0.01
    """From a decision to its command's beginning, and from its end to the next decision."""


class VirtualCluster(Cluster):
    """The same, with trainers that only take their time, under the clock of the event loop."""

    def __init__(self, spec: ExperimentSpec, rows: Rows, rollout_s: float, durations: Durations) -> None:
        super().__init__(spec, rows, rollout_s, Path())
        self._durations = durations
        self._lanes: dict[int, asyncio.Queue] = {}
        self._gangs: dict[str, tuple[int, ...]] = {}
        self.trace = Trace()
        self._in: set[tuple[str, int]] = set()
        """Micro-batches that are accumulated: asked for again, they cost nothing."""

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def run(self, steps: int) -> None:
        self._facts.put_nowait(e.RunVerb(verb=e.Verb.START))
        deadline: float | None = None
        while len(self.stepped) < steps:
            deadline = await self._turn(deadline)
            self.trace.stands(self._now(), self.core.state)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _host(self, lease_id: int) -> None:
        life = f"t{lease_id}.1.1"
        endpoint = ChildEndpoint(lease_id, 1, "", e.DeviceUse.TRAINER, life, "", "")
        trainer = self._trainers[lease_id] = Trainer(None, ChildClient(None, endpoint))
        self._begin(self._lane(trainer))
        self._facts.put_nowait(e.ChildReady(lease_id=lease_id, use=e.DeviceUse.TRAINER, incarnation=life))

    async def _lane(self, trainer: Trainer) -> None:
        """Carry out what has arrived; what it comes to is told a hop later, while the next is begun."""
        loop = asyncio.get_running_loop()
        while True:
            arrives, (no, command) = await trainer.orders.get()
            await asyncio.sleep(max(0.0, arrives - loop.time()))
            if no in self._void:
                continue
            began, seconds = loop.time(), self._takes(command)
            await asyncio.sleep(seconds)
            self._note(command, began)
            if no not in self._void:
                fact = self._fact(no, command, trainer.client, seconds)
                loop.call_later(self._durations.hop, self._facts.put_nowait, fact)

    def _note(self, command: c.Command, began: float) -> None:
        """Keep what a gang did since it began. A micro-batch that is withdrawn meanwhile is in all the same."""
        gang = self._gang_of(command)
        match command:
            case c.Accumulate():
                rows = self._cut[command.policy, command.micro_batch]
                useful, cause, less = rows * self._durations.row, WORK, "rows_do_not_divide"
                if (command.policy, command.micro_batch) in self._in:
                    useful = 0.0
                self._in.add((command.policy, command.micro_batch))
            case c.OptimizerStep():
                useful, cause, less = self._durations.step, WORK, "steps_of_gangs"
            case _:
                useful, cause, less = 0.0, "swaps", "swaps"
        self.trace.span(gang, began, self._now(), cause, useful, less)

    def _gang_of(self, command: c.Command) -> tuple[int, ...]:
        match command:
            case c.BindPolicy():
                return command.gang or (command.lease_id,)
            case c.JoinGang():
                return ()
        return self._gangs[command.policy]

    def _send(self, no: int, command: c.Command) -> None:
        arrives = asyncio.get_running_loop().time() + self._durations.hop
        self._trainers[command.lease_id].orders.put_nowait((arrives, (no, command)))

    def _fact(self, no: int, command: c.Command, client: ChildClient, seconds: float) -> e.Event:
        common = {"lease_id": command.lease_id, "incarnation": client.child.incarnation, "policy": command.policy}
        match command:
            case c.BindPolicy():
                self._gangs[command.policy] = self._gang_of(command)
                told = {"version": command.version or 0, "digest": command.digest or "0" * 64, "seconds": seconds}
                made = {"created": command.version is None, "resumed": bool(command.resume)}
                return e.PolicyBound(**common, **told, **made)
            case c.JoinGang():
                return e.RankJoined(**common, meeting=command.meeting)
            case c.SuspendPolicy():
                told = {"ticket": f"{command.policy}-{no}", "bytes": 1, "seconds": seconds, "command_no": no}
                return e.PolicySuspended(**common, **told, accumulator=command.accumulator)
            case c.Accumulate():
                told = command.model_dump(include={"policy", "micro_batch", "accumulator"})
                rows = self._cut[command.policy, command.micro_batch]
                tokens = rows * TOKENS
                stats = TrainStats(
                    rows=rows, tokens=tokens, z=tokens, loss_sum=0.0, entropy_sum=0.0, seconds=seconds
                )  # fmt: skip
                return e.MicroBatchAccumulated(**told, stats=stats)
        return e.StepCommitted(
            policy=command.policy, version=command.next_version, parent=command.next_version - 1, digest="0" * 64,
            accumulator=command.accumulator, learning_rate=command.learning_rate,
        )  # fmt: skip

    def _takes(self, command: c.Command) -> float:
        own = self._durations
        match command:
            case c.Accumulate():
                if (command.policy, command.micro_batch) in self._in:
                    return 0.0
                rows = self._cut[command.policy, command.micro_batch]
                return own.row * -(-rows // len(self._gangs[command.policy]))
            case c.OptimizerStep():
                return own.step
            case c.BindPolicy():
                return own.swap + (own.form if command.gang else 0.0)
            case c.JoinGang():
                return 0.0
        return own.swap


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock goes on to what is next as soon as nothing is left to do."""

    def __init__(self) -> None:
        super().__init__()
        self._virtual = 0.0

    def time(self) -> float:
        return self._virtual

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:
            self._virtual = max(self._virtual, self._scheduled[0]._when)
        super()._run_once()


def played(cluster: Cluster, steps: int) -> list[float]:
    """Return how long each step took, the first left out."""
    with asyncio.Runner(loop_factory=VirtualLoop if isinstance(cluster, VirtualCluster) else None) as runner:
        runner.run(cluster.run(steps))
    return [after - before for before, after in itertools.pairwise(cluster.stepped)]
