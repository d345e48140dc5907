"""One run in this driver's hands: its core, where its log stands, and the three verbs of a turn.

Invariants: what `turn` decides is committed with the facts it was decided on, or not at all; whenever a commit fails
or the core raises, the state in memory is thrown away and rebuilt from the store (snapshot and tail). `now` is the
database's clock, never going back, in whole microseconds, so that a replay hands the core the same numbers. Whatever
reaches the core is in the log, also that the driver gives a run up: the log alone leads to the state and the commands.
"""

import time
from collections.abc import Collection
from dataclasses import dataclass

import structlog
import zstandard
from psycopg import Connection

from flexmarl.contracts.events import Event, RunGivenUp, RunVerb, TimerFired
from flexmarl.contracts.spec.experiment import ExperimentSpec
from flexmarl.contracts.status import TERMINAL, RunStatus
from flexmarl.controlplane.runs.driver import reconciling
from flexmarl.orchestrator import Decision, Orchestrator
from flexmarl.orchestrator.types import AttemptBegan, AttemptEnded
from flexmarl.store import decisions, inbox, runs, standing
from flexmarl.store.attempts import BegunAttempt, EndedAttempt, VerbOutcome
from flexmarl.store.decisions import IssuedCommand, LogEntry, MetricPoint, NoteLine, RulingLine, StoredDecision
from flexmarl.store.runs import RunLease, StoredRun

log = structlog.get_logger(__name__)

BATCH = 256
"""Facts handled and committed together at most."""
SNAPSHOT_EVENTS = 10_000
SNAPSHOT_WORK_S = 0.3
"""A tail that took so long to decide is replayed in about that time, whatever the size of the run."""
SNAPSHOT_S = 30.0


class CoreRaised(Exception):
    """The core raised on a fact; nothing of the turn was committed."""

    def __init__(self, key: str, event: Event, cause: Exception) -> None:
        super().__init__(f"{type(cause).__name__}: {cause}")
        self.key, self.event = key, event


@dataclass(frozen=True, slots=True)
class Turn:
    """What a committed turn means for the rest of the driver."""

    events: int
    issued: int
    status: RunStatus
    moved: bool
    """The status is another than before."""


