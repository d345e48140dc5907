"""Django's PostgreSQL backend: one pool per purpose, each with its bounds, and connections that can be cancelled.

`DATABASES[...]["OPTIONS"]["purposes"]` holds the limits by purpose; without `pool` in the options each thread opens
connections of its own, with the same bounds of statements.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import psycopg
from django.db.backends.postgresql import base
from psycopg_pool import ConnectionPool

from flexmarl.controlplane.common import database
from flexmarl.controlplane.common.database import ConnectionLimits, Purpose, RequestConnections
from flexmarl.store.connection import NOTICED, bound


class DatabaseWrapper(base.DatabaseWrapper):
    """A thread's connection."""

    _pools: ClassVar[dict[tuple[str, Purpose], ConnectionPool]] = {}
    _work: RequestConnections | None = None
    _configure_connection: Callable[[Any], None]

    @property
    def pool(self) -> ConnectionPool | None:
        """The pool of what is done now; None where connections are not pooled."""
        if not self.settings_dict["OPTIONS"].get("pool"):
            return None
        purpose = database.current_purpose()
        if (self.alias, purpose) not in self._pools:
            limits = self._limits(purpose)
            made: ConnectionPool = ConnectionPool(
                kwargs={**self.get_connection_params(), "autocommit": True},
                open=False,
                configure=partial(self._bounded, purpose),
                # A connection is tried before use: after a restart of the server all of them are dead.
                check=ConnectionPool.check_connection,
                name=f"{self.alias}.{purpose}",
                min_size=1,
                max_size=limits.connections,
                timeout=limits.wait_s,
            )
            self._pools.setdefault((self.alias, purpose), made)  # another thread may have been faster
        return self._pools[self.alias, purpose]

    def close_pool(self) -> None:
        """Close the pools of every purpose."""
        for key in [key for key in self._pools if key[0] == self.alias]:
            self._pools.pop(key).close()

    def get_connection_params(self) -> dict[str, Any]:
        """Add what a connection of this purpose is called."""
        params: dict[str, Any] = {**NOTICED, **super().get_connection_params()}
        params.pop("purposes", None)
        purpose = database.current_purpose()
        params["application_name"] = f"{params.get('application_name', 'flexmarl')}.{purpose}"
        return params

    def init_connection_state(self) -> None:
        """Bound a connection of this thread's own as well; those of a pool come with their bounds."""
        super().init_connection_state()
        if self.connection is not None and self.pool is None:
            self._bound(self.connection, database.current_purpose())

    def _bounded(self, purpose: Purpose, connection: psycopg.Connection[Any]) -> None:
        """Prepare a new connection of a pool, in a thread that knows of no request."""
        self._configure_connection(connection)
        self._bound(connection, purpose)

    def _bound(self, connection: psycopg.Connection[Any], purpose: Purpose) -> None:
        bound(connection, statement_timeout=self._limits(purpose).statement_s)

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        """Open a connection or take one of the pool, and note it with the request at hand."""
        connection = super().get_new_connection(conn_params)
        self._work = database.work.get()
        if self._work is not None:
            self._work.taken(connection)
        return connection

    def _close(self) -> None:
        if self._work is not None and self.connection is not None:
            self._work.given_back(self.connection)
            self._work = None
        super()._close()  # type: ignore[misc] # a method that its stubs do not name

    def _limits(self, purpose: Purpose) -> ConnectionLimits:
        found: ConnectionLimits = self.settings_dict["OPTIONS"]["purposes"][purpose]
        return found
