"""One configuration of the experience store under its benchmark: workers, and the decisions that keep them busy.

A round is a run: writers put its rows, decisions cut micro-batches of 256 rows per agent and order a step for every
four of them, readers read, note and apply. It ends when the last row is applied. While it goes on, the janitor retires
the rows of the round before, so as many rows leave as come. Afterwards the run's consistency report must hold.
"""

import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from harness import ROOT  # noqa: F401  (source roots)
from store_rows import AGENTS, BATCH, READERS, WRITERS, agents_of
from store_workers import DRAWS_PER_WRITER, MEMBERS, POLL_S, Worker, read, tidy, write

from flexmarl.contracts.commands import Accumulate, Command, CutMicroBatch, GroupOrder, OptimizerStep, PlayGroups
from flexmarl.contracts.decisions import NumberedCommand
from flexmarl.contracts.events import Event, GroupSettled, MicroBatchAccumulated, StepCommitted, event_adapter
from flexmarl.contracts.live import Progress
from flexmarl.contracts.status import RunReason, RunStatus
from flexmarl.contracts.wire import CutSample, MicroBatchRef, Origin, PolicyPin
from flexmarl.store.control import decisions, inbox, runs
from flexmarl.store.control.command_rows import IssuedCommand
from flexmarl.store.reads import report

MICRO_BATCHES_PER_STEP = 4
OWNER = "benchmark"
EXPECTED_LAG = 64


@dataclass
class Progression:
    """What the decisions of one round know."""

    leases: dict[str, int]
    rows: int
    seq: int = 0
    command: int = 0
    applied: int = 0
    members: dict[str, list[CutSample]] = field(default_factory=lambda: defaultdict(list))
    cut: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    accumulated: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    sizes: dict[tuple[str, int], int] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    stepping: dict[str, list[int]] = field(default_factory=dict)

    def follow(self, event: Event) -> list[Command]:
        """Decide what follows from an event."""
        if isinstance(event, GroupSettled):
            return self._settled(event)
        if isinstance(event, MicroBatchAccumulated):
            self.accumulated[event.policy].append(event.micro_batch)
            return self._step(event.policy)
        if isinstance(event, StepCommitted):
            self.applied += sum(self.sizes[(event.policy, no)] for no in self.stepping.pop(event.policy))
            self.versions[event.policy] = event.version
            return self._step(event.policy)
        return []

    def _settled(self, event: GroupSettled) -> list[Command]:
        for episode in event.episodes:
            for sample in episode.samples:
                self.members[sample.role].append(
                    CutSample(
                        draw=event.draw, member=episode.member, attempt=episode.attempt, role=sample.role,
                        turn=sample.turn, advantages=(0.5,),
                    )
                )  # fmt: skip
        return [command for agent in AGENTS if len(self.members[agent]) >= BATCH for command in self._cut(agent)]

    def _cut(self, agent: str) -> list[Command]:
        no, members = self.cut[agent], self.members[agent]
        self.cut[agent], self.members[agent], self.sizes[(agent, no)] = no + 1, members[BATCH:], BATCH
        ref = MicroBatchRef(policy=agent, no=no)
        lease = self.leases[agent]
        return [
            CutMicroBatch(ref=ref, cohort=0, samples=tuple(members[:BATCH])),
            Accumulate(
                lease_id=lease, policy=agent, micro_batch=no, accumulator=self._accumulator(agent), entropy_coef=0.0
            ),
        ]

    def _step(self, agent: str) -> list[Command]:
        """Step on four micro-batches, or on what is left at the end; one step of an agent at a time."""
        ready, last = self.accumulated[agent], self.rows // len(AGENTS) // BATCH
        done = self.versions[agent] * MICRO_BATCHES_PER_STEP
        if agent in self.stepping or not ready or len(ready) < min(MICRO_BATCHES_PER_STEP, last - done):
            return []
        now, self.accumulated[agent] = ready[:MICRO_BATCHES_PER_STEP], ready[MICRO_BATCHES_PER_STEP:]
        self.stepping[agent] = now
        version = self.versions[agent] + 1
        return [
            OptimizerStep(
                lease_id=self.leases[agent], policy=agent, accumulator=self._accumulator(agent),
                micro_batches=tuple(now), next_version=version, step=version, learning_rate=0.1,
            )
        ]  # fmt: skip

    def _accumulator(self, agent: str) -> str:
        return f"0:t{self.leases[agent]}"


