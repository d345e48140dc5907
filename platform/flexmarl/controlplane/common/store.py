"""The one door from Django to `flexmarl.store`.

Store functions take a psycopg connection. This is Django's own connection of the thread, so what they write commits
or rolls back with the rows around it, and their reads see them. Django's connection leaves JSON as text; cursors
made here load it as psycopg does everywhere else.
"""

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

import psycopg
from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.db import connection as django_connection
from psycopg.conninfo import make_conninfo
from psycopg.pq import TransactionStatus
from psycopg.types.json import JsonbLoader, JsonLoader

from flexmarl.store import sessions
from flexmarl.store.errors import SessionsNotKept

P = ParamSpec("P")
T = TypeVar("T")
_OURS = {"application_name", "pool", "purposes"}


class StoreConnection:
    """Django's psycopg connection with psycopg's own cursors. Everything else is passed through."""

    def __init__(self, raw: psycopg.Connection[Any]) -> None:
        self._raw = raw

    def cursor(self, *args: Any, **options: Any) -> psycopg.Cursor[Any]:
        """Open a cursor that loads JSON; same arguments as `psycopg.Connection.cursor`, without server-side names."""
        kept = {name: value for name, value in options.items() if name == "row_factory" and value is not None}
        cursor: psycopg.Cursor[Any] = psycopg.Cursor(self._raw, **kept)
        cursor.adapters.register_loader("json", JsonLoader)
        cursor.adapters.register_loader("jsonb", JsonbLoader)
        if options.get("binary"):
            cursor.format = psycopg.pq.Format.BINARY
        return cursor

    def execute(self, query: Any, params: Any = None, **options: Any) -> psycopg.Cursor[Any]:
        """Execute a query on a new cursor and return the cursor."""
        return self.cursor(binary=options.pop("binary", False)).execute(query, params, **options)

    def transaction(self, *args: Any, **options: Any) -> Any:
        """Open a transaction, or a savepoint inside Django's.

        Django's `atomic` begins on the server with its first statement. A store function that is this first statement
        would take its own transaction for the outermost one and commit it.
        """
        if django_connection.in_atomic_block and self._raw.info.transaction_status == TransactionStatus.IDLE:
            self._raw.execute("SELECT 1")
        return self._raw.transaction(*args, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)


def store_connection() -> psycopg.Connection[Any]:
    """Return the thread's connection for store functions. Inside `atomic` it is in that transaction."""
    django_connection.ensure_connection()
    return cast("psycopg.Connection[Any]", StoreConnection(django_connection.connection))


def giving_back(read: Callable[P, T]) -> Callable[P, Awaitable[T]]:
    """Run a read of a stream in the request's thread, and give its connection back: its reader may be slow."""

    @wraps(read)
    def once(*args: P.args, **options: P.kwargs) -> T:
        try:
            return read(*args, **options)
        finally:
            if not django_connection.in_atomic_block:
                django_connection.close()

    return sync_to_async(once)


class EachTime:
    """Takes a connection anew for each statement: for streams, which give it back while their reader is slow."""

    def execute(self, *args: Any, **options: Any) -> psycopg.Cursor[Any]:
        """Execute a query on the thread's connection of this moment."""
        return store_connection().execute(*args, **options)


def require_sessions() -> None:
    """Refuse a pooler that shares sessions between transactions. Raises ImproperlyConfigured.

    A database that is away refuses nothing: who needs it waits for it.
    """
    try:
        sessions.check(database_url())
    except SessionsNotKept as error:
        raise ImproperlyConfigured(str(error)) from error
    except psycopg.OperationalError:
        return


def database_url() -> str:
    """Return the connection string of Django's database, for connections of a process's own."""
    options = django_connection.settings_dict
    names = {"dbname": "NAME", "user": "USER", "password": "PASSWORD", "host": "HOST", "port": "PORT"}
    values = {name: options[key] for name, key in names.items() if options[key]}
    extra = {k: str(v) for k, v in options["OPTIONS"].items() if isinstance(v, str | int) and k not in _OURS}
    return make_conninfo(**values, **extra)
