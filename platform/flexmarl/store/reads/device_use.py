"""Time of devices that runs have held."""

from collections.abc import Sequence

from psycopg import Connection


def device_hours(conn: Connection, run_ids: Sequence[int]) -> float:
    """Return the hours for which runs have leased devices, summed over devices, to this moment."""
    row = conn.execute(
        """
        SELECT coalesce(sum(extract(epoch FROM coalesce(ended_at, now()) - granted_at)), 0)::float8 / 3600
        FROM store.lease WHERE run_id = ANY(%s)
        """,
        [list(run_ids)],
    ).fetchone()
    return float(row[0]) if row else 0.0
