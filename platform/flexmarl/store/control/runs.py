"""Runs as rows: their creation, the driver's lease on them, their stored state and log.

Invariants: `run_state` is written by the driver that holds (owner, fence) and by nobody else, but for `pending_verb`.
A takeover raises the fence, so the former holder's next write fails. All times are the database's clock, in seconds.
"""

from dataclasses import dataclass

import orjson
from psycopg import Connection

from flexmarl.contracts.events import Event, event_adapter
from flexmarl.contracts.status import TERMINAL, RunStatus
from flexmarl.store import partitions
from flexmarl.store.errors import UnknownRun
from flexmarl.store.node_operations import for_nodes, run_with_work

_ENDED = [status.value for status in TERMINAL]


@dataclass(frozen=True, slots=True)
class RunLease:
    """A driver's hold on a run. Every decision names it."""

    run_id: int
    owner: str
    fence: int


@dataclass(frozen=True, slots=True)
class StoredRun:
    run_id: int
    spec: dict[str, object]
    status: RunStatus
    reason: str
    reason_text: str
    status_since: float
    pending_verb: str
    epoch: int
    seq: int
    step: int
    progress: dict[str, object]
    started_at: float | None
    finished_at: float | None
    deadline: float | None
    snapshot: bytes | None
    snapshot_seq: int
    owner: str
    fence: int


@dataclass(frozen=True, slots=True)
class StoredEvent:
    seq: int
    at: float
    event: Event


def create_run(
    conn: Connection,
    run_id: int,
    spec: dict[str, object],
    status: RunStatus,
    *,
    project: str = "default",
    priority: int = 50,
) -> None:
    """Add a run's state, and the tables of its rows unless it is a draft: those are made when it starts."""
    with conn.transaction():
        conn.execute(
            "INSERT INTO store.run_state (run_id, spec, status, project, priority) VALUES (%s, %s::jsonb, %s, %s, %s)",
            [run_id, orjson.dumps(spec).decode(), status.value, project, priority],
        )
        if status is not RunStatus.DRAFT:
            partitions.ensure(conn, run_id)


def claim_runs(conn: Connection, owner: str, ttl_s: float) -> list[RunLease]:
    """Take every run that nobody holds and that has something to come: one that lives, or one with facts waiting.

    A draft and an ended run rest until a verb or a late fact waits for them.
    """
    rows = conn.execute(
        """
        UPDATE store.run_state r
        SET owner = %(owner)s, fence = r.fence + 1, lease_until = clock_timestamp() + make_interval(secs => %(ttl)s)
        WHERE r.run_id IN (
          SELECT run_id FROM store.run_state
          WHERE lease_until < clock_timestamp()
            AND (status <> ALL(%(resting)s) OR run_id IN (SELECT i.run_id FROM store.inbox i))
          ORDER BY run_id FOR UPDATE SKIP LOCKED)
        RETURNING run_id, owner, fence
        """,
        {"owner": owner, "ttl": ttl_s, "resting": [*_ENDED, RunStatus.DRAFT.value]},
    ).fetchall()
    return [RunLease(*row) for row in sorted(rows)]


def renew_runs(conn: Connection, owner: str, ttl_s: float) -> set[int]:
    """Extend this driver's leases; returns the runs it still holds. One that ended is held until it is given back."""
    rows = conn.execute(
        """
        UPDATE store.run_state SET lease_until = clock_timestamp() + make_interval(secs => %s)
        WHERE owner = %s RETURNING run_id
        """,
        [ttl_s, owner],
    ).fetchall()
    return {row[0] for row in rows}


def release_runs(conn: Connection, owner: str) -> None:
    """Give all runs back at once, so that another driver need not wait for the leases to expire."""
    conn.execute("UPDATE store.run_state SET owner = '', lease_until = '-infinity' WHERE owner = %s", [owner])


