"""Time of devices that runs have held."""

from collections.abc import Sequence
from dataclasses import dataclass

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


def held_devices(conn: Connection, run_id: int) -> dict[str, list[int]]:
    """Return what a run holds now: pool -> devices of each host, the host of most first; a shared one counts once."""
    rows = conn.execute(
        """
        SELECT l.pool, count(DISTINCT l.device_id) FROM store.lease l JOIN store.device d ON d.id = l.device_id
        WHERE l.run_id = %s AND l.ended_at IS NULL GROUP BY l.pool, d.node ORDER BY l.pool, count(*) DESC
        """,
        [run_id],
    ).fetchall()
    found: dict[str, list[int]] = {}
    for pool, count in rows:
        found.setdefault(pool, []).append(int(count))
    return found


@dataclass(frozen=True, slots=True)
class PoolUse:
    """What a run has used of a pool's devices until a moment."""

    pool: str
    at: float
    """Seconds since the epoch."""
    hours: float
    """Device hours; a device that an engine and a trainer share counts once."""
    priced_hours: float
    """Of these, in which the pool had a price."""
    cost: float
    """Of the priced hours, each at the price of its time."""


def pool_use(conn: Connection, run_id: int, parts: int) -> list[PoolUse]:
    """Return what a run has used of each pool, at the ends of so many equal parts of its time until now, or its end.

    Ordered by time, then by pool. Empty before the first lease.
    """
    rows = conn.execute(
        """
        WITH held AS (
          SELECT pool, device_id,
            unnest(range_agg(tstzrange(granted_at, greatest(granted_at, coalesce(ended_at, now()))))) AS span
          FROM store.lease WHERE run_id = %(run)s GROUP BY pool, device_id
        ), priced AS (
          SELECT pool, price, tstzrange(since, lead(since) OVER (PARTITION BY pool ORDER BY since)) AS span
          FROM store.pool_price WHERE pool IN (SELECT pool FROM held)
        ), ends AS (
          SELECT began + no * (ended - began) / %(parts)s AS at
          FROM (SELECT min(lower(span)) AS began, max(upper(span)) AS ended FROM held) AS whole,
            generate_series(1, %(parts)s) AS no WHERE began IS NOT NULL
        ), used AS (
          SELECT held.pool, ends.at, held.span * tstzrange(NULL, ends.at) AS span FROM held CROSS JOIN ends
        ), hours AS (
          SELECT pool, at, sum(extract(epoch FROM upper(span) - lower(span))) / 3600 AS hours
          FROM used WHERE NOT isempty(span) GROUP BY pool, at
        ), costs AS (
          SELECT used.pool, used.at, sum(part) / 3600 AS hours, sum(part * price) / 3600 AS cost
          FROM used JOIN priced ON priced.pool = used.pool AND priced.span && used.span AND price IS NOT NULL,
            LATERAL (SELECT extract(epoch FROM upper(priced.span * used.span) - lower(priced.span * used.span)) AS part)
              AS overlap
          WHERE NOT isempty(used.span) GROUP BY used.pool, used.at
        )
        SELECT h.pool, extract(epoch FROM h.at)::float8, h.hours::float8, coalesce(c.hours, 0)::float8,
          coalesce(c.cost, 0)::float8
        FROM hours h LEFT JOIN costs c ON c.pool = h.pool AND c.at = h.at ORDER BY h.at, h.pool
        """,
        {"run": run_id, "parts": parts},
    ).fetchall()
    return [PoolUse(*row) for row in rows]
