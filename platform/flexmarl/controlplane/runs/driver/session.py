"""One run in this driver's hands: its core, where its log stands, and what a batch of facts leads to.

Invariants: what is decided is committed with the facts it was decided on, or not at all (see `turning`); whenever a
commit fails or the core raises, the state in memory is thrown away and rebuilt from the store (snapshot and tail).
`now` is the database's clock, never going back, in whole microseconds, so that a replay hands the core the same
numbers. Whatever reaches the core is in the log, also that the driver gives a run up: the log alone leads to the state
and the commands.
"""

import time
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

import structlog
import zstandard
from psycopg import Connection

from flexmarl.contracts.events import Event, RunGivenUp, RunVerb, TimerFired, event_adapter
from flexmarl.contracts.live import Progress
from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.contracts.status import TERMINAL, RunStatus
from flexmarl.controlplane.runs.driver import reconciling
from flexmarl.controlplane.runs.driver.tail import Tail
from flexmarl.orchestrator import Decision, Orchestrator
from flexmarl.store.control import decisions, reconciliation, runs
from flexmarl.store.control.command_rows import IssuedCommand
from flexmarl.store.control.decisions import LogEntry, Logged, StoredDecision
from flexmarl.store.control.inbox import WaitingFact
from flexmarl.store.control.runs import RunLease, StoredRun

log = structlog.get_logger(__name__)

BATCH = 256
"""Facts handled and committed together at most."""
PROGRESS_S = 0.05
"""Amid a backlog the figures for pages are read off the state this often; when the last fact is handled, always."""
COMMANDS = 4096
"""A batch ends early where it has led to so many."""


class CoreRaised(Exception):
    """The core raised on a fact; nothing of the turn was committed."""

    def __init__(self, key: str, event: Event, cause: Exception) -> None:
        super().__init__(f"{type(cause).__name__}: {cause}")
        self.key, self.event = key, event


@dataclass(frozen=True, slots=True)
class CommittedTurn:
    """What a committed turn means for the rest of the driver."""

    events: int
    seq: int
    """Last event of the log."""
    issued: int
    status: RunStatus
    moved: bool
    """The status is another than before."""
    held: bool
    """Rollout commands stand still or go on from now on."""


@dataclass(frozen=True, slots=True)
class Decided:
    """What is to be written, and what it will mean when it is."""

    stored: StoredDecision
    turn: CommittedTurn
    replaced: list[int]
    """Facts of the inbox in whose place something else is logged."""


