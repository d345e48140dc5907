"""How busy devices and pools were, from closed intervals over all runs."""

from psycopg import Connection


def busy_devices(conn: Connection, window_s: float) -> dict[str, float]:
    """Return the share of the last seconds in which each device was busy; devices that did nothing are missing."""
    rows = conn.execute(
        """
        WITH bounds AS (SELECT extract(epoch FROM clock_timestamp())::float8 AS until)
        SELECT i.device_id, sum(least(i.t1, b.until) - greatest(i.t0, b.until - %(window)s))::float8 / %(window)s
        FROM store.interval i, bounds b WHERE i.t1 > b.until - %(window)s AND i.t0 < b.until GROUP BY i.device_id
        """,
        {"window": window_s},
    ).fetchall()
    return {device_id: min(1.0, max(0.0, share)) for device_id, share in rows}


def busy_hours(conn: Connection, since: float) -> dict[tuple[str, int], float]:
    """Return the busy device-seconds of each pool in each hour since a moment: (pool, start of the hour) -> seconds."""
    rows = conn.execute(
        """
        SELECT d.pool, h.hour, sum(least(i.t1, h.hour + 3600) - greatest(i.t0, h.hour, %(since)s))::float8
        FROM store.interval i JOIN store.device d ON d.id = i.device_id,
          generate_series(
            floor(greatest(i.t0, %(since)s) / 3600)::bigint * 3600, floor(i.t1 / 3600)::bigint * 3600, 3600
          ) AS h(hour)
        WHERE i.t1 > %(since)s GROUP BY d.pool, h.hour
        """,
        {"since": since},
    ).fetchall()
    return {(pool, int(hour)): max(0.0, seconds) for pool, hour, seconds in rows}
