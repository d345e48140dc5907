"""Whether a connection is one session of the server from its first statement to its last.

LISTEN, advisory locks, time limits and prepared statements belong to a session. A pooler between client and server may
give each transaction another one: then hints are lost, two processes hold one lock, and limits reach strangers.
Invariant: nothing is judged by the pooler's name or settings, only by which process of the server answers.
"""

import psycopg

from flexmarl.store.connection import NOTICED
from flexmarl.store.errors import SessionsNotKept

ROUNDS = 3
"""A busy pooler may by chance answer one look from the same session."""
_PROTOCOL = "08P01"
"""How PgBouncer refuses BEGIN where it gives each statement another session."""


def check(url: str) -> None:
    """Raise SessionsNotKept where sessions are shared, psycopg's OperationalError where nothing answers.

    A server that answers directly costs one statement.
    """
    with _connect(url) as conn:
        own = _process(conn)
        if own == conn.info.backend_pid:  # told by the server at the start of the session
            return
        for _ in range(ROUNDS):
            if _shared(conn, own, url):
                raise SessionsNotKept


def _shared(conn: psycopg.Connection, own: int, url: str) -> bool:
    """Have another client hold a transaction, and tell whether it got our session or we get another one."""
    with _connect(url) as other:
        try:
            with other.transaction():
                return _process(other) == own or _process(conn) != own
        except psycopg.OperationalError as error:
            if error.sqlstate != _PROTOCOL:
                raise
            return True


def _process(conn: psycopg.Connection) -> int:
    row = conn.execute("SELECT pg_backend_pid()").fetchone()
    assert row is not None
    return int(row[0])


def _connect(url: str) -> psycopg.Connection:
    # statement_timeout: not set, since it would reach others where sessions are shared
    return psycopg.connect(url, autocommit=True, application_name="flexmarl sessions", **NOTICED)
