"""Rows of another run that a run's archive of replay begins with: samples under draws below 0, and the event that tells
of them, in one transaction.

Invariants: they are written once, before the run's first command, and have no episode: nobody played them here. Their
version is `ANOTHERS`, below every version of the run, so no figure takes them for rows of the weights that are trained.
"""

from collections.abc import Sequence

from psycopg import Connection

from flexmarl.contracts.imported_rows import RowsImported
from flexmarl.store import partitions
from flexmarl.store.control.inbox import put_event
from flexmarl.store.data.groups import SampleRow, copy_by_value

ANOTHERS = -1
"""Version of tokens that weights of another run sampled."""
_KEY = "rows_imported"


def put(conn: Connection, run_id: int, rows: Sequence[SampleRow], event: RowsImported) -> bool:
    """Write the rows and their event, in the caller's transaction; False where they are there already."""
    if not put_event(conn, run_id, _KEY, event):
        return False
    partitions.ensure(conn, run_id)
    copy_by_value(conn, run_id, rows)
    return True
