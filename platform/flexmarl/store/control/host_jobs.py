"""Jobs that providers were asked for, one for each host of a pool that grows.

Invariants: a row precedes its job, and a job that starts claims its row, so that of two jobs of one row one works. A
name of a node belongs to one job that has not ended. When a job has ended nothing of its host runs: its leases end
then, whoever hosted them, and its node is `gone` until another job takes the name. Of a pool the newest `MOST_ENDED`
jobs that have ended are kept. A host with a node token says of its own job what a host says, and of no other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson
from psycopg import Connection

from flexmarl.store.control import leases
from flexmarl.store.node_operations import both, for_nodes, moment, own_job

BY = "its provider"
"""Who drains a node whose host is about to go."""
TIME_LIMIT = "its time limit is near"
MOST_ENDED = 200
MOST_WORDS = 1000
_LOCK = 0x464C4550
"""Advisory lock of the one session that asks for jobs."""


@dataclass(frozen=True, slots=True)
class HostJob:
    """A job as its row tells it; times in seconds since the epoch."""

    id: UUID
    pool: str
    provider: str
    node: str
    options: Mapping[str, Any]
    state: str
    native: str
    reason: str
    next_step: str
    place: str
    why: str
    unwanted: bool
    tries: int
    due: bool
    """It may be asked for now: nobody refused it, or long enough ago."""
    requested_at: float
    submitted_at: float | None
    started_at: float | None
    leaving_at: float | None
    idle_since: float | None
    ended_at: float | None
    node_state: str
    """Of the node that registered for it; empty before."""
    leases: int
    """Leases of that node that have not ended."""
    now: float

    @property
    def name(self) -> str:
        """Name of the job at the provider."""
        return name_of(self.id)


def name_of(job: UUID) -> str:
    """Return the name under which a provider knows a job."""
    return f"flexmarl-{job.hex}"


def try_to_provide(conn: Connection) -> bool:
    """Become the one session that asks for jobs, until it ends. False while another one is."""
    row = conn.execute("SELECT pg_try_advisory_lock(%s)", [_LOCK]).fetchone()
    return row is not None and bool(row[0])


def is_provided(conn: Connection) -> bool:
    """Tell whether a session asks for jobs."""
    query = "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND granted)"
    row = conn.execute(query, [_LOCK]).fetchone()
    return row is not None and bool(row[0])


_COLUMNS = """
    SELECT j.id, j.pool, j.provider, j.node, j.options, j.state, j.native, j.reason, j.next_step, j.place, j.why,
      j.unwanted, j.tries, j.try_at <= clock_timestamp(),
      extract(epoch FROM j.requested_at)::float8, extract(epoch FROM j.submitted_at)::float8,
      extract(epoch FROM j.started_at)::float8, extract(epoch FROM j.leaving_at)::float8,
      extract(epoch FROM j.idle_since)::float8, extract(epoch FROM j.ended_at)::float8,
      CASE WHEN j.ended_at IS NULL AND n.registered_at >= j.requested_at AND n.state <> 'gone' THEN n.state ELSE '' END,
      (SELECT count(*) FROM store.lease l JOIN store.device d ON d.id = l.device_id
       WHERE j.ended_at IS NULL AND d.node = j.node AND l.state <> 'ended'),
      extract(epoch FROM clock_timestamp())::float8
    FROM store.host_job j LEFT JOIN store.node n ON n.name = j.node
