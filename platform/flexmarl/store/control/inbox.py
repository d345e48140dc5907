"""Facts on their way to the driver.

Invariants: a producer key reaches the log once per run. `put_event` refuses a key that is queued or already handled;
a repetition that slips in while the driver's transaction commits is told apart by whoever reads the inbox after that.
No order is promised: only the driver numbers events. Facts are read ahead (`ask`, `heard`) and leave with `move`, in
the transaction of what they led to, which fails when one of them is not there any more.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from psycopg import Connection, Cursor

from flexmarl.contracts.events import Event, RunVerb, Verb, event_adapter
from flexmarl.store import partitions, storable

CHANNEL = "flexmarl_inbox"
"""NOTIFY channel of the drivers; the payload is the run's number."""


@dataclass(frozen=True, slots=True)
class TakenEvent:
    producer_key: str
    event: Event
    put_at: float


class WaitingFact(NamedTuple):
    """A row of the inbox, as it lies there."""

    id: int
    producer_key: str
    body: str
    known: bool
    """A repetition of what is handled; it leaves without reaching the log."""


@dataclass(frozen=True, slots=True)
class WaitingFacts:
    """Facts that waited at a time of the database's clock."""

    now: float
    facts: Sequence[WaitingFact]


def put_event(conn: Connection, run_id: int, producer_key: str, event: Event) -> bool:
    """Queue one fact, in the caller's transaction. False when its key is known already."""
    return put_events(conn, run_id, [(producer_key, event)]) == 1


def put_events(conn: Connection, run_id: int, events: Sequence[tuple[str, Event]]) -> int:
    """Queue facts under their producer keys and hint the driver; returns how many were new."""
    row = conn.execute(
        """
        WITH put AS (
          INSERT INTO store.inbox (run_id, producer_key, body)
          SELECT %(run)s, e.key, e.body::jsonb
          FROM unnest(%(keys)b::text[], %(bodies)b::text[]) WITH ORDINALITY AS e(key, body, ord)
          WHERE NOT EXISTS (SELECT 1 FROM store.handled h WHERE h.run_id = %(run)s AND h.producer_key = e.key)
          ORDER BY e.ord
          ON CONFLICT (run_id, producer_key) DO NOTHING
          RETURNING id
        ), counted AS (SELECT count(*) AS new FROM put)
        SELECT new, CASE WHEN new > 0 THEN pg_notify(%(channel)s, %(run)s::text)::text END FROM counted
        """,
        {
            "run": run_id,
            "keys": [key for key, _ in events],
            "bodies": [storable.json(event.model_dump_json()) for _, event in events],
            "channel": CHANNEL,
        },
    ).fetchone()
    assert row is not None
    return int(row[0])


def put_verb(conn: Connection, run_id: int, producer_key: str, verb: RunVerb) -> bool:
    """Queue a verb and show it as pending until the driver has handled it; a start makes the tables of the rows."""
    with conn.transaction():
        if verb.verb is Verb.START:
            partitions.ensure(conn, run_id)
        new = put_event(conn, run_id, producer_key, verb)
        if new:
            conn.execute("UPDATE store.run_state SET pending_verb = %s WHERE run_id = %s", [verb.verb.value, run_id])
    return new


def take_events(conn: Connection, run_id: int, limit: int = 256) -> list[TakenEvent]:
    """Remove up to `limit` facts, oldest first. Call inside the transaction that appends them to the log.

    Rows that a stalled driver still holds are skipped, not waited for; they come back when its session ends.
    """
    rows = conn.execute(
        """
        WITH taken AS (
          DELETE FROM store.inbox WHERE id IN (
            SELECT id FROM store.inbox WHERE run_id = %(run)s ORDER BY id LIMIT %(limit)s FOR UPDATE SKIP LOCKED)
          RETURNING id, producer_key, body::text AS body, extract(epoch FROM put_at)::float8 AS put_at
        )
        SELECT producer_key, body, put_at FROM taken t
        WHERE NOT EXISTS (SELECT 1 FROM store.handled h WHERE h.run_id = %(run)s AND h.producer_key = t.producer_key)
        ORDER BY id
        """,
        {"run": run_id, "limit": limit},
    ).fetchall()
    return [TakenEvent(key, event_adapter.validate_json(body), put_at) for key, body, put_at in rows]


def ask(conn: Connection, run_id: int, behind: int, besides: Sequence[int], at_most: int) -> Cursor[Any]:
    """Ask for facts with numbers behind one, oldest first; in a pipeline, for `heard` to read later.

    Numbers become visible out of order: whoever has read everything behind one must look from the start again.
    """
    return conn.cursor(binary=True).execute(
        """
        SELECT extract(epoch FROM clock_timestamp())::float8, f.id, f.producer_key, f.body, f.known
        FROM (VALUES (1)) AS always(one) LEFT JOIN
          store.facts_waiting(%(run)s::bigint, %(behind)s::bigint, %(besides)b::bigint[], %(most)s::int) f ON true
        """,
        {"run": run_id, "behind": behind, "besides": list(besides), "most": at_most},
    )


def heard(answer: Cursor[Any]) -> WaitingFacts:
    """Read the answer to `ask`. Whatever a pipeline sent before it has succeeded then, or its error is raised."""
    rows = answer.fetchall()
    return WaitingFacts(rows[0][0], [WaitingFact._make(row[1:]) for row in rows if row[1] is not None])


def move(conn: Connection, run_id: int, ids: Sequence[int], seqs: Sequence[int], at: float) -> None:
    """Move facts to their places in the log, without sending them to and fro. Fails when one is not there."""
    if ids:
        conn.execute(
            "SELECT store.move_facts(%(run)s::bigint, %(ids)b::bigint[], %(seqs)b::bigint[], to_timestamp(%(at)s))",
            {"run": run_id, "ids": list(ids), "seqs": list(seqs), "at": at},
        )


def discard(conn: Connection, run_id: int, ids: Sequence[int]) -> None:
    """Remove facts that do not reach the log as they are."""
    if ids:
        conn.execute("DELETE FROM store.inbox WHERE run_id = %s AND id = ANY(%s)", [run_id, list(ids)])


def drop_events(conn: Connection, run_id: int) -> None:
    """Remove what nobody can read."""
    conn.execute("DELETE FROM store.inbox WHERE run_id = %s", [run_id])


def waiting(conn: Connection, run_id: int) -> int:
    """Count the facts the driver has not taken."""
    row = conn.execute("SELECT count(*) FROM store.inbox WHERE run_id = %s", [run_id]).fetchone()
    assert row is not None
    return int(row[0])
