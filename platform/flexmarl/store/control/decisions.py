"""The driver's one write: everything that a batch of events led to, in one transaction, under (owner, fence).

Invariants: a decision is written whole or not at all; the log stays gapless because the run's row must still be at the
sequence the decision was made on; a producer key is remembered with the event it brought. Whoever lost the run gets
FenceLost and has written nothing: the server refuses by itself, so a decision may be sent without waiting for answers.
The run's own row comes last, so that a driver that stalls half-way holds up no takeover.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from psycopg import Connection, DatabaseError
from psycopg.pq import TransactionStatus

from flexmarl.contracts.attempts import AttemptBegan, AttemptEnded, VerbEnded
from flexmarl.contracts.commands import HoldGroups, KeepCheckpoints, ReleaseLease
from flexmarl.contracts.decisions import Metric, RunNote
from flexmarl.contracts.events import Event, LeaseEnded, RunGivenUp, RunVerb
from flexmarl.contracts.live import Progress
from flexmarl.contracts.rulings import Ruling
from flexmarl.contracts.status import TERMINAL, RunReason, RunStatus
from flexmarl.store.control import inbox
from flexmarl.store.control.attempts import Timed, write_attempts, write_outcomes
from flexmarl.store.control.checkpoint_rows import keep_checkpoints
from flexmarl.store.control.command_rows import IssuedCommand, hold, write_commands, write_micro_batches
from flexmarl.store.control.runs import RunLease
from flexmarl.store.errors import FenceLost

T = TypeVar("T")


class LogEntry(NamedTuple):
    """An event with the number and time the driver gave it. Empty key: it did not come through the inbox.

    `fact`: it waits in the inbox under this id and is moved to the log with the decision.
    """

    seq: int
    at: float
    event: Event
    producer_key: str = ""
    fact: int = 0


class Logged(NamedTuple, Generic[T]):
    """What an event led to, with the event's number and its time in seconds."""

    seq: int
    at: float
    value: T


@dataclass(frozen=True, slots=True)
class StoredDecision:
    entries: Sequence[LogEntry]
    status: RunStatus
    reason: RunReason
    reason_text: str
    epoch: int
    step: int
    progress: Progress | None
    """None keeps the stored one."""
    deadline: float | None
    commands: Sequence[IssuedCommand] = ()
    void: Sequence[int] = ()
    metrics: Sequence[Timed[Metric]] = ()
    notes: Sequence[Logged[RunNote]] = ()
    attempts: Sequence[Timed[AttemptBegan | AttemptEnded]] = ()
    outcomes: Sequence[Timed[VerbEnded]] = ()
    rulings: Sequence[Logged[Ruling]] = ()
    snapshot: bytes | None = None
    """State after the last entry; None keeps the stored one."""


_REFUSED = "FX001"
"""SQLSTATE of store.insist."""
_NOT_WAITED_FOR = "55P03"
_LOG_KEYS = frozenset({"event_pkey", "handled_pkey"})


@contextmanager
def refusals(lease: RunLease) -> Iterator[None]:
    """Raise FenceLost where the server refuses a decision, whenever its answer is read."""
    try:
        yield
    except DatabaseError as error:
        if error.sqlstate in (_REFUSED, _NOT_WAITED_FOR) or error.diag.constraint_name in _LOG_KEYS:
            raise FenceLost(lease.run_id, lease.owner, lease.fence) from error
        raise


@contextmanager
def sending(conn: Connection, lease: RunLease) -> Iterator[None]:
    """Send statements without waiting for their answers. A transaction that was refused or cut short is rolled back."""
    try:
        with refusals(lease), conn.pipeline():
            yield
    finally:
        if not conn.closed and conn.info.transaction_status is not TransactionStatus.IDLE:
            conn.rollback()


def append(conn: Connection, lease: RunLease, decision: StoredDecision) -> None:
    """Write a decision. Raises FenceLost when another driver holds the run or the log moved on."""
    with refusals(lease), conn.transaction():
        write(conn, lease, decision)


