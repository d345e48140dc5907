"""A run's own tables: `episode` and `sample` are parted by run, so that a run leaves without touching the others.

Invariants: attaching a ready table never blocks writers of other runs; a table is detached without blocking anybody
and only then dropped. What was interrupted at any point is finished by the next call. Waiting for readers ends after
`LOCK_TIMEOUT`, so that a retirement never queues everybody else behind itself: it fails and is repeated later.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from psycopg import Connection, sql

PARTITIONED = ("episode", "sample")
LOCK_TIMEOUT = "2s"


def attach(conn: Connection, table: str, run_id: int) -> None:
    """Make a run's table, in the caller's transaction."""
    names = _names(table, run_id)
    conn.execute(sql.SQL("CREATE TABLE {leaf} (LIKE {parent} INCLUDING ALL, CHECK (run_id = {run}))").format(**names))
    conn.execute(sql.SQL("ALTER TABLE {parent} ATTACH PARTITION {leaf} FOR VALUES IN ({run})").format(**names))


def attach_again(conn: Connection, table: str, run_id: int) -> None:
    """Take a detachment back."""
    names = _names(table, run_id)
    conn.execute(sql.SQL("ALTER TABLE {parent} ATTACH PARTITION {leaf} FOR VALUES IN ({run})").format(**names))


def is_detached(conn: Connection, table: str, run_id: int) -> bool:
    """Tell whether a run's table stands alone."""
    row = conn.execute(
        "SELECT NOT relispartition FROM pg_class WHERE oid = to_regclass(%s)", [f"store.{table}_{run_id}"]
    ).fetchone()
    return row is not None and bool(row[0])


def detach(conn: Connection, table: str, run_id: int) -> None:
    """Detach without blocking anybody, finishing a detachment that was interrupted. Needs autocommit."""
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


def _names(table: str, run_id: int) -> dict[str, sql.Composable]:
    return {
        "parent": sql.Identifier("store", table),
        "leaf": sql.Identifier("store", f"{table}_{run_id}"),
        "run": sql.Literal(run_id),
    }