"""


def open_jobs(conn: Connection) -> list[HostJob]:
    """List the jobs that have not ended, oldest first."""
    return [HostJob(*row) for row in conn.execute(f"{_COLUMNS} WHERE j.ended_at IS NULL ORDER BY j.id").fetchall()]


def jobs_of(conn: Connection, pool: str, limit: int = 50) -> list[HostJob]:
    """List the jobs of a pool, those that have not ended first, then the newest."""
    query = f"{_COLUMNS} WHERE j.pool = %s ORDER BY (j.ended_at IS NULL) DESC, j.requested_at DESC, j.id LIMIT %s"
    return [HostJob(*row) for row in conn.execute(query.encode(), [pool, limit]).fetchall()]


def job(conn: Connection, identity: UUID) -> HostJob | None:
    """Read one job."""
    row = conn.execute(f"{_COLUMNS} WHERE j.id = %s".encode(), [identity]).fetchone()
    return None if row is None else HostJob(*row)


def failures(conn: Connection, pool: str) -> tuple[int, float]:
    """Count the newest jobs of a pool that failed one after the other, and the seconds since the last one did."""
    row = conn.execute(
        """
        WITH newest AS (
          SELECT state, ended_at, row_number() OVER (ORDER BY ended_at DESC) AS place FROM store.host_job
          WHERE pool = %(pool)s AND ended_at IS NOT NULL ORDER BY ended_at DESC LIMIT 20
        )
        SELECT count(*), coalesce(extract(epoch FROM clock_timestamp() - max(ended_at)), 0)::float8 FROM newest
        WHERE state = 'failed' AND place < coalesce((SELECT min(place) FROM newest WHERE state <> 'failed'), 100)
        """,
        {"pool": pool},
    ).fetchone()
    assert row is not None
    return int(row[0]), float(row[1])


def ask(conn: Connection, identity: UUID, pool: str, options: Mapping[str, Any], why: str) -> str:
    """Write down that a host is wanted; returns the name of its node, the first of the pool that nobody has."""
    with conn.transaction():
        taken = conn.execute("SELECT node FROM store.host_job WHERE ended_at IS NULL").fetchall()
        names = {name for (name,) in taken}
        number = 1
        while (node := f"{pool}-{number}") in names or _is_other(conn, node):
            number += 1
        conn.execute(
            "INSERT INTO store.host_job (id, pool, provider, node, options, why) VALUES (%s, %s, %s, %s, %s, %s)",
            [identity, pool, options["type"], node, _json(options), why],
        )
    return node


def _is_other(conn: Connection, node: str) -> bool:
    """Tell whether somebody started a node of this name by hand."""
    row = conn.execute("SELECT 1 FROM store.node WHERE name = %s AND state <> 'gone'", [node]).fetchone()
    return row is not None


def submitted(conn: Connection, identity: UUID, native: str) -> None:
    """Note the provider's name of a job; one that has started by now says so itself."""
    conn.execute(
        """
        UPDATE store.host_job SET native = %s, submitted_at = coalesce(submitted_at, clock_timestamp()), reason = '',
          next_step = '', state = CASE WHEN state IN ('requested', 'refused') THEN 'pending' ELSE state END
        WHERE id = %s AND ended_at IS NULL AND native IN ('', %s)
        """,
        [native, identity, native],
    )


def refused(conn: Connection, identity: UUID, reason: str, next_step: str, again_s: float) -> None:
    """Note why the provider took no job; it is asked again after `again_s`."""
    conn.execute(
        """
        UPDATE store.host_job SET state = 'refused', reason = %s, next_step = %s, tries = tries + 1,
          try_at = clock_timestamp() + make_interval(secs => %s)
        WHERE id = %s AND ended_at IS NULL AND native = ''
        """,
        [reason[:MOST_WORDS], next_step, again_s, identity],
    )


def seen(conn: Connection, identity: UUID, state: str, reason: str, place: str, started_at: float | None) -> None:
    """Note what the provider says of a job that has not ended; one that leaves is still leaving."""
    conn.execute(
        """
        UPDATE store.host_job SET state = CASE WHEN state = 'leaving' THEN state ELSE %(state)s END,
          reason = %(reason)s, next_step = '', place = %(place)s,
          started_at = coalesce(started_at, to_timestamp(%(started)s::float8))
        WHERE id = %(id)s AND ended_at IS NULL
          AND (state NOT IN (%(state)s, 'leaving') OR reason <> %(reason)s OR next_step <> '' OR place <> %(place)s
               OR (started_at IS NULL AND %(started)s::float8 IS NOT NULL))
        """,
        {"id": identity, "state": state, "reason": reason[:MOST_WORDS], "place": place, "started": started_at},
    )


def unheard(conn: Connection, jobs: Sequence[UUID], words: str, next_step: str) -> None:
    """Note at jobs that who was asked for them does not answer; they stay as they were."""
    conn.execute(
        "UPDATE store.host_job SET reason = %s, next_step = %s "
        "WHERE id = ANY(%s) AND ended_at IS NULL AND (reason, next_step) IS DISTINCT FROM (%s, %s)",
        [words[:MOST_WORDS], next_step, list(jobs), words[:MOST_WORDS], next_step],
    )


def revise(conn: Connection, identity: UUID, options: Mapping[str, Any]) -> None:
    """Ask once more at once for a job that was refused, as its pool says now."""
    conn.execute(
        """
        UPDATE store.host_job SET options = %s, try_at = clock_timestamp(), tries = 0
        WHERE id = %s AND state = 'refused' AND ended_at IS NULL
        """,
        [_json(options), identity],
    )