def commit(conn: Connection, lease: RunLease, decision: StoredDecision, discarded: Sequence[int] = ()) -> None:
    """Write a decision in a transaction of its own, in as few round trips as can be. Raises FenceLost."""
    if _only_moves_facts(decision):
        with refusals(lease):
            _write_state(conn, lease, decision, decision.entries)
        return
    with sending(conn, lease):
        conn.execute("BEGIN")
        write(conn, lease, decision, discarded)
        conn.execute("COMMIT")


def write(conn: Connection, lease: RunLease, decision: StoredDecision, discarded: Sequence[int] = ()) -> None:
    """Write a decision in the caller's transaction, under its `refusals`.

    `discarded`: facts of the inbox that do not reach the log as they are.
    """
    run_id = lease.run_id
    inbox.move(conn, run_id, *_moves(decision.entries))
    _write_log(conn, run_id, [entry for entry in decision.entries if not entry.fact])
    inbox.discard(conn, run_id, discarded)
    _write_notes(conn, run_id, decision.notes)
    _write_rulings(conn, run_id, decision.rulings)
    _write_metrics(conn, run_id, decision.metrics)
    write_attempts(conn, run_id, decision.attempts)
    write_outcomes(conn, run_id, decision.outcomes)
    write_commands(conn, run_id, decision.commands)
    # After the insert: a later event of the same batch may withdraw what an earlier one decided.
    void_commands(conn, run_id, decision.void)
    ordered = [issued.numbered.command for issued in decision.commands]
    write_micro_batches(conn, run_id, ordered)
    for command in ordered:
        if isinstance(command, ReleaseLease):
            release_lease(conn, run_id, command.lease_id)
        elif isinstance(command, KeepCheckpoints):
            keep_checkpoints(conn, run_id, command)
        elif isinstance(command, HoldGroups):
            hold(conn, run_id, command)
    if decision.status in TERMINAL:
        _void_micro_batches(conn, run_id, decision.status)
    _write_state(conn, lease, decision)


def void_commands(conn: Connection, run_id: int, numbers: Sequence[int]) -> None:
    """Withdraw commands that have not ended; their takers learn it at the next extension or write."""
    if numbers:
        conn.execute(
            "UPDATE store.command SET status = 'void', deadline = NULL, done_at = clock_timestamp() "
            "WHERE run_id = %s AND no = ANY(%s) AND status IN ('open', 'taken')",
            [run_id, list(numbers)],
        )


def void_all(conn: Connection, run_id: int) -> None:
    """Withdraw whatever a run has on its way, but the hosting of its leases: these end by themselves."""
    conn.execute(
        "UPDATE store.command SET status = 'void', deadline = NULL, done_at = clock_timestamp() "
        "WHERE run_id = %s AND kind <> 'host_lease' AND status IN ('open', 'taken')",
        [run_id],
    )


def release_lease(conn: Connection, run_id: int, lease_id: int) -> None:
    """Ask for a lease's end. One that was never hosted has nothing to stop and ends here."""
    row = conn.execute(
        """
        UPDATE store.lease SET
          state = CASE WHEN fence = 0 THEN 'ended' ELSE 'releasing' END,
          ended_at = CASE WHEN fence = 0 THEN clock_timestamp() END,
          reason = CASE WHEN fence = 0 THEN 'never hosted' ELSE reason END
        WHERE id = %s AND run_id = %s AND state = 'held' RETURNING state
        """,
        [lease_id, run_id],
    ).fetchone()
    if row is not None and row[0] == "ended":
        inbox.put_event(conn, run_id, f"ended:{lease_id}", LeaseEnded(lease_id=lease_id, reason="never hosted"))


