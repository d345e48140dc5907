"""Application of `schema.sql` and of the upgrades behind it.

Invariant: `store.meta` names every file that was applied to the tables that exist. `schema.sql` is the first version;
each file of `upgrades/` changes what stands before it and is never edited once released. `migrate` applies what is
missing, in the order of the names; every process that uses the store calls `check` once and refuses to start on a
difference.
"""

from importlib.resources import files

from psycopg import Connection

from flexmarl.store.errors import SchemaMismatch

VERSION = "1"
"""Version of `schema.sql`, the base of all upgrades."""

_APPLY_LOCK = 0x464C4558  # advisory lock number, so that two processes never apply at once
_PREFIX = "upgrade:"


def upgrades() -> list[str]:
    """List the upgrades that this code knows, in the order in which they are applied."""
    folder = files("flexmarl.store").joinpath("upgrades")
    return sorted(entry.name.removesuffix(".sql") for entry in folder.iterdir() if entry.name.endswith(".sql"))


def apply(conn: Connection) -> None:
    """Create what is absent and apply the missing upgrades. Raises SchemaMismatch on a newer database."""
    with conn.transaction():
        conn.execute("SELECT pg_advisory_xact_lock(%s)", [_APPLY_LOCK])
        if version(conn) is None:
            _run(conn, "schema.sql")
            conn.execute("INSERT INTO store.meta (key, value) VALUES ('version', %s)", [VERSION])
        _refuse_unknown(conn)
        done = _applied(conn)
        for name in upgrades():
            if name not in done:
                _run(conn, f"upgrades/{name}.sql")
                conn.execute("INSERT INTO store.meta (key, value) VALUES (%s, now()::text)", [_PREFIX + name])


def check(conn: Connection) -> None:
    """Raise SchemaMismatch unless the database holds exactly this code's schema."""
    if version(conn) is None:
        raise SchemaMismatch("the database holds no experience store: run `manage.py migrate`")
    _refuse_unknown(conn)
    missing = [name for name in upgrades() if name not in _applied(conn)]
    if missing:
        raise SchemaMismatch(f"the database lacks the upgrades {', '.join(missing)}: run `manage.py migrate`")


def version(conn: Connection) -> str | None:
    """Return the base version the database holds, None when the schema is absent."""
    row = conn.execute("SELECT to_regclass('store.meta') IS NOT NULL").fetchone()
    if row is None or not row[0]:
        return None
    row = conn.execute("SELECT value FROM store.meta WHERE key = 'version'").fetchone()
    return None if row is None else str(row[0])


def _applied(conn: Connection) -> set[str]:
    rows = conn.execute("SELECT key FROM store.meta WHERE starts_with(key, %s)", [_PREFIX]).fetchall()
    return {str(row[0]).removeprefix(_PREFIX) for row in rows}


def _refuse_unknown(conn: Connection) -> None:
    found = version(conn)
    newer = sorted(_applied(conn) - set(upgrades()))
    if found != VERSION or newer:
        held = f"schema version {found}" + (f" with {', '.join(newer)}" if newer else "")
        raise SchemaMismatch(f"the database holds {held}, which this code does not know: use the code that made it")


def _run(conn: Connection, name: str) -> None:
    folder = files("flexmarl.store")
    conn.execute(folder.joinpath(*name.split("/")).read_text(encoding="utf-8").encode())
