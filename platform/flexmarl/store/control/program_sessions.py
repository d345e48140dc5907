"""Sessions of agent programs: `open -> taken -> [awaiting_reward ->] finished | ended`, `open -> ended`.

Invariants. A session is handed out once, only while the worker that plays it is there, and its key is stored nowhere.
The first report that brings a reward or an error stands: who reports again is told what stands. A session that has
ended takes none, and one whose worker fell silent has ended, whatever its row says. A session that awaits its reward
takes a report before its deadline and ends for want of one after it, both by the clock of the database: never both.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson
from psycopg import Connection

from flexmarl.store import storable
from flexmarl.store.node_operations import anyone, for_nodes, run_with_work, sessions_with_work

SILENT_S = 10.0
"""A session whose worker was silent for longer is over."""
SILENT = "gateway: the rollout worker that played it is gone"
"""Why it is."""
LIVE = ("open", "taken", "awaiting_reward")
"""States of a session that is not over."""

_IS_SILENT = f"state IN {LIVE} AND seen_at < clock_timestamp() - interval '{SILENT_S:g} s'"
_STATE = f"CASE WHEN {_IS_SILENT} THEN 'ended' ELSE state END"
_REASON = f"CASE WHEN {_IS_SILENT} THEN '{SILENT}' ELSE reason END"


@dataclass(frozen=True, slots=True)
class SessionOffer:
    """A session that waits for a program."""

    id: UUID
    base_url: str
    held_out: bool
    task: int
    episode: tuple[int, int, int]
    """Draw, member and attempt of the episode that it plays."""
    key_digest: str | None = None
    """Of the key of a program that its worker starts itself; None: it waits for one that takes it."""


@dataclass(frozen=True, slots=True)
class SessionMeter:
    """How far a session is, as its worker says."""

    id: UUID
    calls: int
    """Answered."""
    tokens: int
    """Sampled in these."""
    left_s: float
    """Of the time that its program may take between calls."""


@dataclass(frozen=True, slots=True)
class SessionNews:
    """What its worker has to know of a session."""

    id: UUID
    state: str
    key_digest: str
    report: dict[str, Any]
    overdue: bool
    """Whether it awaits a reward whose deadline has passed."""


@dataclass(frozen=True, slots=True)
class SessionCounts:
    """How many sessions of a run stand in each state."""

    open: int
    taken: int
    awaiting_reward: int
    finished: int
    ended: int
    reason: str
    """Why the one ended that ended last; empty where none has ended."""


@for_nodes(run_with_work("run_id"))
def open_session(conn: Connection, run_id: int, offer: SessionOffer) -> None:
    """Write down a session that waits for a program, or has one from the beginning."""
    conn.execute(
        """
        INSERT INTO store.program_session
          (id, run_id, base_url, held_out, task, draw, member, attempt, key_digest, state, taken_at)
        SELECT v.*, CASE WHEN v.key_digest IS NULL THEN 'open' ELSE 'taken' END,
          CASE WHEN v.key_digest IS NOT NULL THEN clock_timestamp() END
        FROM (VALUES (%s::uuid, %s::bigint, %s, %s::boolean, %s::int, %s::int, %s::int, %s::int, %s::text))
          AS v (id, run_id, base_url, held_out, task, draw, member, attempt, key_digest)
        """,
        [offer.id, run_id, offer.base_url, offer.held_out, offer.task, *offer.episode, offer.key_digest],
    )


@for_nodes(sessions_with_work("sessions"))
def news(conn: Connection, sessions: Sequence[UUID]) -> list[SessionNews]:
    """Return those of a worker's sessions that a program has taken."""
    rows = conn.execute(
        """
        SELECT id, state, key_digest, report,
          state = 'awaiting_reward' AND reward_deadline_at <= clock_timestamp()
        FROM store.program_session WHERE id = ANY(%s) AND key_digest IS NOT NULL
        """,
        [list(sessions)],
    ).fetchall()
    return [SessionNews(*row) for row in rows]


@for_nodes(sessions_with_work("meters"))
def seen(conn: Connection, meters: Sequence[SessionMeter]) -> None:
    """Say that the worker of these sessions is there, and how far they are."""
    conn.execute(
        """
        UPDATE store.program_session s SET seen_at = clock_timestamp(), calls = m.calls, tokens = m.tokens,
          left_s = m.left_s
        FROM unnest(%s::uuid[], %s::int[], %s::int[], %s::real[]) AS m(id, calls, tokens, left_s) WHERE s.id = m.id
        """,
        [[getattr(meter, name) for meter in meters] for name in SessionMeter.__slots__],
    )


@for_nodes(sessions_with_work("session"))
def end(conn: Connection, session: UUID, reason: str) -> None:
    """End a session without a report that counts."""
    conn.execute(
        "UPDATE store.program_session SET state = 'ended', reason = %s, ended_at = clock_timestamp() WHERE id = %s",
        [reason, session],
    )


