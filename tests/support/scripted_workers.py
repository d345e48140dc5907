"""Workers without models: they take commands through the store and answer as the real ones do, in threads.

Pushes reach them through an in-memory `Pushes`; forgetting them is losing the broker. Trainer and engine children are
dictionaries that keep the refusals of the real ones.
"""

import hashlib
import queue
import threading
import time
import uuid
from dataclasses import dataclass, field

import psycopg

from flexmarl.contracts import commands as c
from flexmarl.contracts.events import DeviceUse, GroupSettled
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.wire import EpisodeOutcome, EpisodeStatus, SampleRef, TrainStats
from flexmarl.controlplane.runs.driver.pushing import BrokerPush, NodePush
from flexmarl.store.control import commands, engines, leases, node_beats
from flexmarl.store.data import checkpoints, groups, micro_batches, ready_commands, steps
from flexmarl.store.data.spans import Span
from flexmarl.store.errors import EpochStale, LeaseLost, Refused, TokenLost

NODE_TTL_S = 3.0


def digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


class Pushed:
    """Where the driver's pushes land. `lost` makes them vanish."""

    def __init__(self) -> None:
        self.broker: queue.Queue[BrokerPush] = queue.Queue()
        self.nodes: queue.Queue[NodePush] = queue.Queue()
        self.lost = False
        self.count = 0
        self.held = 0
        """How often rollout workers were told to look at what is held."""

    def to_broker(self, push: BrokerPush) -> None:
        self.count += 1
        if not self.lost:
            self.broker.put(push)

    def to_node(self, push: NodePush) -> None:
        self.count += 1
        if not self.lost:
            self.nodes.put(push)

    def to_players(self, pool: str) -> None:
        self.held += 1

    def flush_all(self) -> None:
        """Lose whatever waits, as FLUSHALL does."""
        for waiting in (self.broker, self.nodes):
            with waiting.mutex:
                waiting.queue.clear()


@dataclass
class FakeChild:
    lease_id: int
    incarnation: str
    hosting: leases.LeaseHold
    holds: dict[str, int] = field(default_factory=dict)
    trains: dict[str, tuple[str, list[int]]] = field(default_factory=dict)