def _write_state(conn: Connection, lease: RunLease, decision: StoredDecision, moving: Sequence[LogEntry] = ()) -> None:
    """Write the run's row, and move facts with it."""
    ids, seqs, moment = _moves(moving)
    first = decision.entries[0].seq if decision.entries else None
    last = decision.entries[-1].seq if decision.entries else None
    now = decision.entries[-1].at if decision.entries else None
    handled_verb = any(isinstance(entry.event, RunVerb | RunGivenUp) for entry in decision.entries)
    conn.execute(
        """
        WITH kept AS (
        UPDATE store.run_state r SET
          status_since = CASE WHEN r.status = %(status)s THEN r.status_since
                              ELSE coalesce(to_timestamp(%(now)s), clock_timestamp()) END,
          status = %(status)s, reason = %(reason)s, reason_text = %(text)s, epoch = %(epoch)s,
          seq = coalesce(%(last)s, r.seq), step = %(step)s, progress = coalesce(%(progress)s::jsonb, r.progress),
          deadline = to_timestamp(%(deadline)s),
          started_at = CASE WHEN r.started_at IS NULL AND %(status)s = 'running'
                            THEN coalesce(to_timestamp(%(now)s), clock_timestamp()) ELSE r.started_at END,
          finished_at = CASE WHEN %(ended)s
                             THEN coalesce(r.finished_at, to_timestamp(%(now)s), clock_timestamp()) END,
          pending_verb = CASE WHEN %(handled_verb)s THEN coalesce(
            (SELECT i.body ->> 'verb' FROM store.inbox i
             WHERE i.run_id = r.run_id AND i.body ->> 'kind' = 'run_verb' ORDER BY i.id DESC LIMIT 1), '')
            ELSE r.pending_verb END,
          snapshot = coalesce(%(snapshot)s, r.snapshot),
          snapshot_seq = CASE WHEN %(snapshot)s::bytea IS NULL THEN r.snapshot_seq ELSE coalesce(%(last)s, r.seq) END
        WHERE r.run_id = %(run)s AND r.owner = %(owner)s AND r.fence = %(fence)s
          AND (%(first)s::bigint IS NULL OR r.seq = %(first)s - 1)
        RETURNING 1)
        SELECT store.insist(EXISTS (SELECT 1 FROM kept), 'the run is held by somebody else'),
          store.move_facts(%(run)s::bigint, %(ids)b::bigint[], %(seqs)b::bigint[], to_timestamp(%(moment)s))
        """,
        {
            "run": lease.run_id, "owner": lease.owner, "fence": lease.fence,
            "status": decision.status.value, "reason": decision.reason.value, "text": decision.reason_text,
            "epoch": decision.epoch, "step": decision.step, "deadline": decision.deadline,
            "progress": None if decision.progress is None else decision.progress.model_dump_json(),
            "snapshot": decision.snapshot, "handled_verb": handled_verb,
            "first": first, "last": last, "now": now, "ended": decision.status in TERMINAL,
            "ids": ids, "seqs": seqs, "moment": moment,
        },
    )  # fmt: skip


def _moves(entries: Sequence[LogEntry]) -> tuple[list[int], list[int], float]:
    """Return the facts to be moved to the log, their places there and their time."""
    moved = [entry for entry in entries if entry.fact]
    return [entry.fact for entry in moved], [entry.seq for entry in moved], moved[-1].at if moved else 0.0


def _only_moves_facts(decision: StoredDecision) -> bool:
    """Tell whether facts led to nothing but another state, as most do."""
    rows = (
        decision.commands, decision.void, decision.metrics, decision.notes, decision.attempts, decision.outcomes,
        decision.rulings,
    )  # fmt: skip
    return not any(rows) and decision.status not in TERMINAL and all(entry.fact for entry in decision.entries)