@for_nodes(sessions_with_work("session"))
def end_overdue(conn: Connection, session: UUID, reason: str) -> None:
    """End a session whose reward has not arrived by its deadline."""
    conn.execute(
        """
        UPDATE store.program_session SET state = 'ended', reason = %s, ended_at = clock_timestamp()
        WHERE id = %s AND state = 'awaiting_reward' AND reward_deadline_at <= clock_timestamp()
        """,
        [reason, session],
    )


@for_nodes(sessions_with_work("session"))
def wrote(conn: Connection, session: UUID, output: str, changes: dict[str, Any] | None = None, image: str = "") -> None:
    """Keep the end of what the program of a session wrote, what it made of its workspace (None: it had none), and the
    image of its container (empty: it had none)."""
    kept = None if changes is None else storable.json(orjson.dumps(changes).decode())
    conn.execute(
        "UPDATE store.program_session SET output = %s, changes = %s::jsonb, image = %s WHERE id = %s",
        [output, kept, image, session],
    )


def take(conn: Connection, run_id: int, key_digest: str, by: str = "") -> UUID | None:
    """Hand out the session of a run that has waited longest to an actor; None while there is none."""
    row = conn.execute(
        f"""
        UPDATE store.program_session SET state = 'taken', key_digest = %(key)s, taken_at = clock_timestamp(),
          taken_by = %(by)s
        WHERE id = (
          SELECT id FROM store.program_session WHERE run_id = %(run)s AND state = 'open'
            AND seen_at >= clock_timestamp() - interval '{SILENT_S:g} s'
          ORDER BY opened_at LIMIT 1 FOR UPDATE SKIP LOCKED)
        RETURNING id
        """.encode(),
        {"key": key_digest, "run": run_id, "by": by},
    ).fetchone()
    return None if row is None else UUID(str(row[0]))


def counts(conn: Connection, run_id: int) -> SessionCounts:
    """Count the sessions of a run by state."""
    row = conn.execute(
        f"""
        SELECT count(*) FILTER (WHERE state = 'open'), count(*) FILTER (WHERE state = 'taken'),
          count(*) FILTER (WHERE state = 'awaiting_reward'), count(*) FILTER (WHERE state = 'finished'),
          count(*) FILTER (WHERE state = 'ended'),
          coalesce((array_agg(reason ORDER BY at DESC) FILTER (WHERE state = 'ended'))[1], '')
        FROM (SELECT {_STATE} AS state, {_REASON} AS reason, coalesce(ended_at, seen_at) AS at
          FROM store.program_session WHERE run_id = %s) AS s
        """.encode(),
        [run_id],
    ).fetchone()
    assert row is not None
    return SessionCounts(*row)


@for_nodes(anyone)
def reason_of(conn: Connection, key_digest: str) -> str | None:
    """Return why the session of a key is over; None for a key that nobody was given."""
    row = conn.execute(
        f"SELECT {_STATE}, {_REASON} FROM store.program_session WHERE key_digest = %s".encode(), [key_digest]
    ).fetchone()
    return None if row is None else f"{row[0]}: {row[1]}" if row[1] else str(row[0])


@for_nodes(run_with_work("run_id"))
def report(conn: Connection, run_id: int, session: UUID, said: dict[str, Any], by: str = "") -> bool:
    """Note what a program reports, and who sends it; False where the session takes no report any more."""
    row = conn.execute(
        f"""
        UPDATE store.program_session SET state = 'finished', report = %s::jsonb, reported_by = %s,
          ended_at = clock_timestamp() WHERE run_id = %s AND id = %s AND {_STATE} IN ('taken', 'awaiting_reward')
          AND coalesce(reward_deadline_at, 'infinity') > clock_timestamp() RETURNING id
        """.encode(),
        [storable.json(orjson.dumps(said).decode()), by, run_id, session],
    ).fetchone()
    return row is not None


def has_acted_before(conn: Connection, run_id: int, session: UUID, by: str) -> bool:
    """Tell whether an actor took another session of a run than this one, or reported on one."""
    row = conn.execute(
        """
        SELECT 1 FROM store.program_session
        WHERE run_id = %s AND id <> %s AND (taken_by = %s OR reported_by = %s) LIMIT 1
        """,
        [run_id, session, by, by],
    ).fetchone()
    return row is not None


def await_reward(conn: Connection, run_id: int, session: UUID, timeout_s: float, by: str = "") -> bool:
    """Note that the program of a session has ended and its reward comes later; False where the session is over."""
    row = conn.execute(
        f"""
        UPDATE store.program_session SET state = 'awaiting_reward', reported_by = %s,
          reward_deadline_at = clock_timestamp() + make_interval(secs => %s)
        WHERE run_id = %s AND id = %s AND {_STATE} = 'taken' RETURNING id
        """.encode(),
        [by, timeout_s, run_id, session],
    ).fetchone()
    return row is not None
