"""The driver's one write: everything that a batch of events led to, in one transaction, under (owner, fence).

Invariants: `append` writes all of a decision or nothing; the log stays gapless because the run's row must still be at
the sequence the decision was made on; a producer key is remembered with the event it brought. Whoever lost the run
gets FenceLost and has written nothing. Call it inside the transaction that took the events.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import orjson
from psycopg import Connection

from flexmarl.contracts.commands import (
    ROUTES,
    Command,
    CutMicroBatch,
    HostLease,
    PlayGroups,
    ReleaseLease,
    Route,
    queue_of,
)
from flexmarl.contracts.events import Event, LeaseEnded, RunGivenUp, RunVerb
from flexmarl.contracts.live import Progress
from flexmarl.contracts.status import TERMINAL, RunReason, RunStatus
from flexmarl.store.attempts import BegunAttempt, EndedAttempt, VerbOutcome, write_attempts, write_outcomes
from flexmarl.store.errors import FenceLost
from flexmarl.store.inbox import put_event
from flexmarl.store.runs import RunLease


@dataclass(frozen=True, slots=True)
class LogEntry:
    """An event with the number and time the driver gave it. Empty key: it did not come through the inbox.

    `logged`: it was moved to the log when it was taken, in this transaction.
    """

    seq: int
    at: float
    event: Event
    producer_key: str = ""
    logged: bool = False


@dataclass(frozen=True, slots=True)
class IssuedCommand:
    no: int
    seq: int
    epoch: int
    command: Command
    cause: str = ""
    """Request that led to it, when a verb did."""
    reason: str = ""
    """Why it was decided, for people."""


@dataclass(frozen=True, slots=True)
class MetricPoint:
    name: str
    step: int
    value: float
    at: float
    agent: str = ""
    stat: str = "mean"
    samples: int = 0


@dataclass(frozen=True, slots=True)
class NoteLine:
    """A line for people. `level` is info, warning or error; `actor` who did it, `target` what it is about, `cause`
    the request it follows from."""

    seq: int
    level: str
    text: str
    at: float
    actor: str = ""
    target: str = ""
    cause: str = ""


@dataclass(frozen=True, slots=True)
class RulingLine:
    """A decision that is no command; see contracts.rulings."""

    seq: int
    kind: str
    reason: str
    at: float
    policy: str = ""
    cohort: int = -1
    target: str = ""
    rows: int = 0
    cause: str = ""


@dataclass(frozen=True, slots=True)
class StoredDecision:
    entries: Sequence[LogEntry]
    status: RunStatus
    reason: RunReason
    reason_text: str
    epoch: int
    step: int
    progress: Progress
    deadline: float | None
    commands: Sequence[IssuedCommand] = ()
    void: Sequence[int] = ()
    metrics: Sequence[MetricPoint] = ()
    notes: Sequence[NoteLine] = ()
    attempts: Sequence[BegunAttempt | EndedAttempt] = ()
    outcomes: Sequence[VerbOutcome] = ()
    rulings: Sequence[RulingLine] = ()
    snapshot: bytes | None = None
    """State after the last entry; None keeps the stored one."""


def append(conn: Connection, lease: RunLease, decision: StoredDecision) -> None:
    """Commit a decision. Raises FenceLost when another driver holds the run or the log moved on."""
    with conn.transaction():
        _write_state(conn, lease, decision)
        _write_log(conn, lease.run_id, [entry for entry in decision.entries if not entry.logged])
        _write_notes(conn, lease.run_id, decision.notes)
        _write_rulings(conn, lease.run_id, decision.rulings)
        _write_metrics(conn, lease.run_id, decision.metrics)
        write_attempts(conn, lease.run_id, decision.attempts)
        write_outcomes(conn, lease.run_id, decision.outcomes)
        _write_commands(conn, lease.run_id, decision.commands)
        # After the insert: a later event of the same batch may withdraw what an earlier one decided.
        void_commands(conn, lease.run_id, decision.void)
        _write_micro_batches(conn, lease.run_id, [c.command for c in decision.commands])
        for issued in decision.commands:
            if isinstance(issued.command, ReleaseLease):
                release_lease(conn, lease.run_id, issued.command.lease_id)
        if decision.status in TERMINAL:
            _void_micro_batches(conn, lease.run_id, decision.status)


def explain_waiting(conn: Connection, lease: RunLease, text: str) -> None:
    """Say for people what a queued run waits for, when that changed between two events."""
    conn.execute(
        "UPDATE store.run_state SET reason = %s, reason_text = %s "
        "WHERE run_id = %s AND owner = %s AND fence = %s AND status IN ('queued', 'resuming') AND reason_text <> %s",
        [RunReason.WAITING_FOR_DEVICES.value, text, lease.run_id, lease.owner, lease.fence, text],
    )


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
        put_event(conn, run_id, f"ended:{lease_id}", LeaseEnded(lease_id=lease_id, reason="never hosted"))


def _write_state(conn: Connection, lease: RunLease, decision: StoredDecision) -> None:
    first = decision.entries[0].seq if decision.entries else None
    last = decision.entries[-1].seq if decision.entries else None
    now = decision.entries[-1].at if decision.entries else None
    handled_verb = any(isinstance(entry.event, RunVerb | RunGivenUp) for entry in decision.entries)
    cursor = conn.execute(
        """
        UPDATE store.run_state r SET
          status_since = CASE WHEN r.status = %(status)s THEN r.status_since
                              ELSE coalesce(to_timestamp(%(now)s), clock_timestamp()) END,
          status = %(status)s, reason = %(reason)s, reason_text = %(text)s, epoch = %(epoch)s,
          seq = coalesce(%(last)s, r.seq), step = %(step)s, progress = %(progress)s::jsonb,
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
        """,
        {
            "run": lease.run_id, "owner": lease.owner, "fence": lease.fence,
            "status": decision.status.value, "reason": decision.reason.value, "text": decision.reason_text,
            "epoch": decision.epoch, "step": decision.step, "progress": decision.progress.model_dump_json(),
            "deadline": decision.deadline, "snapshot": decision.snapshot, "handled_verb": handled_verb,
            "first": first, "last": last, "now": now, "ended": decision.status in TERMINAL,
        },
    )  # fmt: skip
    if cursor.rowcount != 1:
        raise FenceLost(lease.run_id, lease.owner, lease.fence)


def _write_log(conn: Connection, run_id: int, entries: Sequence[LogEntry]) -> None:
    if not entries:
        return
    conn.execute(
        """
        WITH entry AS (
          SELECT * FROM unnest(%(seqs)s::bigint[], %(kinds)s::text[], %(bodies)s::text[], %(ats)s::float8[],
                               %(keys)s::text[]) AS e(seq, kind, body, at, key)
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


def _write_notes(conn: Connection, run_id: int, notes: Sequence[NoteLine]) -> None:
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
            run_id, [n.seq for n in notes], list(range(len(notes))), [n.level for n in notes],
            [n.actor for n in notes], [n.target for n in notes], [n.cause for n in notes], [n.text for n in notes],
            [n.at for n in notes],
        ],
    )  # fmt: skip


