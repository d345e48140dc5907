"""Application of `schema.sql`.

Invariant: `store.meta` holds the version of the tables that exist. `migrate` creates them where they are absent; every
process that uses the store calls `check` once and refuses to start on another version.
"""

from importlib.resources import files

from psycopg import Connection

from flexmarl.store.errors import SchemaMismatch

VERSION = "1"
"""Version of `schema.sql`."""

_APPLY_LOCK = 0x464C4558  # advisory lock number, so that two processes never apply at once


def apply(conn: Connection) -> None:
    """Create the tables where they are absent. Raises SchemaMismatch on a database of another version."""
    with conn.transaction():
        conn.execute("SELECT pg_advisory_xact_lock(%s)", [_APPLY_LOCK])
        if version(conn) is None:
            conn.execute(files("flexmarl.store").joinpath("schema.sql").read_text(encoding="utf-8").encode())
            conn.execute("INSERT INTO store.meta (key, value) VALUES ('version', %s)", [VERSION])
        check(conn)


def check(conn: Connection) -> None:
    """Raise SchemaMismatch unless the database holds exactly this code's schema."""
    found = version(conn)
    if found is None:
        raise SchemaMismatch("the database holds no experience store: run `manage.py migrate`")
    if found != VERSION:
        raise SchemaMismatch(
            f"the database holds schema version {found}, which this code does not know: use the code that made it"
        )


def version(conn: Connection) -> str | None:
    """Return the version the database holds, None when the schema is absent."""
    row = conn.execute("SELECT to_regclass('store.meta') IS NOT NULL").fetchone()
    if row is None or not row[0]:
        return None
    row = conn.execute("SELECT value FROM store.meta WHERE key = 'version'").fetchone()
    return None if row is None else str(row[0])
