"""A driver and its workers, told step by step against a real store: for tests that need a certain moment."""

from dataclasses import dataclass, field
from typing import Literal

import psycopg

from flexmarl.contracts.commands import (
    Accumulate,
    BindPolicy,
    Command,
    CutMicroBatch,
    GroupOrder,
    HostLease,
    OptimizerStep,
    PlayGroups,
    RequestDevices,
)
from flexmarl.contracts.decisions import NumberedCommand
from flexmarl.contracts.events import DeviceUse, Event, GroupSettled
from flexmarl.contracts.live import Progress
from flexmarl.contracts.status import RunReason, RunStatus
from flexmarl.contracts.wire import (
    CutSample,
    EpisodeOutcome,
    EpisodeStatus,
    MicroBatchRef,
    Origin,
    PolicyPin,
    SampleRef,
    TrainStats,
)
from flexmarl.store.control import commands, decisions, inbox, leases, runs
from flexmarl.store.control.command_rows import IssuedCommand
from flexmarl.store.control.commands import Taken
from flexmarl.store.control.runs import RunLease
from flexmarl.store.data import groups, micro_batches, steps
from flexmarl.store.data.spans import Span

DIGEST = "a" * 64
TTL_S = 30.0


def digest(version: int) -> str:
    return f"{version:064x}"


