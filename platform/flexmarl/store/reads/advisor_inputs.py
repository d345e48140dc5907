"""What the advisor looks at, for many runs at once: ends of series, open work, truncated samples, the clock.

Invariant: each function is one query, whatever the number of runs. Values that are no finite numbers are left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import Connection

from flexmarl.store.data.spans import EACH_TURN

ENDS = 20
"""Points at the beginning of a series that are read, and at its end when not more are asked for."""
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
class Moment:
    """What a run is at. Times are in seconds since the epoch on the database's clock."""

    run_id: int
    now: float
    last_event: float | None
    """When it last handled a fact."""
    work: list[OpenWork]
    """What is asked and not settled, by kind and policy, oldest first."""
    samples: dict[str, tuple[int, int]]
    """Policy -> (samples of the newest episode groups that ended because their length was used up, all of them)."""


def series_ends(conn: Connection, run_ids: Sequence[int], names: Sequence[str], newest: int = ENDS) -> list[SeriesEnds]:
    """Read both ends of series of some runs; `newest` values of the end."""
    rows = conn.execute(
        """
        SELECT s.run_id, s.name, s.agent, s.stat,
          ARRAY(SELECT value FROM store.metric m WHERE (m.run_id, m.name, m.agent, m.stat)
            = (s.run_id, s.name, s.agent, s.stat) AND value - value = 0 ORDER BY step LIMIT %(ends)s),
          ARRAY(SELECT value FROM store.metric m WHERE (m.run_id, m.name, m.agent, m.stat)
            = (s.run_id, s.name, s.agent, s.stat) AND value - value = 0 ORDER BY step DESC LIMIT %(newest)s),
          s.points
        FROM (SELECT run_id, name, agent, stat, sum(points)::int AS points FROM store.metric_span
              WHERE run_id = ANY(%(runs)s) AND name = ANY(%(names)s) GROUP BY 1, 2, 3, 4) s
        """,
        {"runs": list(run_ids), "names": list(names), "ends": ENDS, "newest": newest},
    ).fetchall()
    return [SeriesEnds(row[0], row[1], row[2], row[3], tuple(row[4]), tuple(row[5]), row[6]) for row in rows]


def moments(conn: Connection, run_ids: Sequence[int], kinds: Sequence[str]) -> list[Moment]:
    """Read what each run is at; `kinds` are the commands that count as work."""
    rows = conn.execute(
        f"""
        SELECT r.run_id, extract(epoch FROM clock_timestamp())::float8,
          (SELECT extract(epoch FROM e.at)::float8 FROM store.event e WHERE e.run_id = r.run_id
            ORDER BY seq DESC LIMIT 1),
          ARRAY(
            SELECT jsonb_build_array(kind, coalesce(body->>'policy', ''), coalesce(body->>'origin', ''), count(*),
              extract(epoch FROM min(created_at))::float8)
            FROM store.command c WHERE c.run_id = r.run_id AND status IN ('open', 'taken') AND kind = ANY(%(kinds)s)
            GROUP BY kind, body->>'policy', body->>'origin' ORDER BY min(created_at)),
          ARRAY(
            SELECT jsonb_build_array(policy, count(*) FILTER (WHERE t.finish = 'length'), count(*))
            FROM store.sample s, {EACH_TURN} WHERE s.run_id = r.run_id
              AND s.draw > (SELECT max(draw) FROM store.sample t WHERE t.run_id = r.run_id) - %(draws)s
            GROUP BY policy)
        FROM unnest(%(runs)s::bigint[]) AS r (run_id)
        """.encode(),
        {"runs": list(run_ids), "kinds": list(kinds), "draws": DRAWS},
    ).fetchall()
    return [
        Moment(
            run_id, now, last, [OpenWork(run_id, *one) for one in work], {p: (cut, every) for p, cut, every in samples}
        )
        for run_id, now, last, work, samples in rows
    ]
