"""How many statements a page or an answer needs, of both kinds.

Django counts what its own cursors execute; what the store reads goes through cursors of psycopg on the same
connection, which Django does not see. Both end in `psycopg.Cursor`, so this is where they are counted.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import psycopg
import pytest
from django.db import connection
from psycopg import sql

WIDTH = 300
"""Characters of a statement that a failure shows."""


@contextmanager
def counted() -> Iterator[list[str]]:
    """Yield a list that receives each statement of this thread's connection, with the rows' door it came through."""
    connection.ensure_connection()
    raw, found = connection.connection, []
    execute, many = psycopg.Cursor.execute, psycopg.Cursor.executemany

    def note(cursor: psycopg.Cursor[Any], query: Any) -> None:
        if cursor.connection is raw:
            door = "store" if type(cursor) is psycopg.Cursor else "django"
            text = query.as_string(raw) if isinstance(query, sql.Composable) else str(query)
            found.append(f"{door}: {' '.join(text.split())}")

    def one(cursor: psycopg.Cursor[Any], query: Any, *args: Any, **options: Any) -> Any:
        note(cursor, query)
        return execute(cursor, query, *args, **options)

    def several(cursor: psycopg.Cursor[Any], query: Any, *args: Any, **options: Any) -> Any:
        note(cursor, query)
        return many(cursor, query, *args, **options)

    with patch.object(psycopg.Cursor, "execute", one), patch.object(psycopg.Cursor, "executemany", several):
        yield found


@contextmanager
def at_most(most: int, what: str = "") -> Iterator[list[str]]:
    """Fail with the statements listed when the block executes more than `most` of them, or none at all."""
    with counted() as found:
        yield found
    if not 0 < len(found) <= most:
        listed = "\n".join(statement[:WIDTH] for statement in found)
        pytest.fail(f"{what or 'This'} took {len(found)} statements, {most} at most are meant:\n{listed}")