def release_place(conn: Connection, place: str) -> None:
    """Give back the runs of the driver that was in this place before: it is gone, and its fences with the next claim.

    Owners are named `place:unique`, so that one that only stalled finds its runs gone instead of taking them along.
    """
    conn.execute(
        "UPDATE store.run_state SET owner = '', lease_until = '-infinity' WHERE starts_with(owner, %s)", [place + ":"]
    )


def release_run(conn: Connection, lease: RunLease) -> None:
    """Give one run back, so that whatever comes for it later finds a driver at once."""
    conn.execute(
        "UPDATE store.run_state SET owner = '', lease_until = '-infinity' "
        "WHERE run_id = %s AND owner = %s AND fence = %s",
        [lease.run_id, lease.owner, lease.fence],
    )


def load_run(conn: Connection, run_id: int) -> StoredRun:
    """Read a run's state. Raises UnknownRun when there is none."""
    row = conn.execute(
        """
        SELECT run_id, spec::text, status, reason, reason_text, extract(epoch FROM status_since)::float8, pending_verb,
          epoch, seq, step, progress::text, extract(epoch FROM started_at)::float8,
          extract(epoch FROM finished_at)::float8, extract(epoch FROM deadline)::float8, snapshot, snapshot_seq,
          owner, fence
        FROM store.run_state WHERE run_id = %s
        """,
        [run_id],
    ).fetchone()
    if row is None:
        raise UnknownRun(run_id)
    values = list(row)
    values[1], values[2], values[10] = orjson.loads(row[1]), RunStatus(row[2]), orjson.loads(row[10])
    return StoredRun(*values)


@for_nodes(run_with_work("run_id"))
def load_spec(conn: Connection, run_id: int) -> dict[str, object]:
    """Read a run's resolved specification. Raises UnknownRun when there is no such run."""
    row = conn.execute("SELECT spec::text FROM store.run_state WHERE run_id = %s", [run_id]).fetchone()
    if row is None:
        raise UnknownRun(run_id)
    spec: dict[str, object] = orjson.loads(row[0])
    return spec


@for_nodes(run_with_work("run_id"))
def publication_content(conn: Connection, run_id: int) -> str:
    """Return what other hosts receive of a run's new weights; `auto` where the specification does not say."""
    row = conn.execute(
        "SELECT spec -> 'mechanisms' -> 'publication' ->> 'content' FROM store.run_state WHERE run_id = %s", [run_id]
    ).fetchone()
    return str(row[0]) if row is not None and row[0] else "auto"


@for_nodes(run_with_work("run_id"))
def content_elsewhere(conn: Connection, run_id: int) -> str:
    """Return what engines in another pool than the trainers' receive of new weights; empty where there are none."""
    row = conn.execute(
        "SELECT spec #>> '{resources,rollout_pool}' IS DISTINCT FROM spec #>> '{resources,training_pool}' "
        "FROM store.run_state WHERE run_id = %s",
        [run_id],
    ).fetchone()
    return publication_content(conn, run_id) if row is not None and row[0] else ""


def events_after(conn: Connection, run_id: int, seq: int, limit: int | None = None) -> list[StoredEvent]:
    """Read the log behind a sequence number, in order."""
    rows = conn.execute(
        """
        SELECT seq, extract(epoch FROM at)::float8, body::text FROM store.event
        WHERE run_id = %s AND seq > %s ORDER BY seq LIMIT %s
        """,
        [run_id, seq, limit],
    ).fetchall()
    return [StoredEvent(number, at, event_adapter.validate_json(body)) for number, at, body in rows]


def last_event_at(conn: Connection, run_id: int) -> float:
    """Return the time of the newest event of the log, 0 when there is none."""
    row = conn.execute(
        "SELECT extract(epoch FROM at)::float8 FROM store.event WHERE run_id = %s ORDER BY seq DESC LIMIT 1", [run_id]
    ).fetchone()
    return 0.0 if row is None else float(row[0])


def database_now(conn: Connection) -> float:
    """Return the database's clock, in seconds since the epoch."""
    row = conn.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
    assert row is not None
    return float(row[0])