class RunSession:
    """Holds a run's core under a lease. Single-threaded."""

    def __init__(self, lease: RunLease, core: Orchestrator, seq: int, snapshot_seq: int, at: float) -> None:
        self.lease = lease
        self.core = core
        self.seq = seq
        self.deadline: float | None = None
        self.differences: list[str] = []
        """Where the run's rows differ from its log; the driver gives such a run up."""
        self._snapshot_seq = snapshot_seq
        self._snapshot_at = at
        self._unsaved_s = 0.0
        self._text = ""
        self._clock = at - time.monotonic()
        self._log = log.bind(run_id=lease.run_id)

    @classmethod
    def load(cls, conn: Connection, lease: RunLease) -> "RunSession":
        """Rebuild a run's core from its snapshot and the log behind it. Raises what a broken state raises."""
        with conn.transaction():
            conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            stored = runs.load_run(conn, lease.run_id)
            tail = runs.events_after(conn, lease.run_id, stored.snapshot_seq)
            rows = standing.read(conn, lease.run_id)
            now = runs.database_now(conn)
            core = _restored(stored)
            began = time.perf_counter()
            for entry in tail:
                core.handle(entry.event, entry.at)
            differences = reconciling.differences(conn, stored, tail, core.state, rows)
        session = cls(lease, core, stored.seq, stored.snapshot_seq, now)
        session.deadline = stored.deadline
        session.differences = differences
        session._text = stored.reason_text
        session._unsaved_s = time.perf_counter() - began
        if stored.status in TERMINAL and core.state.status not in TERMINAL:
            # Given up by a driver that did not log it: the core learns it here, and the next decision is kept whole.
            core.handle(RunGivenUp(cause="orchestrator_error", text=stored.reason_text), now)
            session._snapshot_at = 0.0
        log.info("run_loaded", run_id=lease.run_id, seq=stored.seq, replayed=len(tail), fence=lease.fence)
        return session

    def turn(self, conn: Connection, poisoned: Collection[str] = ()) -> Turn | None:
        """Take a batch of facts, decide, commit. None when there is nothing to do.

        Raises CoreRaised when the core raises; then and on any other error this object is of no use any more. A fact
        whose key is among the `poisoned` ends the run instead of reaching the core.
        """
        with conn.transaction():
            now = self._now(conn)
            entries = self._taken(conn, now, poisoned)
            if self.deadline is not None and now >= self.deadline:
                timer = _in_place_of(TimerFired()) if "" in poisoned else TimerFired()
                entries.append(LogEntry(self.seq + len(entries) + 1, now, timer))
            return self._commit(conn, entries, now) if entries else None

    def _taken(self, conn: Connection, now: float, poisoned: Collection[str]) -> list[LogEntry]:
        """Take facts: straight to the log, unless one of them is to be replaced there."""
        run_id = self.lease.run_id
        if not poisoned:
            moved = inbox.move_to_log(conn, run_id, self.seq, now, BATCH)
            return [LogEntry(self.seq + i, now, fact.event, fact.producer_key, True) for i, fact in enumerate(moved, 1)]
        facts = [(fact.producer_key, fact.event) for fact in inbox.take_events(conn, run_id, BATCH)]
        return [
            LogEntry(self.seq + i, now, _in_place_of(event) if key in poisoned else event, key)
            for i, (key, event) in enumerate(facts, 1)
        ]

    def _now(self, conn: Connection) -> float:
        """Return the time of what is decided next: the database's, unless its clock went back."""
        database = runs.database_now(conn)
        self._clock = database - time.monotonic()
        return round(max(self.core.state.now, database), 6)

    def _commit(self, conn: Connection, entries: list[LogEntry], now: float) -> Turn:
        before = self.core.state.status
        began = time.perf_counter()
        decided = [self._one(entry.producer_key, entry.event, now) for entry in entries]
        self._unsaved_s += time.perf_counter() - began
        stored = self._stored(entries, decided, now)
        decisions.append(conn, self.lease, stored)
        self._committed(stored, now)
        status = self.core.state.status
        return Turn(len(entries), sum(len(d.commands) for d in decided), status, status is not before)

    def rest_s(self) -> float | None:
        """Return how long there is until the core's deadline, by the database's clock; None without one."""
        return None if self.deadline is None else max(0.0, self.deadline - self._clock - time.monotonic())

    def _one(self, key: str, event: Event, now: float) -> Decision:
        try:
            return self.core.handle(event, now)
        except Exception as error:  # a fault of the core must end one run, not the driver of all
            self._log.exception("core_raised", event_kind=event.kind, producer_key=key)
            raise CoreRaised(key, event, error) from error

    def _stored(self, entries: list[LogEntry], decided: list[Decision], now: float) -> StoredDecision:
        last = decided[-1]
        pairs = list(zip(entries, decided, strict=True))
        snapshot = last.status in TERMINAL or self._snapshot_due(entries[-1].seq, now)
        return StoredDecision(
            entries=entries,
            status=last.status,
            reason=last.reason,
            reason_text=last.reason_text,
            epoch=last.epoch,
            step=last.step,
            progress=self.core.progress(),
            deadline=last.deadline,
            commands=[
                IssuedCommand(c.no, e.seq, c.epoch, c.command, _cause(e.event), c.reason)
                for e, d in pairs
                for c in d.commands
            ],
            void=[number for d in decided for number in d.void],
            metrics=[
                MetricPoint(m.name, m.step, m.value, e.at, m.agent, m.stat, m.samples)
                for e, d in pairs
                for m in d.metrics
            ],
            notes=[
                NoteLine(e.seq, n.level.value, n.text, e.at, n.actor, n.target, n.cause)
                for e, d in pairs
                for n in d.notes
            ],
            rulings=[
                RulingLine(e.seq, r.kind.value, r.reason, e.at, r.policy, r.cohort, r.target, r.rows, r.cause)
                for e, d in pairs
                for r in d.rulings
            ],
            attempts=[_attempt(change, e.at) for e, d in pairs for change in d.attempts],
            outcomes=[
                VerbOutcome(o.operation, o.succeeded, o.status, o.text, e.at) for e, d in pairs for o in d.outcomes
            ],
            snapshot=zstandard.compress(self.core.snapshot()) if snapshot else None,
        )

    def _snapshot_due(self, seq: int, now: float) -> bool:
        return (
            seq - self._snapshot_seq >= SNAPSHOT_EVENTS
            or self._unsaved_s >= SNAPSHOT_WORK_S
            or now - self._snapshot_at >= SNAPSHOT_S
        )

    def _committed(self, stored: StoredDecision, now: float) -> None:
        self.seq = stored.entries[-1].seq
        self.deadline = stored.deadline
        self._text = stored.reason_text
        if stored.snapshot is not None:
            self._snapshot_seq, self._snapshot_at, self._unsaved_s = self.seq, now, 0.0
        for note in stored.notes:
            self._log.info(
                "note", seq=note.seq, level_for_people=note.level, text=note.text, actor=note.actor, cause=note.cause
            )
        caused = [(issued.no, issued.command.kind, issued.cause) for issued in stored.commands if issued.cause]
        for number, kind, cause in caused:
            self._log.info("command_issued", no=number, kind=kind, cause=cause)

    def explain(self, conn: Connection, text: str) -> bool:
        """Say in words what a queued run waits for. No decision: the core and its log know nothing of it."""
        state = self.core.state
        if state.status not in (RunStatus.QUEUED, RunStatus.RESUMING) or text == self._text:
            return False
        stored = StoredDecision(
            entries=(),
            status=state.status,
            reason=state.reason,
            reason_text=text,
            epoch=state.epoch,
            step=state.step,
            progress=self.core.progress().model_copy(update={"waiting_for": text}),
            deadline=self.deadline,
        )
        decisions.append(conn, self.lease, stored)
        self._text = text
        return True


def _restored(stored: StoredRun) -> Orchestrator:
    spec = ExperimentSpec.model_validate(stored.spec)
    if stored.snapshot is None:
        return Orchestrator(spec)
    return Orchestrator.restore(spec, zstandard.decompress(stored.snapshot))


def _in_place_of(event: Event) -> RunGivenUp:
    """Return what is logged instead of a fact on which the core raises."""
    text = f"the orchestrator cannot handle {event.kind}; report the log of this run's driver"
    return RunGivenUp(cause="orchestrator_error", text=text, fact=event.model_dump_json())


def _cause(event: Event) -> str:
    return event.cause if isinstance(event, RunVerb) else ""


def _attempt(change: AttemptBegan | AttemptEnded, at: float) -> BegunAttempt | EndedAttempt:
    if isinstance(change, AttemptBegan):
        return BegunAttempt(change.no, change.epoch, change.verb.value, change.actor, at, change.first_step)
    return EndedAttempt(
        change.no, change.status, change.reason, change.reason_text, change.actor, at, change.last_step, change.versions
    )
