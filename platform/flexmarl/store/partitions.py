"""Tables of a run's rows: `episode` and `sample` are parted by run, so that a run leaves without touching the others.

Invariants: where a run's rows lie follows from its number alone and never changes. One number in `RESERVED` is kept
for a large run, whose rows have a table of their own; runs of the other numbers share one table per `BLOCK` numbers,
so that thousands of small runs leave a handful of tables. A table is made when the first run of it starts; a draft has
none.

Attaching a ready table never blocks writers of other runs. A run's own table is detached without blocking anybody and
only then dropped; rows in a shared table are deleted, and the room is used by later runs of its block. What was
interrupted at any point is finished by the next call. Waiting for readers ends after `LOCK_TIMEOUT`, so that a
retirement never queues everybody else behind itself: it fails and is repeated later.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from psycopg import Connection, sql

PARTITIONED = ("episode", "sample")
RESERVED = 16
"""One number in so many is for a large run."""
BLOCK = 128
"""Numbers of runs that share a table: PostgreSQL 15 cannot check rows against a list of a thousand values."""
LARGE_SAMPLES = 1_000_000
"""Samples that a run may come to before it is a large one."""
LOCK_TIMEOUT = "2s"
_ATTACH_LOCK = 0x464C455A


def is_reserved(run_id: int) -> bool:
    """Say whether a number is one for a large run."""
    return run_id % RESERVED == RESERVED - 1


def ensure(conn: Connection, run_id: int) -> None:
    """Make sure that there are tables for a run's rows, in the caller's transaction."""
    for table in PARTITIONED:
        if has_own(conn, table, run_id):
            continue
        if is_reserved(run_id):
            attach(conn, table, run_id)
        else:
            _attach_block(conn, table, run_id // BLOCK)


def attach(conn: Connection, table: str, run_id: int) -> None:
    """Make a run's own table, in the caller's transaction."""
    names = _names(table, run_id)
    conn.execute(sql.SQL("CREATE TABLE {leaf} (LIKE {parent} INCLUDING ALL, CHECK (run_id = {run}))").format(**names))
    conn.execute(sql.SQL("ALTER TABLE {parent} ATTACH PARTITION {leaf} FOR VALUES IN ({run})").format(**names))


def attach_again(conn: Connection, table: str, run_id: int) -> None:
    """Take a detachment back."""
    names = _names(table, run_id)
    conn.execute(sql.SQL("ALTER TABLE {parent} ATTACH PARTITION {leaf} FOR VALUES IN ({run})").format(**names))


def has_own(conn: Connection, table: str, run_id: int) -> bool:
    """Say whether a run has a table of its own, attached or not."""
    row = conn.execute("SELECT to_regclass(%s) IS NOT NULL", [f"store.{table}_{run_id}"]).fetchone()
    return row is not None and bool(row[0])


def is_detached(conn: Connection, table: str, run_id: int) -> bool:
    """Tell whether a run's own table stands alone."""
    row = conn.execute(
        "SELECT NOT relispartition FROM pg_class WHERE oid = to_regclass(%s)", [f"store.{table}_{run_id}"]
    ).fetchone()
    return row is not None and bool(row[0])


def detach(conn: Connection, table: str, run_id: int) -> None:
    """Detach a run's own table without blocking anybody, finishing what was interrupted. Needs autocommit."""
    row = conn.execute(
        """
        SELECT (SELECT inhdetachpending FROM pg_inherits WHERE inhrelid = c.oid)
        FROM pg_class c WHERE c.oid = to_regclass(%s)
        """,
        [f"store.{table}_{run_id}"],
    ).fetchone()
    if row is None or row[0] is None:
        return
    how = sql.SQL("FINALIZE") if row[0] else sql.SQL("CONCURRENTLY")
    statement = sql.SQL("ALTER TABLE {parent} DETACH PARTITION {leaf} ").format(**_names(table, run_id))
    conn.execute(statement + how)


def drop(conn: Connection, table: str, run_id: int) -> None:
    """Drop a detached table; one that is gone is no error."""
    conn.execute(sql.SQL("DROP TABLE IF EXISTS {leaf}").format(**_names(table, run_id)))


@contextmanager
def lock_timeout(conn: Connection) -> Iterator[None]:
    """Let statements of this connection wait for locks no longer than `LOCK_TIMEOUT`."""
    conn.execute("SELECT set_config('lock_timeout', %s, false)", [LOCK_TIMEOUT])
    try:
        yield
    finally:
        conn.execute("SELECT set_config('lock_timeout', '0', false)")


def _block_exists(conn: Connection, table: str, block: int) -> bool:
    row = conn.execute("SELECT to_regclass(%s) IS NOT NULL", [f"store.{table}_block_{block}"]).fetchone()
    return row is not None and bool(row[0])


def _attach_block(conn: Connection, table: str, block: int) -> None:
    """Make the table that the runs of a block share; of two who begin at once one makes it."""
    if _block_exists(conn, table, block):
        return
    conn.execute("SELECT pg_advisory_xact_lock(%s)", [_ATTACH_LOCK])
    if _block_exists(conn, table, block):
        return
    numbers = range(block * BLOCK, (block + 1) * BLOCK)
    owned = conn.execute(
        "SELECT number FROM unnest(%s::bigint[]) AS number WHERE to_regclass(%s || number) IS NOT NULL",
        [list(numbers), f"store.{table}_"],
    ).fetchall()
    shared = sorted({number for number in numbers if not is_reserved(number)} - {row[0] for row in owned})
    names: dict[str, sql.Composable] = {
        "parent": sql.Identifier("store", table),
        "leaf": sql.Identifier("store", f"{table}_block_{block}"),
        "runs": sql.SQL(", ").join(map(sql.Literal, shared)),
    }
    conn.execute(sql.SQL("CREATE TABLE {leaf} (LIKE {parent} INCLUDING ALL)").format(**names))
    conn.execute(sql.SQL("ALTER TABLE {parent} ATTACH PARTITION {leaf} FOR VALUES IN ({runs})").format(**names))


def _names(table: str, run_id: int) -> dict[str, sql.Composable]:
    return {
        "parent": sql.Identifier("store", table),
        "leaf": sql.Identifier("store", f"{table}_{run_id}"),
        "run": sql.Literal(run_id),
    }
