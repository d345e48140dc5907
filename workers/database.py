"""The worker processes' way to the store: a small pool of connections, or the door of nodes that have a token."""

from contextlib import AbstractContextManager
from typing import Protocol

import psycopg
from psycopg_pool import ConnectionPool

from flexmarl.store import schema
from flexmarl.store.connection import STATEMENT_S

IDLE_IN_TRANSACTION_S = 10
"""The server ends a session that stalls inside a transaction, so that its locks cannot stop a successor."""


class StorePool(Protocol):
    """Gives out what functions of the store take in the place of a connection."""

    def connection(self) -> AbstractContextManager[psycopg.Connection]:
        """Give out a connection, or what carries operations to where there is one."""


def open_pool(url: str, name: str, size: int) -> ConnectionPool[psycopg.Connection]:
    """Open a pool of autocommit connections and check the schema. Raises SchemaMismatch or psycopg's errors."""
    options = f"-c idle_in_transaction_session_timeout={IDLE_IN_TRANSACTION_S}s -c statement_timeout={STATEMENT_S:g}s"
    with psycopg.connect(url, autocommit=True, application_name=name, connect_timeout=10) as conn:
        schema.check(conn)
    return ConnectionPool(
        url,
        min_size=1,
        max_size=size,
        kwargs={"autocommit": True, "application_name": name, "options": options, "connect_timeout": 10},
        max_idle=60.0,
        reconnect_timeout=float("inf"),
        name=name,
        open=True,
    )
