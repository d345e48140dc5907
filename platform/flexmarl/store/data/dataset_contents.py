"""Rows of imported datasets: written once by the control plane, read by whoever plays them, named by their digest.

Invariant: a digest's rows are all there or not at all, and never change.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from psycopg import Connection

from flexmarl.store.node_operations import anyone, for_nodes

READ_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class ContentRow:
    """A row as it is kept."""

    held_out: bool
    prompt: str
    line: bytes


def put(conn: Connection, digest: str, rows: Iterable[ContentRow], count: int) -> bool:
    """Write rows; False where they are there already."""
    with conn.transaction():
        made = conn.execute(
            "INSERT INTO store.dataset (digest, rows) VALUES (%s, %s) ON CONFLICT DO NOTHING", [digest, count]
        )
        if made.rowcount == 0:
            return False
        copy_rows = "COPY store.dataset_row (digest, place, held_out, prompt, line) FROM STDIN"
        with conn.cursor() as cursor, cursor.copy(copy_rows) as copy:
            for place, row in enumerate(rows, start=1):
                copy.write_row((digest, place, row.held_out, row.prompt, row.line))
    return True


@for_nodes(anyone)
def lines(conn: Connection, digest: str) -> Iterator[tuple[bool, bytes]]:
    """Read the rows of a dataset, (held out, line), in order; a piece at a time."""
    last = 0
    while True:
        rows = conn.execute(
            "SELECT place, held_out, line FROM store.dataset_row WHERE digest = %s AND place > %s ORDER BY place "
            "LIMIT %s",
            [digest, last, READ_AT_ONCE],
        ).fetchall()
        if not rows:
            return
        last = rows[-1][0]
        yield from ((held_out, bytes(line)) for _, held_out, line in rows)
