"""What the advisor looks at, for many runs at once: ends of series, open work, truncated samples.

Invariant: each function is one query, whatever the number of runs. Values that are no finite numbers are left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import Connection

ENDS = 20
"""Points at the beginning and at the end of a series that are read."""
DRAWS = 16
"""Newest episode groups whose samples are looked at."""


@dataclass(frozen=True, slots=True)
class SeriesEnds:
    run_id: int
    name: str
    agent: str
    stat: str
    first: tuple[float, ...]
    """First values, oldest first."""
    newest: tuple[float, ...]
    """Newest values, newest first."""
    points: int


@dataclass(frozen=True, slots=True)
class OpenWork:
    """Commands of one kind that are not settled. `since` is when the oldest was written."""

    run_id: int
    kind: str
    policy: str
    origin: str
    count: int
    since: float


@dataclass(frozen=True, slots=True)
class Truncated:
    """Newest training samples of a policy, and how many ended because their length was used up."""

    run_id: int
    policy: str
    samples: int
    truncated: int


def series_ends(conn: Connection, run_ids: Sequence[int], names: Sequence[str]) -> list[SeriesEnds]:
    """Read both ends of series of some runs."""
    rows = conn.execute(
        """
        SELECT s.run_id, s.name, s.agent, s.stat,
          ARRAY(SELECT value FROM store.metric m WHERE (m.run_id, m.name, m.agent, m.stat)
            = (s.run_id, s.name, s.agent, s.stat) AND value - value = 0 ORDER BY step LIMIT %(ends)s),
          ARRAY(SELECT value FROM store.metric m WHERE (m.run_id, m.name, m.agent, m.stat)
            = (s.run_id, s.name, s.agent, s.stat) AND value - value = 0 ORDER BY step DESC LIMIT %(ends)s),
          s.points
        FROM (SELECT run_id, name, agent, stat, sum(points)::int AS points FROM store.metric_span
              WHERE run_id = ANY(%(runs)s) AND name = ANY(%(names)s) GROUP BY 1, 2, 3, 4) s
        """,
        {"runs": list(run_ids), "names": list(names), "ends": ENDS},
    ).fetchall()
    return [SeriesEnds(row[0], row[1], row[2], row[3], tuple(row[4]), tuple(row[5]), row[6]) for row in rows]


def open_work(conn: Connection, run_ids: Sequence[int], kinds: Sequence[str]) -> list[OpenWork]:
    """List what is asked and not settled, by run, kind and policy."""
    rows = conn.execute(
        """
        SELECT run_id, kind, coalesce(body->>'policy', ''), coalesce(body->>'origin', ''), count(*),
          extract(epoch FROM min(created_at))::float8
        FROM store.command WHERE run_id = ANY(%s) AND status IN ('open', 'taken') AND kind = ANY(%s)
        GROUP BY 1, 2, 3, 4 ORDER BY 6
        """,
        [list(run_ids), list(kinds)],
    ).fetchall()
    return [OpenWork(*row) for row in rows]


def last_events(conn: Connection, run_ids: Sequence[int]) -> dict[int, float]:
    """Return when each run last handled a fact."""
    rows = conn.execute(
        """
        SELECT r.run_id, extract(epoch FROM e.at)::float8 FROM unnest(%s::bigint[]) AS r (run_id)
        CROSS JOIN LATERAL (SELECT at FROM store.event WHERE run_id = r.run_id ORDER BY seq DESC LIMIT 1) e
        """,
        [list(run_ids)],
    ).fetchall()
    return {int(run_id): float(at) for run_id, at in rows}


def truncated(conn: Connection, run_ids: Sequence[int]) -> list[Truncated]:
    """Count the truncated among the samples of each run's newest episode groups."""
    rows = conn.execute(
        """
        SELECT r.run_id, s.policy, count(*), count(*) FILTER (WHERE s.finish = 'length')
        FROM unnest(%s::bigint[]) AS r (run_id)
        CROSS JOIN LATERAL (SELECT max(draw) AS top FROM store.sample WHERE run_id = r.run_id) t
        JOIN store.sample s ON s.run_id = r.run_id AND s.draw > t.top - %s
        GROUP BY r.run_id, s.policy ORDER BY r.run_id, s.policy
        """,
        [list(run_ids), DRAWS],
    ).fetchall()
    return [Truncated(*row) for row in rows]
