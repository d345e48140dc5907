"""What a reader of the store is sent: bytes of each column of its results."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import psycopg


@contextmanager
def column_reads(conn: psycopg.Connection) -> Iterator[Counter[str]]:
    """Count the bytes of each column that statements of a connection bring while the block runs, by name."""
    found: Counter[str] = Counter()

    class Counting(psycopg.Cursor[Any]):
        def execute(self, *given: Any, **options: Any) -> Self:
            super().execute(*given, **options)
            result = self.pgresult
            for column in range(result.nfields if result is not None else 0):
                assert result is not None
                name = (result.fname(column) or b"").decode()
                found[name] += sum(len(result.get_value(row, column) or b"") for row in range(result.ntuples))
            return self

    before, conn.cursor_factory = conn.cursor_factory, Counting
    try:
        yield found
    finally:
        conn.cursor_factory = before
