"""How busy devices and pools were, from closed intervals over all runs."""

from psycopg import Connection


def busy_devices(conn: Connection, window_s: float) -> dict[str, float]:
    """Return each leased device's busy share of the last seconds, or of the time its lease has lasted if that is less.

    The same definition as a run's timeline: closed intervals of the lease over the part of the window in which it held
    the device.
    """
    rows = conn.execute(
        """
        WITH held AS (
          SELECT id, device_id, n.until,
            greatest(n.until - %(window)s, extract(epoch FROM granted_at)::float8) AS since
          FROM store.lease, (SELECT extract(epoch FROM clock_timestamp())::float8 AS until) n WHERE state <> 'ended'
        )
        SELECT h.device_id,
          coalesce(sum(least(i.t1, h.until) - greatest(i.t0, h.since)) FILTER (WHERE i.lease_id IS NOT NULL), 0)::float8
            / greatest(h.until - h.since, 0.001)
        FROM held h LEFT JOIN store.interval i ON i.lease_id = h.id AND i.t1 > h.since AND i.t0 < h.until
        GROUP BY h.device_id, h.since, h.until
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
