"""Version and application of `schema.sql`.

Invariant: `store.meta` names the version of the tables that exist. A Django migration applies it; every process that
uses the store calls `check` once and refuses to start on a difference.
"""

from importlib.resources import files

from psycopg import Connection

from flexmarl.store.errors import SchemaMismatch

VERSION = "1"

_APPLY_LOCK = 0x464C4558  # advisory lock number, so that two processes never apply at once


def apply(conn: Connection) -> None:
    """Create the schema where it is absent. Raises SchemaMismatch when another version exists."""
    with conn.transaction():
        conn.execute("SELECT pg_advisory_xact_lock(%s)", [_APPLY_LOCK])
        found = version(conn)
        if found is None:
            conn.execute(files("flexmarl.store").joinpath("schema.sql").read_text(encoding="utf-8").encode())
            conn.execute("INSERT INTO store.meta (key, value) VALUES ('version', %s)", [VERSION])
        elif found != VERSION:
            raise SchemaMismatch(f"the database holds schema version {found}, this code needs {VERSION}")


def check(conn: Connection) -> None:
    """Raise SchemaMismatch unless the database holds exactly this code's schema."""
    found = version(conn)
    if found != VERSION:
        raise SchemaMismatch(f"the database holds schema version {found}, this code needs {VERSION}: run migrations")


def version(conn: Connection) -> str | None:
    """Return the version the database holds, None when the schema is absent."""
    row = conn.execute("SELECT to_regclass('store.meta') IS NOT NULL").fetchone()
    if row is None or not row[0]:
        return None
    row = conn.execute("SELECT value FROM store.meta WHERE key = 'version'").fetchone()
    return None if row is None else str(row[0])
