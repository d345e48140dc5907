"""Log lines of ended runs leave by age and by size; the run's events, curves and episodes stay."""

from psycopg import Connection

from flexmarl.contracts.status import TERMINAL
from flexmarl.store.control import deletions

_ENDED = [status.value for status in TERMINAL]


def due(conn: Connection, ended_for_s: float) -> list[int]:
    """Find runs that ended so long ago and still have lines."""
    rows = conn.execute(
        """
        SELECT r.run_id FROM store.run_state r WHERE r.status = ANY(%s)
          AND r.finished_at < clock_timestamp() - make_interval(secs => %s::float8)
          AND EXISTS (SELECT 1 FROM store.log l WHERE l.run_id = r.run_id) ORDER BY r.finished_at
        """,
        [_ENDED, ended_for_s],
    ).fetchall()
    return [row[0] for row in rows]


def remove(conn: Connection, run_id: int) -> int:
    """Remove the lines of a run that has ended, some at a time; returns how many. Needs autocommit."""
    row = conn.execute(
        "SELECT count(*) FROM store.log l JOIN store.run_state r USING (run_id) "
        "WHERE l.run_id = %s AND r.status = ANY(%s)",
        [run_id, _ENDED],
    ).fetchone()
    if row is None or not row[0]:
        return 0
    deletions.delete_rows(conn, "log", run_id)
    return int(row[0])