class RunSession:
    """Holds a run's core under a lease. Single-threaded."""

    def __init__(self, lease: RunLease, core: Orchestrator, seq: int, snapshot_seq: int, at: float) -> None:
        self.lease = lease
        self.core = core
        self.seq = seq
        self.deadline: float | None = None
        self.differences: list[str] = []
        """Where the run's rows differ from its log; the driver gives such a run up."""
        self._tail = Tail(snapshot_seq, at)
        self._text = ""
        self._progress: Progress | None = None
        """As the run's row holds it; None: unknown."""
        self._shown_at = 0.0
        self._clock = at - time.monotonic()
        self._log = log.bind(run_id=lease.run_id)

    @classmethod
    def load(cls, conn: Connection, lease: RunLease) -> "RunSession":
        """Rebuild a run's core from its snapshot and the log behind it. Raises what a broken state raises."""
        with conn.transaction():
            conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            stored = runs.load_run(conn, lease.run_id)
            tail = runs.events_after(conn, lease.run_id, stored.snapshot_seq)
            rows = reconciliation.read(conn, lease.run_id)
            now = runs.database_now(conn)
            core = _restored(stored)
            began = time.thread_time()
            for entry in tail:
                core.handle(entry.event, entry.at)
            differences = reconciling.differences(conn, stored, tail, core.state, rows)
        session = cls(lease, core, stored.seq, stored.snapshot_seq, now)
        session.deadline = stored.deadline
        session.differences = differences
        session._text = stored.reason_text
        session._tail.work_s = time.thread_time() - began
        if stored.status in TERMINAL and core.state.lifecycle.status not in TERMINAL:
            # Given up by a driver that did not log it: the core learns it here, and the next decision is kept whole.
            core.handle(RunGivenUp(cause="orchestrator_error", text=stored.reason_text), now)
            session._tail.at = 0.0
        log.info("run_loaded", run_id=lease.run_id, seq=stored.seq, replayed=len(tail), fence=lease.fence)
        return session

    def due(self, waiting: Collection[WaitingFact], now: float) -> bool:
        """Tell whether there is anything to decide on, by the database's clock."""
        return bool(waiting) or (self.deadline is not None and max(now, self.core.state.now) >= self.deadline)

    def decide(self, waiting: deque[WaitingFact], database_now: float, poisoned: Collection[str]) -> Decided:
        """Take facts that wait, a batch at most, and let the core decide on them.

        Raises CoreRaised when the core raises; then this object is of no use any more. A fact whose key is among the
        `poisoned` ends the run instead of reaching the core.
        """
        self._clock = database_now - time.monotonic()
        now = round(max(self.core.state.now, database_now), 6)
        before = self.core.state.lifecycle.status
        entries: list[LogEntry] = []
        decided: list[Decision] = []
        replaced: list[int] = []
        issued = 0
        began = time.thread_time()
        while waiting and len(entries) < BATCH and issued < COMMANDS:
            fact = waiting.popleft()
            event, ours = event_adapter.validate_json(fact.body), fact.id
            if fact.producer_key in poisoned:
                event, ours = _in_place_of(event), 0
                replaced.append(fact.id)
            entries.append(LogEntry(self.seq + len(entries) + 1, now, event, fact.producer_key, fact=ours))
            decided.append(self._one(fact.producer_key, event, now))
            issued += len(decided[-1].commands)
        if self.deadline is not None and now >= self.deadline:
            timer = _in_place_of(TimerFired()) if "" in poisoned else TimerFired()
            entries.append(LogEntry(self.seq + len(entries) + 1, now, timer))
            decided.append(self._one("", timer, now))
        self._tail.work_s += time.thread_time() - began
        progress = self._progress
        if not waiting or now - self._shown_at >= PROGRESS_S:
            progress, self._shown_at = self.core.progress(), now
        stored = self._stored(entries, decided, now, progress)
        self._go_on(stored, now)
        moved = stored.status is not before
        held = any(issued.numbered.command.kind == "hold_groups" for issued in stored.commands)
        turn = CommittedTurn(len(entries), self.seq, len(stored.commands), stored.status, moved, held)
        return Decided(stored, turn, replaced)

    def wait_s(self) -> float | None:
        """Return how long there is until the core's deadline, by the database's clock; None without one."""
        return None if self.deadline is None else max(0.0, self.deadline - self._clock - time.monotonic())

    def _one(self, key: str, event: Event, now: float) -> Decision:
        try:
            return self.core.handle(event, now)
        except Exception as error:  # a fault of the core must end one run, not the driver of all
            self._log.exception("core_raised", event_kind=event.kind, producer_key=key)
            raise CoreRaised(key, event, error) from error

    def _stored(
        self, entries: list[LogEntry], decided: list[Decision], now: float, progress: Progress | None
    ) -> StoredDecision:
        last = decided[-1]
        pairs = list(zip(entries, decided, strict=True))
        snapshot = last.status in TERMINAL or self._tail.too_long(entries[-1].seq, now)
        return StoredDecision(
            entries=entries,
            status=last.status,
            reason=last.reason,
            reason_text=last.reason_text,
            epoch=last.epoch,
            step=last.step,
            progress=None if progress == self._progress else progress,
            deadline=last.deadline,
            commands=[IssuedCommand(e.seq, c, _cause(e.event)) for e, d in pairs for c in d.commands],
            void=[number for d in decided for number in d.void],
            metrics=[(e.at, metric) for e, d in pairs for metric in d.metrics],
            notes=[Logged(e.seq, e.at, note) for e, d in pairs for note in d.notes],
            rulings=[Logged(e.seq, e.at, ruling) for e, d in pairs for ruling in d.rulings],
            attempts=[(e.at, change) for e, d in pairs for change in d.attempts],
            outcomes=[(e.at, ended) for e, d in pairs for ended in d.outcomes],
            snapshot=self._snapshot() if snapshot else None,
        )

    def _snapshot(self) -> bytes:
        began = time.thread_time()
        packed = zstandard.compress(self.core.snapshot(), 1)
        self._tail.snapshot_s = time.thread_time() - began
        return packed

    def _go_on(self, stored: StoredDecision, now: float) -> None:
        """Count on a decision: if it is not written, this object is of no use any more."""
        self.seq = stored.entries[-1].seq
        self.deadline = stored.deadline
        self._text = stored.reason_text
        self._progress = stored.progress or self._progress
        if stored.snapshot is not None:
            self._tail.cut(self.seq, now)

    def announce(self, stored: StoredDecision) -> None:
        """Log what people may look for, once it is durable."""
        for seq, _, note in stored.notes:
            self._log.info(
                "note", seq=seq, level_for_people=note.level.value, text=note.text, actor=note.actor, cause=note.cause
            )
        caused = [(one.numbered.no, one.numbered.command.kind, one.cause) for one in stored.commands if one.cause]
        for number, kind, cause in caused:
            self._log.info("command_issued", no=number, kind=kind, cause=cause)

    def explain(self, conn: Connection, text: str) -> bool:
        """Say in words what a queued run waits for. No decision: the core and its log know nothing of it."""
        state = self.core.state
        if state.lifecycle.status not in (RunStatus.QUEUED, RunStatus.RESUMING) or text == self._text:
            return False
        stored = StoredDecision(
            entries=(),
            status=state.lifecycle.status,
            reason=state.lifecycle.reason,
            reason_text=text,
            epoch=state.lifecycle.epoch,
            step=state.step,
            progress=self.core.progress().model_copy(update={"waiting_for": text}),
            deadline=self.deadline,
        )
        decisions.append(conn, self.lease, stored)
        self._text, self._progress = text, None
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
