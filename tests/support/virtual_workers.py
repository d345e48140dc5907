"""Scripted workers on a virtual clock, before a real driver and a real PostgreSQL.

Each command takes as long as a simulated machine takes for it, and a group comes to what a simulation of the same run
made of it, as long after its command as there; one that never settled there plays until it is void. Children die when
they do there, and reports of demand come when they came there. Nobody waits: once the driver has decided on everything
that it knows, what ends next ends at once.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from threading import Event

import psycopg

from flexmarl.contracts import commands as c
from flexmarl.contracts.events import (
    DemandReported,
    DeviceUse,
    EngineSlept,
    EngineWoke,
    GroupSettled,
    PolicySuspended,
    TrainerVacated,
)
from flexmarl.contracts.wire import EpisodeOutcome, Origin, TrainStats
from flexmarl.simulator.cluster.hosting import RESTART_S
from flexmarl.simulator.scenarios.scenario import Scenario
from flexmarl.store.control import commands, demand, engines, inbox, leases
from flexmarl.store.data import groups, micro_batches, steps
from flexmarl.store.data.spans import Span
from flexmarl.store.errors import EpochStale, TokenLost
from tests.support.scripted_workers import FakeChild, Pushed, ScriptedWorkers, digest


@dataclass(frozen=True, slots=True)
class Story:
    """What a simulation of the same run came to."""

    settled: Mapping[tuple[Origin, int], tuple[float, GroupSettled]]
    """(origin, draw) -> how long after its command it settled, and what was made of it."""
    reports: tuple[tuple[float, DemandReported], ...] = ()
    """What engines were asked for, and when that was told."""


HELD_S = 600.0
LOOK_S = 0.002


class VirtualWorkers(ScriptedWorkers):
    def __init__(self, url: str, pushed: Pushed, played: Scenario, story: Story) -> None:
        super().__init__(url, pushed, played.spec, devices=played.devices)
        self._machine, self._story = played.machine, story
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[psycopg.Connection], None]]] = []
        self._asked = 0
        self._hosts = 0
        """Hosts that were begun and have not told yet when their child is ready."""
        self._suspended: dict[str, list[int]] = {}
        """Policy -> micro-batches in its accumulator."""
        self._places: dict[int, int] = {}
        """Lease -> place of the command that its child was asked for by."""
        self._working: set[int] = set()
        """Trainers that carry a command out."""
        self._losses = played.faults.children
        self._began = False

    def __enter__(self) -> "VirtualWorkers":
        for target in (self._conduct, self._heartbeat):
            self._spawn(target)
        return self

    def _conduct(self, conn: psycopg.Connection) -> None:
        """Begin with what is open; when the driver has nothing left to decide on, end what ends next."""
        while not self._stop.is_set():
            begun = self._begin_all(conn)
            undecided, deadline = self._standing(conn)
            if begun or self._hosts or undecided:
                self._stop.wait(LOOK_S)
            elif deadline < inf and deadline <= self._next_end():
                self.now = max(self.now, deadline + 1e-6)  # the database rounds to microseconds
                conn.execute("SELECT pg_notify(%s, '1')", [inbox.CHANNEL])
                self._stop.wait(LOOK_S)
            elif self._due:
                self.now, _, end = heappop(self._due)
                end(conn)

    def _standing(self, conn: psycopg.Connection) -> tuple[int, float]:
        """Count what the driver, or we, have to begin with, and tell when the core looks again if nothing happens.

        Both in one look: a deadline that has just been met is gone together with what it led to coming up.
        """
        row = conn.execute(
            """
            SELECT (SELECT count(*) FROM store.inbox WHERE run_id = 1)
              + (SELECT count(*) FROM store.command
                WHERE run_id = 1 AND status = 'open' AND NOT coalesce(lease_id, 0) = ANY(%s)),
              (SELECT extract(epoch FROM deadline)::float8 FROM store.run_state WHERE run_id = 1)
            """,
            [list(self._working)],
        ).fetchone()
        assert row is not None
        return row[0], inf if row[1] is None else row[1]

    def _next_end(self) -> float:
        return self._due[0][0] if self._due else inf

    def _decided(self, conn: psycopg.Connection) -> bool:
        """Tell whether the driver has decided on every fact, and nothing is left for it, or for us, to begin with."""
        open_ = "SELECT count(*) FROM store.command WHERE run_id = 1 AND status = 'open' AND NOT lease_id = ANY(%s)"
        both = f"SELECT ({open_}) + (SELECT count(*) FROM store.inbox WHERE run_id = 1)"
        return conn.execute(both, [list(self._working)]).fetchone() == (0,)

    def _begin_all(self, conn: psycopg.Connection) -> int:
        """Begin with every open command whose lane is free."""
        statement = """SELECT no, kind, lease_id FROM store.command
          WHERE run_id = 1 AND status = 'open' AND route <> 'driver' ORDER BY no"""
        begun = 0
        for no, kind, lease_id in conn.execute(statement).fetchall():
            free = kind == "host_lease" or lease_id not in self._working
            if free and (taken := commands.take(conn, 1, no, HELD_S)) is not None:
                self._begin(taken)
                begun += 1
        return begun

    def _begin(self, taken: commands.Taken) -> None:
        match taken.command:
            case c.HostLease() as command:
                self._begin_story()
                self._hosts += 1
                self._asked += 1
                self._places[command.lease_id] = self._asked
                self._spawn(self._host, taken)
            case c.PlayGroups() as command:
                self._play_all(taken, command)
            case command:
                child = self.children[command.lease_id]
                if child.hosting.use is DeviceUse.TRAINER:
                    self._working.add(child.lease_id)
                self._ends_after(self._seconds(command), lambda conn: self._ended(conn, taken, child))

    def _ends_after(self, seconds: float, end: Callable[[psycopg.Connection], None], place: int | None = None) -> None:
        """End something at its time; of what ends at one time, first what was asked for first."""
        self._asked += 1
        heappush(self._due, (self.now + seconds, place or self._asked, end))

    def _ended(self, conn: psycopg.Connection, taken: commands.Taken, child: FakeChild) -> None:
        self._working.discard(child.lease_id)
        self._carry_out(conn, taken, child)

    def _new_child(self, conn: psycopg.Connection, hosting: leases.LeaseHold) -> None:
        ready = Event()
        place = self._places.pop(hosting.lease_id, None)  # hosts begin at once, each in a thread of its own
        self._ends_after(self._machine.delays.start, lambda _: self._tell(conn, hosting, ready), place)
        self._hosts -= 1
        while not ready.wait(LOOK_S):
            if self._stop.is_set():
                return

    def _tell(self, conn: psycopg.Connection, hosting: leases.LeaseHold, ready: Event) -> None:
        super()._new_child(conn, hosting)
        ready.set()

    def _begin_story(self) -> None:
        """Let what comes by itself come, now that the run has devices."""
        if self._began:
            return
        self._began = True
        for loss in self._losses:
            self._ends_after(loss.at, lambda conn, device=loss.device: self._lose(conn, device))
        for number, (at, told) in enumerate(self._story.reports):
            self._ends_after(at, lambda conn, number=number, told=told: self._report(conn, number, told))

    def _lose(self, conn: psycopg.Connection, device: int) -> None:
        """Let the child on a device die, and start another one as late as a simulated host does."""
        lease_id = sorted(self.children)[device]
        child = self.children.pop(lease_id)
        self._working.discard(lease_id)
        leases.child_lost(conn, child.hosting, child.incarnation, "killed")
        again = super()._new_child
        self._ends_after(RESTART_S + self._machine.delays.start, lambda conn: again(conn, child.hosting))

    def _report(self, conn: psycopg.Connection, number: int, told: DemandReported) -> None:
        """Tell what engines are asked for, as they are called here: in the order in which they were granted."""
        here = sorted(x for x, child in self.children.items() if child.hosting.use is DeviceUse.ENGINE)
        if len(here) != len(told.engines):
            return  # the run has ended
        of = dict(zip(sorted(told.engines), here, strict=True))
        renamed = {
            name: {of[lease]: count for lease, count in getattr(told, name).items()}
            for name in ("engines", "queued", "cache")
        }
        demand.report(conn, 1, number, told.model_copy(update=renamed))

    # -- trainers and engines -----------------------------------------------------------------------------------------
    def _perform(self, conn: psycopg.Connection, taken: commands.Taken, child: FakeChild) -> str | None:
        seconds = self._seconds(taken.command)
        match taken.command:
            case c.SuspendPolicy() as command:
                self._suspended[command.policy] = child.trains.pop(command.policy)[1]
                suspended = PolicySuspended(
                    lease_id=child.lease_id, incarnation=child.incarnation, policy=command.policy, bytes=1,
                    accumulator=command.accumulator, ticket=f"{command.policy}-{taken.no}", command_no=taken.no,
                    seconds=seconds,
                )  # fmt: skip
                steps.commit_answer(conn, taken, child.lease_id, child.incarnation, suspended)
            case c.BindPolicy(policy=policy) as command:
                version = command.version or 0
                ids = self._suspended.pop(policy) if command.resume else []
                child.trains[policy] = (f"{version}:{child.incarnation}", ids)
                bind = steps.BoundState(
                    child.lease_id, child.incarnation, policy, version, digest(policy, version), "state",
                    command.version is None, b'{"a": 1}', facts={"parameters": 85_000.0}, resumed=bool(command.resume),
                    accumulator=command.accumulator, seconds=seconds,
                )  # fmt: skip
                steps.commit_bind(conn, taken, bind)
            case c.UnloadPolicy() as command:
                engines.unloaded(conn, taken, child.lease_id, child.incarnation, command.policy, seconds)
            case c.SleepEngine() | c.WakeEngine():
                about = {
                    "lease_id": child.lease_id, "incarnation": child.incarnation, "command_no": taken.no,
                    "seconds": seconds,
                }  # fmt: skip
                sleeps = isinstance(taken.command, c.SleepEngine)
                engines.turned(conn, taken, EngineSlept(**about, bytes=1) if sleeps else EngineWoke(**about))
            case c.VacateTrainer():
                vacated = TrainerVacated(lease_id=child.lease_id, incarnation=child.incarnation, command_no=taken.no)
                steps.commit_answer(conn, taken, child.lease_id, child.incarnation, vacated)
            case c.Accumulate(policy=policy) as command:
                rows = micro_batches.read(conn, 1, policy, command.micro_batch).rows
                child.trains[policy][1].append(command.micro_batch)
                tokens = sum(row.segments[1] for row in rows)
                stats = TrainStats(rows=len(rows), tokens=tokens, z=float(tokens), seconds=seconds)
                micro_batches.accumulated(
                    conn, taken, policy, command.micro_batch, accumulator=command.accumulator, stats=stats
                )
            case _:
                return super()._perform(conn, taken, child)
        return None

    def _seconds(self, command: c.Command) -> float:
        trainer = self._machine.trainer
        match command:
            case c.Accumulate():
                return trainer.micro_batch
            case c.OptimizerStep():
                return trainer.step
            case c.BindPolicy():
                return trainer.create if command.version is None else trainer.swap
            case c.SuspendPolicy():
                return trainer.swap
            case c.LoadWeights():
                return self._machine.engine.load
            case c.SleepEngine() | c.WakeEngine():
                return self._machine.engine.turn
        return 0.0

    # -- rollout workers ----------------------------------------------------------------------------------------------
    def _play_all(self, taken: commands.Taken, command: c.PlayGroups) -> None:
        """Let every group settle after as long as in the simulation; all begin at once."""
        left = len(command.groups)

        def settle(conn: psycopg.Connection, of: GroupSettled) -> None:
            nonlocal left
            left -= 1
            try:
                groups.put_groups(conn, taken, [self._rows(taken, command, of)])
                if not left:
                    commands.finish(conn, taken)
            except (TokenLost, EpochStale):
                return  # it is void

        for order in command.groups:
            if (found := self._story.settled.get((command.origin, order.draw))) is not None:
                seconds, of = found
                self._ends_after(seconds, lambda conn, of=of: settle(conn, of))

    def _rows(self, taken: commands.Taken, command: c.PlayGroups, of: GroupSettled) -> groups.SettledGroup:
        now, pins = time.time(), {name: pin.version for name, pin in command.pins.items()}
        rows = [
            groups.EpisodeRow(
                of.draw, one.member, one.attempt, command.origin, one.status, one.reason, dict(one.scores),
                one.team_score, one.solved, len(one.samples), sum(ref.tokens for ref in one.samples), pins,
                {"title": "t"}, [], now, now, command.cohort,
            )
            for one in of.episodes
        ]  # fmt: skip
        samples = [row for one in of.episodes for row in self._samples(of.draw, one, pins)]
        told = of.model_copy(
            update={"epoch": command.epoch, "command_no": taken.no, "started_at": now, "finished_at": now}
        )
        return groups.SettledGroup(told, rows, samples)

    def _samples(self, draw: int, one: EpisodeOutcome, pins: dict[str, int]) -> list[groups.SampleRow]:
        found = []
        for ref in one.samples:
            policy, count = self.spec.policy_of(ref.role), ref.tokens
            segments, zeros = [pins[policy], count], [-0.5] * count
            found.append(
                groups.SampleRow(
                    draw, one.member, one.attempt, ref.role, ref.turn, policy, pins[policy], segments, [1], [3] * count,
                    zeros, [], [Span(1, count, "stop")],
                )
            )  # fmt: skip
        return found
