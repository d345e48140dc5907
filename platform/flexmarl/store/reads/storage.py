"""What takes the room, per run and kind: measured by the janitor, read by pages and by limits of size.

Invariants: sizes of rows are shares of their tables by number of rows, indexes and free room included, so that they
sum up to what the tables take. Files are counted as they lie on the machine that measures. Whoever reads finds what
was measured last, never half of a measurement, and waits for nobody.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from psycopg import Connection, sql

SAMPLES, EPISODES, EVENTS, LOG, SERIES, PAYLOADS, CHECKPOINTS = KINDS = (
    "samples", "episodes", "events", "log", "series", "payloads", "checkpoints",
)  # fmt: skip
_TABLES = {
    SAMPLES: ("sample",), EPISODES: ("episode",), EVENTS: ("event", "handled", "command", "micro_batch", "ruling"),
    LOG: ("log", "note"), SERIES: ("metric", "metric_span", "interval"),
}  # fmt: skip
"""Tables of each kind; the first two are parted by run."""


@dataclass(frozen=True, slots=True)
class Use:
    run_id: int
    kind: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Pass:
    """What a janitor found and did last. Times in seconds since the epoch."""

    began_at: float
    ended_at: float
    host: str
    places: Mapping[str, int]
    done: list[dict[str, Any]]


def measure(conn: Connection) -> list[Use]:
    """Count the rows of every run, and share out what their tables take."""
    found: dict[tuple[int, str], tuple[int, int]] = {}
    for kind, tables in _TABLES.items():
        for table in tables:
            for leaf in _leaves(conn, table):
                for run_id, rows, size in _shares(conn, leaf):
                    before = found.get((run_id, kind), (0, 0))
                    found[(run_id, kind)] = (before[0] + rows, before[1] + size)
    kept = conn.execute(
        "SELECT run_id, count(*), sum(bytes)::bigint FROM store.checkpoint WHERE state <> 'removed' GROUP BY run_id"
    ).fetchall()
    found |= {(run_id, CHECKPOINTS): (count, size) for run_id, count, size in kept}
    return [Use(run_id, kind, rows, size) for (run_id, kind), (rows, size) in found.items()]


def save(conn: Connection, uses: Iterable[Use], done: Pass) -> None:
    """Replace what was measured before."""
    kept = list(uses)
    with conn.transaction():
        conn.execute("DELETE FROM store.storage_use")
        conn.execute(
            "INSERT INTO store.storage_use (run_id, kind, rows, bytes) "
            "SELECT * FROM unnest(%b::bigint[], %b::text[], %b::bigint[], %b::bigint[])",
            [[u.run_id for u in kept], [u.kind for u in kept], [u.rows for u in kept], [u.bytes for u in kept]],
        )
        conn.execute(
            """
            INSERT INTO store.storage_pass (began_at, ended_at, host, places, done)
            VALUES (to_timestamp(%s), to_timestamp(%s), %s, %s::jsonb, %s::jsonb)
            ON CONFLICT (one) DO UPDATE SET began_at = excluded.began_at, ended_at = excluded.ended_at,
              host = excluded.host, places = excluded.places, done = excluded.done
            """,
            [done.began_at, done.ended_at, done.host, _json(dict(done.places)), _json(done.done)],
        )


def last_pass(conn: Connection) -> Pass | None:
    """Return what the janitor said last; None before its first round."""
    row = conn.execute(
        "SELECT extract(epoch FROM began_at)::float8, extract(epoch FROM ended_at)::float8, host, places, done "
        "FROM store.storage_pass"
    ).fetchone()
    return None if row is None else Pass(*row)


def uses(conn: Connection) -> list[Use]:
    """Return what was measured last."""
    return [Use(*row) for row in conn.execute("SELECT run_id, kind, rows, bytes FROM store.storage_use").fetchall()]


def total(conn: Connection, kinds: Iterable[str]) -> int:
    """Sum up what some kinds took when it was measured last."""
    row = conn.execute(
        "SELECT coalesce(sum(bytes), 0)::bigint FROM store.storage_use WHERE kind = ANY(%s)", [list(kinds)]
    ).fetchone()
    return 0 if row is None else int(row[0])


def by_end(conn: Connection, kinds: Iterable[str], ended: Iterable[str]) -> list[tuple[int, int]]:
    """List ended runs that take some room, those that ended first in front: (run, bytes)."""
    rows = conn.execute(
        """
        SELECT u.run_id, sum(u.bytes)::bigint FROM store.storage_use u JOIN store.run_state r USING (run_id)
        WHERE u.kind = ANY(%s) AND u.rows > 0 AND r.status = ANY(%s) AND r.finished_at IS NOT NULL
        GROUP BY u.run_id, r.finished_at ORDER BY r.finished_at, u.run_id
        """,
        [list(kinds), list(ended)],
    ).fetchall()
    return [(row[0], row[1]) for row in rows]


def database_bytes(conn: Connection) -> int:
    """Return what the database takes, without its write-ahead log."""
    row = conn.execute("SELECT pg_database_size(current_database())").fetchone()
    return 0 if row is None else int(row[0])


def _leaves(conn: Connection, table: str) -> list[str]:
    rows = conn.execute(
        "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid "
        "WHERE i.inhparent = to_regclass(%s) ORDER BY 1",
        [f"store.{table}"],
    ).fetchall()
    return [row[0] for row in rows] if table in ("sample", "episode") else [table]


def _shares(conn: Connection, leaf: str) -> list[tuple[int, int, int]]:
    name = sql.Identifier("store", leaf)
    rows = conn.execute(sql.SQL("SELECT run_id, count(*) FROM {} GROUP BY run_id").format(name)).fetchall()
    size = conn.execute("SELECT pg_total_relation_size(to_regclass(%s))", [f"store.{leaf}"]).fetchone()
    whole, count = int((size or (0,))[0] or 0), sum(row[1] for row in rows)
    return [(run_id, rows_of, whole * rows_of // count) for run_id, rows_of in rows]


def _json(value: object) -> str:
    return orjson.dumps(value).decode()