class StoreSide:
    """The store in one configuration, its processes kept between rounds."""

    def __init__(self, url: str, folder: Path | None, first_run: int, *, volatile: bool = False) -> None:
        self.conn, self.ear = psycopg.connect(url, autocommit=True), psycopg.connect(url, autocommit=True)
        self.ear.execute(f"LISTEN {inbox.CHANNEL}")
        if volatile:
            self.conn.execute("SET synchronous_commit = off")
        self.writers = [Worker(write, url, volatile, folder, number) for number in range(WRITERS)]
        self.readers = [Worker(read, url, volatile, number) for number in range(READERS)]
        self.janitor = Worker(tidy, url, volatile, folder)
        self.run = first_run
        self.to_retire: int | None = None

    def stop(self) -> None:
        """End the processes."""
        for worker in (*self.writers, *self.readers, self.janitor):
            worker.stop()
        self.conn.close()
        self.ear.close()

    def round(self, rows: int) -> float:
        """Put, consume and apply rows, retiring those of the round before; returns rows per second."""
        run_id, progression, lease = self._begin(rows)
        for writer in self.writers:
            writer.ask("prepare", run_id, rows // WRITERS)
        expected = sum(writer.answer() for writer in self.writers)
        began = time.perf_counter()
        for number, reader in enumerate(self.readers):
            reader.ask(progression.leases[agents_of(number)[0]], rows)
        for writer in self.writers:
            writer.ask("put", run_id, rows // WRITERS)
        if self.to_retire is not None:
            self.janitor.ask(self.to_retire)
        self._decide(run_id, lease, progression)
        found = sum(reader.answer() for reader in self.readers)
        for writer in self.writers:
            writer.answer()
        if self.to_retire is not None:
            self.janitor.answer()
        seconds = time.perf_counter() - began
        self._end(run_id, lease, progression, whole=found == expected)
        self.to_retire = run_id
        return rows / seconds

    def _begin(self, rows: int) -> tuple[int, Progression, runs.RunLease]:
        self.run += 1
        conn, run_id = self.conn, self.run
        spec = {"mechanisms": {"lag_policy": {"bound": EXPECTED_LAG}}}
        runs.create_run(conn, run_id, spec, RunStatus.QUEUED)
        [lease] = [one for one in runs.claim_runs(conn, OWNER, 3600.0) if one.run_id == run_id]
        leases = {}
        for number in range(READERS):
            found = _lease(conn, run_id, f"bench.cpu{run_id}-{number}")
            leases |= dict.fromkeys(agents_of(number), found)
        conn.cursor().executemany(
            "INSERT INTO store.policy_version (run_id, policy, version, digest) VALUES (%s, %s, 0, '')",
            [(run_id, agent) for agent in AGENTS],
        )
        progression = Progression(leases, rows)
        groups = rows // WRITERS // (MEMBERS * len(AGENTS))
        pins = {agent: PolicyPin(version=0, digest="a" * 64) for agent in AGENTS}
        plays = [
            PlayGroups(
                pool="default", epoch=1, origin=Origin.TRAIN, pins=pins, sampling_seed=1, cohort=0,
                groups=tuple(GroupOrder(draw=writer * DRAWS_PER_WRITER + group, task_seed=0, members=MEMBERS)
                             for group in range(groups)),
            )
            for writer in range(WRITERS)
        ]  # fmt: skip
        self._append(run_id, lease, progression, plays, RunStatus.RUNNING)
        return run_id, progression, lease

    def _decide(self, run_id: int, lease: runs.RunLease, progression: Progression) -> None:
        while progression.applied < progression.rows:
            if not self._append(run_id, lease, progression, [], RunStatus.RUNNING):
                for _ in self.ear.notifies(timeout=POLL_S, stop_after=1):
                    pass

    def _append(
        self, run_id: int, lease: runs.RunLease, at: Progression, issue: list[PlayGroups], status: RunStatus
    ) -> int:
        """Handle up to 256 facts in one decision; returns how many there were."""
        with self.conn.transaction():
            now = time.time()
            waiting = inbox.heard(inbox.ask(self.conn, run_id, 0, (), 256)).facts
            taken = [(fact, event_adapter.validate_json(fact.body)) for fact in waiting]
            if not taken and not issue and status is RunStatus.RUNNING:
                return 0
            entries = [
                decisions.LogEntry(at.seq + 1 + index, now, event, fact.producer_key, fact.id)
                for index, (fact, event) in enumerate(taken)
            ]
            follow = [*issue, *(command for _, event in taken for command in at.follow(event))]
            at.seq += len(entries)
            issued = [
                IssuedCommand(at.seq, NumberedCommand(at.command + 1 + index, 1, command))
                for index, command in enumerate(follow)
            ]
            at.command += len(issued)
            episodes = at.rows // len(AGENTS)
            progress = Progress(episodes_proposed=episodes, episodes_finished=episodes)
            decision = decisions.StoredDecision(entries, status, RunReason.NONE, "", 1, 0, progress, None, issued)
            decisions.append(self.conn, lease, decision)
        for number, reader in enumerate(self.readers):
            if any(getattr(one, "policy", "") in agents_of(number) for one in follow):
                reader.wake()
        return len(taken)

    def _end(self, run_id: int, lease: runs.RunLease, at: Progression, *, whole: bool) -> None:
        """Close the run and hold it to its report."""
        if not whole:
            raise SystemExit(f"run {run_id}: what was read is not what was written")
        self.conn.execute("UPDATE store.lease SET state = 'ended' WHERE run_id = %s", [run_id])
        self._append(run_id, lease, at, [], RunStatus.COMPLETED)
        red = [check for check in report.consistency_report(self.conn, run_id) if not check.ok]
        if red:
            raise SystemExit(f"run {run_id} is not consistent: {red}")


def _lease(conn: psycopg.Connection, run_id: int, device: str) -> int:
    conn.execute("INSERT INTO store.node (name, address, incarnation) VALUES ('bench', '', '') ON CONFLICT DO NOTHING")
    conn.execute("INSERT INTO store.device (id, node, kind, ordinal) VALUES (%s, 'bench', 'cpu', 0)", [device])
    row = conn.execute(
        "INSERT INTO store.lease (device_id, run_id, use, fence) VALUES (%s, %s, 'trainer', 1) RETURNING id",
        [device, run_id],
    ).fetchone()
    assert row is not None
    conn.execute("UPDATE store.lease SET incarnation = 't' || id WHERE id = %s", [row[0]])
    return int(row[0])