def _write_log(conn: Connection, run_id: int, entries: Sequence[LogEntry]) -> None:
    if not entries:
        return
    conn.execute(
        """
        WITH entry AS (
          SELECT * FROM unnest(%(seqs)b::bigint[], %(kinds)b::text[], %(bodies)b::text[], %(ats)b::float8[],
                               %(keys)b::text[]) AS e(seq, kind, body, at, key)
        ), remembered AS (
          INSERT INTO store.handled (run_id, producer_key, seq) SELECT %(run)s, key, seq FROM entry WHERE key <> ''
        )
        INSERT INTO store.event (run_id, seq, kind, body, at)
        SELECT %(run)s, seq, kind, body::jsonb, to_timestamp(at) FROM entry
        """,
        {
            "run": run_id,
            "seqs": [entry.seq for entry in entries],
            "kinds": [entry.event.kind for entry in entries],
            "bodies": [entry.event.model_dump_json() for entry in entries],
            "ats": [entry.at for entry in entries],
            "keys": [entry.producer_key for entry in entries],
        },
    )


def _write_notes(conn: Connection, run_id: int, notes: Sequence[Logged[RunNote]]) -> None:
    if not notes:
        return
    conn.execute(
        """
        INSERT INTO store.note (run_id, seq, ord, level, actor, target, cause, text, at)
        SELECT %s, n.seq, n.ord, n.level, n.actor, n.target, n.cause, n.text, to_timestamp(n.at)
        FROM unnest(%s::bigint[], %s::int[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::float8[])
          AS n(seq, ord, level, actor, target, cause, text, at)
        """,
        [
            run_id, [n.seq for n in notes], list(range(len(notes))), [n.value.level.value for n in notes],
            [n.value.actor for n in notes], [n.value.target for n in notes], [n.value.cause for n in notes],
            [n.value.text for n in notes], [n.at for n in notes],
        ],
    )  # fmt: skip


def _write_rulings(conn: Connection, run_id: int, rulings: Sequence[Logged[Ruling]]) -> None:
    if not rulings:
        return
    conn.execute(
        """
        INSERT INTO store.ruling (run_id, seq, ord, kind, cause, policy, cohort, target, rows, reason, at)
        SELECT %s, r.seq, r.ord, r.kind, r.cause, r.policy, r.cohort, r.target, r.rows, r.reason, to_timestamp(r.at)
        FROM unnest(%b::bigint[], %b::int[], %b::text[], %b::text[], %b::text[], %b::int[], %b::text[], %b::int[],
                    %b::text[], %b::float8[])
          AS r(seq, ord, kind, cause, policy, cohort, target, rows, reason, at)
        """,
        [
            run_id, [r.seq for r in rulings], list(range(len(rulings))), [r.value.kind.value for r in rulings],
            [r.value.cause for r in rulings], [r.value.policy for r in rulings], [r.value.cohort for r in rulings],
            [r.value.target for r in rulings], [r.value.rows for r in rulings], [r.value.reason for r in rulings],
            [r.at for r in rulings],
        ],
    )  # fmt: skip


def _write_metrics(conn: Connection, run_id: int, points: Sequence[Timed[Metric]]) -> None:
    if not points:
        return
    conn.execute(
        """
        INSERT INTO store.metric (run_id, name, agent, stat, step, value, at, samples)
        SELECT %s, p.name, p.agent, p.stat, p.step, p.value, to_timestamp(p.at), p.samples
        FROM unnest(%b::text[], %b::text[], %b::text[], %b::int[], %b::float8[], %b::float8[], %b::bigint[])
          AS p(name, agent, stat, step, value, at, samples)
        ON CONFLICT (run_id, name, agent, stat, step)
        DO UPDATE SET value = excluded.value, at = excluded.at, samples = excluded.samples
        """,
        [
            run_id, [p.name for _, p in points], [p.agent for _, p in points], [p.stat for _, p in points],
            [p.step for _, p in points], [float(p.value) for _, p in points], [at for at, _ in points],
            [p.samples for _, p in points],
        ],
    )  # fmt: skip


def _void_micro_batches(conn: Connection, run_id: int, status: RunStatus) -> None:
    """What an ended run cut and never applied is never trained."""
    conn.execute(
        "UPDATE store.micro_batch SET status = 'void', reason = %s, done_at = clock_timestamp() "
        "WHERE run_id = %s AND status IN ('cut', 'accumulated')",
        [status.value, run_id],
    )