def _write_rulings(conn: Connection, run_id: int, rulings: Sequence[RulingLine]) -> None:
    if not rulings:
        return
    conn.execute(
        """
        INSERT INTO store.ruling (run_id, seq, ord, kind, cause, policy, cohort, target, rows, reason, at)
        SELECT %s, r.seq, r.ord, r.kind, r.cause, r.policy, r.cohort, r.target, r.rows, r.reason, to_timestamp(r.at)
        FROM unnest(%s::bigint[], %s::int[], %s::text[], %s::text[], %s::text[], %s::int[], %s::text[], %s::int[],
                    %s::text[], %s::float8[])
          AS r(seq, ord, kind, cause, policy, cohort, target, rows, reason, at)
        """,
        [
            run_id, [r.seq for r in rulings], list(range(len(rulings))), [r.kind for r in rulings],
            [r.cause for r in rulings], [r.policy for r in rulings], [r.cohort for r in rulings],
            [r.target for r in rulings], [r.rows for r in rulings], [r.reason for r in rulings],
            [r.at for r in rulings],
        ],
    )  # fmt: skip


def _write_metrics(conn: Connection, run_id: int, points: Sequence[MetricPoint]) -> None:
    if not points:
        return
    conn.execute(
        """
        INSERT INTO store.metric (run_id, name, agent, stat, step, value, at, samples)
        SELECT %s, p.name, p.agent, p.stat, p.step, p.value, to_timestamp(p.at), p.samples
        FROM unnest(%s::text[], %s::text[], %s::text[], %s::int[], %s::float8[], %s::float8[], %s::bigint[])
          AS p(name, agent, stat, step, value, at, samples)
        ON CONFLICT (run_id, name, agent, stat, step)
        DO UPDATE SET value = excluded.value, at = excluded.at, samples = excluded.samples
        """,
        [
            run_id, [p.name for p in points], [p.agent for p in points], [p.stat for p in points],
            [p.step for p in points], [p.value for p in points], [p.at for p in points], [p.samples for p in points],
        ],
    )  # fmt: skip


