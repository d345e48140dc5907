"""The worker processes' way to the store: a small pool of connections, or the door of nodes that have a token."""

from contextlib import AbstractContextManager
from typing import Protocol

import psycopg
from psycopg_pool import ConnectionPool

from flexmarl.store import schema, sessions
from flexmarl.store.connection import NOTICED, STATEMENT_S, bound

IDLE_IN_TRANSACTION_S = 10
"""The server ends a session that stalls inside a transaction, so that its locks cannot stop a successor."""


class StorePool(Protocol):
    """Gives out what functions of the store take in the place of a connection."""

    def connection(self) -> AbstractContextManager[psycopg.Connection]:
        """Give out a connection, or what carries operations to where there is one."""


def open_pool(url: str, name: str, size: int) -> ConnectionPool[psycopg.Connection]:
    """Open a pool of autocommit connections and check the schema. Raises SchemaMismatch, SessionsNotKept or
    psycopg's errors."""
    sessions.check(url)
    with psycopg.connect(url, autocommit=True, application_name=name, **NOTICED) as conn:
        schema.check(conn)
    return ConnectionPool(
        url,
        min_size=1,
        max_size=size,
        kwargs={"autocommit": True, "application_name": name, **NOTICED},
        configure=_bounded,
        max_idle=60.0,
        reconnect_timeout=float("inf"),
        name=name,
        open=True,
    )


def _bounded(conn: psycopg.Connection) -> None:
    bound(conn, idle_in_transaction_session_timeout=IDLE_IN_TRANSACTION_S, statement_timeout=STATEMENT_S)