@dataclass
class Story:
    """One run, one policy `solver` acted by the role `solver`, groups of two members with one turn each."""

    conn: psycopg.Connection
    run_id: int = 1
    owner: str = "driver-1"
    node: str = "box"
    members: int = 2
    status: RunStatus = RunStatus.RUNNING
    epoch: int = 1
    progress: Progress = field(default_factory=Progress)
    lease: RunLease | None = None
    handled: list[Event] = field(default_factory=list)
    _seq: int = 0
    _no: int = 0

    def start(self) -> "Story":
        runs.create_run(self.conn, self.run_id, {"name": "story"}, RunStatus.QUEUED)
        [self.lease] = [lease for lease in runs.claim_runs(self.conn, self.owner, TTL_S) if lease.run_id == self.run_id]
        return self

    def decide(self, *issued: Command, void: tuple[int, ...] = (), lease: RunLease | None = None) -> list[int]:
        """Handle what waits in the inbox and issue commands; returns their numbers."""
        holder = lease or self.lease
        assert holder is not None
        with self.conn.transaction():
            taken = inbox.take_events(self.conn, self.run_id)
            entries = [
                decisions.LogEntry(self._seq + 1 + i, 1000.0 + self._seq + i, one.event, one.producer_key)
                for i, one in enumerate(taken)
            ]
            numbered = [
                IssuedCommand(self._seq + len(entries), NumberedCommand(self._no + 1 + i, self.epoch, command))
                for i, command in enumerate(issued)
            ]
            decisions.append(
                self.conn,
                holder,
                decisions.StoredDecision(
                    entries, self.status, RunReason.NONE, "", self.epoch, 0, self.progress, None, numbered, void
                ),
            )
        self._seq += len(entries)
        self._no += len(numbered)
        self.handled += [one.event for one in taken]
        return [one.numbered.no for one in numbered]

    def issue(self, command: Command) -> int:
        return self.decide(command)[-1]

    def take(self, no: int, ttl_s: float = TTL_S) -> Taken:
        taken = commands.take(self.conn, self.run_id, no, ttl_s)
        assert taken is not None
        return taken

    def lapse(self, no: int) -> None:
        """Let a command's deadline pass without waiting for it."""
        self.conn.execute(
            "UPDATE store.command SET deadline = clock_timestamp() - interval '1 ms', next_send = clock_timestamp() "
            "WHERE run_id = %s AND no = %s",
            [self.run_id, no],
        )

    # Devices ---------------------------------------------------------------------------------------------------------

    def register(self, devices: int = 2) -> list[str]:
        facts = [leases.DeviceFacts(f"{self.node}.cpu{i}", "cpu", i) for i in range(devices)]
        leases.register_node(self.conn, leases.NodeFacts(self.node, "127.0.0.1:1", "life-1", "0"), facts)
        return [device.id for device in facts]

    def granted(self) -> dict[DeviceUse, int]:
        """Register two devices and lease them: use -> lease id."""
        devices = self.register()
        assert self.lease is not None
        no = self.issue(RequestDevices(pool="default", engines=1, trainers=1))
        wanted = list(zip(devices, (DeviceUse.ENGINE, DeviceUse.TRAINER), strict=True))
        granted = leases.grant(self.conn, self.lease, no, wanted)
        assert granted is not None
        return {one.use: one.lease_id for one in granted}

    def hosted(self, lease_id: int, use: DeviceUse, incarnation: str) -> tuple[Taken, leases.LeaseHold]:
        """Host a lease and publish a child."""
        device_id = f"{self.node}.cpu0" if use is DeviceUse.ENGINE else f"{self.node}.cpu1"
        taken = self.take(self.issue(HostLease(lease_id=lease_id, device_id=device_id, use=use)))
        hosting = leases.take_hosting(self.conn, taken, TTL_S)
        assert hosting is not None
        leases.child_ready(self.conn, hosting, incarnation, "http://127.0.0.1:9", "secret")
        return taken, hosting

    def trainer(self, incarnation: str = "t1.1.1") -> int:
        """Lease devices and bring a trainer up that holds version 0; returns its lease."""
        lease_id = self.granted()[DeviceUse.TRAINER]
        self.hosted(lease_id, DeviceUse.TRAINER, incarnation)
        self.bind(lease_id, incarnation, None)
        return lease_id

    def bind(self, lease_id: int, incarnation: str, version: int | None) -> None:
        taken = self.take(self.issue(BindPolicy(lease_id=lease_id, policy="solver", version=version)))
        number = version or 0
        made = steps.BoundState(
            lease_id, incarnation, "solver", number, digest(number), f"state-{number}", version is None, b'{"a": 1}'
        )
        steps.commit_bind(self.conn, taken, made)

    # Groups and training ---------------------------------------------------------------------------------------------

    def play(self, *draws: int, version: int = 0) -> int:
        orders = tuple(GroupOrder(draw=draw, task_seed=draw, members=self.members) for draw in draws)
        pins = {"solver": PolicyPin(version=version, digest=digest(version))}
        command = PlayGroups(
            pool="default", epoch=self.epoch, origin=Origin.TRAIN, groups=orders, pins=pins, sampling_seed=1, cohort=0
        )
        return self.issue(command)

    def group(self, draw: int, taken: Taken, version: int = 0) -> groups.SettledGroup:
        """Make the rows of a finished group; the attempt tells which taker played it."""
        attempt = taken.takes
        outcomes = tuple(
            EpisodeOutcome(
                member=member, attempt=attempt, status=EpisodeStatus.FINISHED, scores={"solver": float(member)},
                team_score=float(member), solved=member == 1, samples=(SampleRef(role="solver", turn=0, tokens=3),),
            )
            for member in range(self.members)
        )  # fmt: skip
        event = GroupSettled(
            draw=draw, origin=Origin.TRAIN, epoch=self.epoch, command_no=taken.no, episodes=outcomes, started_at=1.0,
            finished_at=2.0, versions={"solver": version},
        )  # fmt: skip
        episodes = [
            groups.EpisodeRow(
                draw, one.member, attempt, Origin.TRAIN, one.status, "", one.scores, one.team_score, one.solved, 1, 3,
                {"solver": version}, {"title": f"task {draw}"}, [["solver", 0]], 1.0, 2.0, 0,
                said=["square big small"], breaks={"shortened": [("solver", 0)]} if draw == 1 else {},
            )
            for one in outcomes
        ]  # fmt: skip
        samples = [
            groups.SampleRow(
                draw, one.member, attempt, "solver", 0, "solver", version, [version, 3], [1, 10 * draw, one.member],
                [4, 5, 6], [-0.5, -0.25, -0.125], [4, 5, 6, 7], [Span(3, 3, "stop")],
            )
            for one in outcomes
        ]  # fmt: skip
        return groups.SettledGroup(event, episodes, samples)

    def settle(self, *draws: int, version: int = 0) -> None:
        taken = self.take(self.play(*draws, version=version))
        groups.put_groups(self.conn, taken, [self.group(draw, taken, version) for draw in draws])
        commands.finish(self.conn, taken)

    def cut(self, no: int, *draws: int, attempt: int = 1, replayed: Literal[True] | None = None) -> None:
        members = tuple(
            CutSample(draw=draw, member=member, attempt=attempt, role="solver", turn=0, advantages=(member - 0.5,))
            for draw in draws
            for member in range(self.members)
        )
        ref = MicroBatchRef(policy="solver", no=no)
        self.issue(CutMicroBatch(ref=ref, cohort=0, samples=members, replayed=replayed))

    def accumulate(self, lease_id: int, no: int, accumulator: str) -> None:
        command = Accumulate(
            lease_id=lease_id, policy="solver", micro_batch=no, accumulator=accumulator, entropy_coef=0.0
        )
        taken = self.take(self.issue(command))
        micro_batches.accumulated(
            self.conn, taken, "solver", no, accumulator=accumulator, stats=TrainStats(rows=2, z=6.0)
        )

    def take_step(self, lease_id: int, accumulator: str, numbers: tuple[int, ...], version: int) -> Taken:
        command = OptimizerStep(
            lease_id=lease_id, policy="solver", accumulator=accumulator, micro_batches=numbers, next_version=version,
            step=version, learning_rate=0.1,
        )  # fmt: skip
        return self.take(self.issue(command))

    def step_of(self, lease_id: int, accumulator: str, numbers: tuple[int, ...], version: int) -> steps.StepRow:
        state = f"state-{version}"
        return steps.StepRow(
            lease_id, "solver", accumulator, numbers, version, digest(version), state, False, 0.5, 0.1, 0.01
        )

    def step(self, lease_id: int, accumulator: str, numbers: tuple[int, ...], version: int) -> None:
        taken = self.take_step(lease_id, accumulator, numbers, version)
        steps.commit_step(self.conn, taken, self.step_of(lease_id, accumulator, numbers, version))

    # Looking ---------------------------------------------------------------------------------------------------------

    def count(self, table: str) -> int:
        row = self.conn.execute(f"SELECT count(*) FROM store.{table} WHERE run_id = {self.run_id}".encode()).fetchone()
        assert row is not None
        return int(row[0])

    def kinds(self) -> list[str]:
        """Handle what waits and return the kinds of all handled events."""
        self.decide()
        return [event.kind for event in self.handled]