def _json(value: object) -> str:
    return orjson.dumps(value).decode()


@for_nodes(own_job("identity"))
def claim(conn: Connection, identity: UUID, native: str) -> bool:
    """Begin to work as the job of a row. False when another job does, or nobody wants it any more."""
    cursor = conn.execute(
        """
        UPDATE store.host_job SET native = %s, state = 'running',
          submitted_at = coalesce(submitted_at, clock_timestamp()),
          started_at = coalesce(started_at, clock_timestamp())
        WHERE id = %s AND ended_at IS NULL AND NOT unwanted AND native IN ('', %s)
        """,
        [native, identity, native],
    )
    return cursor.rowcount == 1


@for_nodes(own_job("identity"))
def is_used(conn: Connection, identity: UUID) -> bool:
    """Tell whether something may run on the host of a job still."""
    found = job(conn, identity)
    if found is None or found.unwanted or found.ended_at is not None or not found.node_state:
        return False
    return bool(found.leases) or found.node_state != "draining"


@for_nodes(both(own_job("identity"), moment("leaving_at")))
def leave(conn: Connection, identity: UUID, why: str, leaving_at: float | None) -> bool:
    """Drain the node of a job that is about to go: what runs there moves. False when it leaves already."""
    why = why[:MOST_WORDS]
    with conn.transaction():
        row = conn.execute(
            """
            UPDATE store.host_job SET state = 'leaving', why = %s, leaving_at = to_timestamp(%s)
            WHERE id = %s AND ended_at IS NULL AND state IN ('running', 'pending') RETURNING node
            """,
            [why, leaving_at, identity],
        ).fetchone()
        if row is None:
            return False
        drain(conn, row[0], leaving_at)
    return True


def drain(conn: Connection, node: str, leaving_at: float | None) -> None:
    """Let what runs on the node of a job that leaves move, also where the node registered after it was to leave."""
    conn.execute(
        """
        UPDATE store.node SET state = 'draining', drain_mode = 'move', drain_deadline = to_timestamp(%s),
          drain_by = %s, drain_since = clock_timestamp(), ruled = ruled + 1
        WHERE name = %s AND state NOT IN ('gone', 'draining')
        """,
        [leaving_at, BY, node],
    )


def unwant(conn: Connection, identity: UUID, why: str) -> bool:
    """Say that a job is to be cancelled. False when it has ended."""
    query = "UPDATE store.host_job SET unwanted = true, why = %s WHERE id = %s AND ended_at IS NULL"
    return conn.execute(query, [why, identity]).rowcount == 1


def idle(conn: Connection, identity: UUID, is_idle: bool) -> None:
    """Note whether nobody uses a host, since when."""
    conn.execute(
        """
        UPDATE store.host_job SET idle_since = CASE WHEN %(idle)s THEN coalesce(idle_since, clock_timestamp()) END
        WHERE id = %(id)s AND (idle_since IS NULL) = %(idle)s
        """,
        {"id": identity, "idle": is_idle},
    )


def ended(conn: Connection, found: HostJob, state: str, reason: str) -> None:
    """Note that a job is over (`ended`, or `failed`), and with it everything on its host."""
    with conn.transaction():
        cursor = conn.execute(
            "UPDATE store.host_job SET state = %s, reason = %s, ended_at = clock_timestamp() "
            "WHERE id = %s AND ended_at IS NULL",
            [state, reason[:MOST_WORDS], found.id],
        )
        if cursor.rowcount == 1:
            leases.end_of_node(conn, found.node, f"the {found.provider} job of its host ended")
            conn.execute(
                """
                UPDATE store.node SET state = 'gone', drain_mode = '', drain_deadline = NULL, drain_by = '',
                  drain_since = NULL, note = '', ruled = ruled + 1 WHERE name = %s
                """,
                [found.node],
            )
            conn.execute(
                """
                UPDATE store.device SET state_before = 'ready', state = 'lost', drain_mode = '', drain_deadline = NULL,
                  drain_by = '', drain_since = NULL, note = '' WHERE node = %s
                """,
                [found.node],
            )
            conn.execute(
                "DELETE FROM store.host_job WHERE id IN (SELECT id FROM store.host_job WHERE pool = %s "
                "AND ended_at IS NOT NULL ORDER BY ended_at DESC, id DESC OFFSET %s)",
                [found.pool, MOST_ENDED],
            )