def _write_commands(conn: Connection, run_id: int, commands: Sequence[IssuedCommand]) -> None:
    if not commands:
        return
    rows = [_command_row(issued) for issued in commands]
    conn.execute(
        """
        INSERT INTO store.command (run_id, no, seq, epoch, kind, route, lease_id, queue, body, status, cause, reason,
          done_at)
        SELECT %s, c.no, c.seq, c.epoch, c.kind, c.route, c.lease_id, c.queue, c.body::jsonb, c.status, c.cause,
          c.reason,
          CASE WHEN c.status = 'done' THEN clock_timestamp() END
        FROM unnest(%s::bigint[], %s::bigint[], %s::int[], %s::text[], %s::text[], %s::bigint[], %s::text[],
                    %s::text[], %s::text[], %s::text[], %s::text[])
          AS c(no, seq, epoch, kind, route, lease_id, queue, body, status, cause, reason)
        """,
        [run_id, *([row[i] for row in rows] for i in range(11))],
    )


def _command_row(issued: IssuedCommand) -> tuple[int, int, int, str, str, int | None, str, str, str, str, str]:
    """Render a command. What this very transaction carries out is `done` at once."""
    command = issued.command
    route = ROUTES[command.kind]
    queue = queue_of(command) if isinstance(command, HostLease | PlayGroups) else ""
    done = isinstance(command, CutMicroBatch | ReleaseLease)
    body = command.model_dump_json(exclude={"samples"} if isinstance(command, CutMicroBatch) else None)
    lease_id = getattr(command, "lease_id", None) if route is not Route.DRIVER else None
    status = "done" if done else "open"
    return (
        issued.no, issued.seq, issued.epoch, command.kind, route.value, lease_id, queue, body, status, issued.cause,
        issued.reason,
    )  # fmt: skip


def _write_micro_batches(conn: Connection, run_id: int, commands: Sequence[Command]) -> None:
    """Fix membership and advantages. The samples live here only, not in the command's row as well."""
    for cut in commands:
        if isinstance(cut, CutMicroBatch):
            keys = [[s.draw, s.member, s.attempt, s.role, s.turn] for s in cut.samples]
            conn.execute(
                """
                INSERT INTO store.micro_batch (run_id, policy, no, cohort, keys, advantages, weights)
                VALUES (%s, %s, %s, %s, %s::jsonb, %s::float4[], %s::float4[])
                """,
                [
                    run_id, cut.ref.policy, cut.ref.no, cut.cohort, orjson.dumps(keys).decode(),
                    [s.advantage for s in cut.samples], [s.weight for s in cut.samples],
                ],
            )  # fmt: skip


def _void_micro_batches(conn: Connection, run_id: int, status: RunStatus) -> None:
    """What an ended run cut and never applied is never trained."""
    conn.execute(
        "UPDATE store.micro_batch SET status = 'void', reason = %s, done_at = clock_timestamp() "
        "WHERE run_id = %s AND status IN ('cut', 'accumulated')",
        [status.value, run_id],
    )