class ScriptedWorkers:
    """A node with devices, a device worker, node lanes and rollout workers."""

    def __init__(self, url: str, pushed: Pushed, spec: ExperimentSpec, devices: int = 2) -> None:
        self.url, self.pushed, self.spec = url, pushed, spec
        self.children: dict[int, FakeChild] = {}
        self.errors: list[BaseException] = []
        self.silent_hosts = False
        self._lanes: dict[int, threading.Lock] = {}
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        with psycopg.connect(url, autocommit=True) as conn:
            facts = [leases.DeviceFacts(f"box.cpu{i}", "cpu", i) for i in range(devices)]
            leases.register_node(conn, leases.NodeFacts("box", "127.0.0.1:1", "life-1", "0"), facts)

    def __enter__(self) -> "ScriptedWorkers":
        for target in (self._broker_loop, self._broker_loop, self._broker_loop, self._node_loop, self._heartbeat):
            self._spawn(target)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
        if self.errors:
            raise self.errors[0]

    def _spawn(self, target, *args) -> None:
        def guarded() -> None:
            try:
                with psycopg.connect(self.url, autocommit=True) as conn:
                    target(conn, *args)
            except BaseException as error:  # the test that owns these threads raises it at the end
                self.errors.append(error)

        thread = threading.Thread(target=guarded, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _heartbeat(self, conn: psycopg.Connection) -> None:
        while not self._stop.wait(1.0):
            node_beats.beat(conn, "box", "life-1")

    # -- device worker ----------------------------------------------------------------------------------------------
    def _broker_loop(self, conn: psycopg.Connection) -> None:
        while not self._stop.is_set():
            try:
                push = self.pushed.broker.get(timeout=0.05)
            except queue.Empty:
                continue
            ready = ready_commands.take(conn, push.run_id, push.no, NODE_TTL_S)
            if ready is None:
                continue
            if isinstance(ready.taken.command, c.HostLease):
                self._spawn(self._host, ready.taken)
            else:
                self._play(conn, ready)

    def _host(self, conn: psycopg.Connection, taken: commands.Taken) -> None:
        hosting = leases.take_hosting(conn, taken, NODE_TTL_S)
        if hosting is None or hosting.releasing:
            if hosting is not None:
                leases.end(conn, taken, hosting, "released")
            return
        self._new_child(conn, hosting)
        while not self._stop.wait(0.1):
            if self.silent_hosts:
                continue
            renewal = leases.renew(conn, hosting, NODE_TTL_S)
            if not renewal.held:
                return
            if renewal.releasing:
                self.children.pop(hosting.lease_id, None)
                leases.end(conn, taken, hosting, "released")
                return

    def _new_child(self, conn: psycopg.Connection, hosting: leases.LeaseHold) -> None:
        child = FakeChild(hosting.lease_id, uuid.uuid4().hex[:12], hosting)
        self.children[hosting.lease_id] = child
        leases.child_ready(conn, hosting, child.incarnation, "http://127.0.0.1:9", "secret")

    def kill_child(self, use: DeviceUse) -> None:
        """Let the child of a use die; its device worker starts the next one."""
        child = next(x for x in self.children.values() if x.hosting.use is use)
        del self.children[child.lease_id]
        with psycopg.connect(self.url, autocommit=True) as conn:
            leases.child_lost(conn, child.hosting, child.incarnation, "killed")
            self._new_child(conn, child.hosting)

    # -- node lanes -------------------------------------------------------------------------------------------------
    def _node_loop(self, conn: psycopg.Connection) -> None:
        while not self._stop.is_set():
            try:
                push = self.pushed.nodes.get(timeout=0.05)
            except queue.Empty:
                continue
            while (taken := self._next(conn, push.lease_id)) is not None:
                self._carry_out(conn, *taken)

    def _next(self, conn: psycopg.Connection, lease_id: int) -> tuple[commands.Taken, FakeChild] | None:
        """Take a command for the child that lives now: its predecessor would be refused for ever."""
        child = self.children.get(lease_id)
        found = None if child is None else ready_commands.take_next(conn, lease_id, NODE_TTL_S)
        return None if found is None else (found.taken, child)

    def _carry_out(self, conn: psycopg.Connection, taken: commands.Taken, child: FakeChild) -> None:
        try:
            refusal = self._perform(conn, taken, child)
            if refusal:
                commands.fail(conn, taken, refusal, "the child's state differs", retryable=True)
        except (TokenLost, EpochStale):
            return
        except LeaseLost:
            commands.reopen(conn, taken)
        except Refused as refused:
            commands.fail(conn, taken, refused.code, str(refused), retryable=False)

    def _perform(self, conn: psycopg.Connection, taken: commands.Taken, child: FakeChild) -> str | None:
        match taken.command:
            case c.BindPolicy(policy=policy) as command:
                version = command.version or 0
                child.trains[policy] = (f"{version}:{child.incarnation}", [])
                bind = steps.BoundState(
                    child.lease_id, child.incarnation, policy, version, digest(policy, version), "state",
                    command.version is None, b'{"a": 1}', facts={"parameters": 85_000.0},
                )  # fmt: skip
                steps.commit_bind(conn, taken, bind)
            case c.Accumulate(policy=policy) as command:
                accumulator, ids = child.trains.get(policy, ("", []))
                if accumulator != command.accumulator:
                    return "other_accumulator"
                rows = micro_batches.read(conn, taken.run_id, policy, command.micro_batch).rows
                if command.micro_batch not in ids:
                    ids.append(command.micro_batch)
                stats = TrainStats(rows=len(rows), tokens=2 * len(rows), z=2.0 * len(rows), seconds=0.001)
                micro_batches.accumulated(
                    conn, taken, policy, command.micro_batch, accumulator=command.accumulator, stats=stats
                )
            case c.OptimizerStep() as command:
                return self._step(conn, taken, command, child)
            case c.LoadWeights(policy=policy, version=version) as command:
                child.holds[policy] = max(version, child.holds.get(policy, -1))
                engines.served(
                    conn, taken, child.lease_id, child.incarnation,
                    policy=policy, version=version, digest=command.digest, keeps=command.keeps,
                )  # fmt: skip
            case c.WriteCheckpoint() as command:
                versions = {name: pin.version for name, pin in command.pins.items()}
                row = checkpoints.CheckpointRow(command.label, command.step, versions, "/tmp/checkpoint", 1)
                checkpoints.written(conn, taken, row)
        return None

    def _step(
        self, conn: psycopg.Connection, taken: commands.Taken, command: c.OptimizerStep, child: FakeChild
    ) -> str | None:
        accumulator, ids = child.trains.get(command.policy, ("", []))
        if accumulator != command.accumulator or sorted(ids) != sorted(command.micro_batches):
            return "state"
        step = steps.StepRow(
            child.lease_id, command.policy, command.accumulator, command.micro_batches, command.next_version,
            digest(command.policy, command.next_version), "state", False, 0.5, command.learning_rate, 0.001,
        )  # fmt: skip
        steps.commit_step(conn, taken, step)
        child.trains[command.policy] = (f"{command.next_version}:{child.incarnation}", [])
        return None

    # -- rollout worker ---------------------------------------------------------------------------------------------
    def _play(self, conn: psycopg.Connection, ready: ready_commands.ReadyPlay) -> None:
        taken, command = ready.taken, ready.taken.command
        assert isinstance(command, c.PlayGroups)
        try:
            for order in command.groups:
                if order.draw not in ready.settled:
                    groups.put_groups(conn, taken, [self._settled(taken, command, order)])
            commands.finish(conn, taken)
        except (TokenLost, EpochStale):
            return

    def _settled(self, taken: commands.Taken, command: c.PlayGroups, order: c.GroupOrder) -> groups.SettledGroup:
        now = time.time()
        episodes, rows, samples = [], [], []
        for member in range(order.members):
            score = (order.draw + member) % 3 / 2
            refs = tuple(SampleRef(role=role, turn=0, tokens=2, reward=0.0) for role in self.spec.agents)
            episodes.append(
                EpisodeOutcome(
                    member=member, attempt=1, status=EpisodeStatus.FINISHED, team_score=score, solved=score == 1.0,
                    scores=dict.fromkeys(self.spec.agents, score), samples=refs,
                )
            )  # fmt: skip
            pins = {name: pin.version for name, pin in command.pins.items()}
            rows.append(
                groups.EpisodeRow(
                    order.draw, member, 1, command.origin, EpisodeStatus.FINISHED, "", episodes[-1].scores, score,
                    score == 1.0, len(refs), 2 * len(refs), pins, {"title": "t"}, [], now, now, command.cohort,
                )
            )  # fmt: skip
            for role in self.spec.agents:
                policy = self.spec.policy_of(role)
                samples.append(
                    groups.SampleRow(
                        order.draw, member, 1, role, 0, policy, pins[policy], [pins[policy], 2], [1, 2], [3, 4],
                        [-0.5, -0.5], [], [Span(2, 2, "stop")],
                    )
                )  # fmt: skip
        versions = {name: pin.version for name, pin in command.pins.items()}
        event = GroupSettled(
            draw=order.draw, origin=command.origin, epoch=command.epoch, command_no=taken.no,
            episodes=tuple(episodes), started_at=now, finished_at=now, versions=versions,
        )  # fmt: skip
        return groups.SettledGroup(event, rows, samples)
