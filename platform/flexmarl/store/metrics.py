"""Series of a run: what exists, and their points thinned without losing an extreme.

Invariant: a thinned series keeps its first and last point and, of every bucket between, the smallest and the largest
value, so a peak or a collapse is never averaged away.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt
from psycopg import Connection

Axis = Literal["step", "time", "samples"]

_AXIS = {"step": "step::float8", "time": "extract(epoch FROM at)::float8", "samples": "samples::float8"}


@dataclass(frozen=True, slots=True)
class SeriesSummary:
    name: str
    agent: str
    stat: str
    first: float
    last: float
    min: float
    max: float
    first_step: int
    last_step: int
    points: int


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    agent: str
    stat: str
    x: list[float]
    y: list[float]


def catalogue(conn: Connection, run_id: int) -> list[SeriesSummary]:
    """List the series of a run with their range, by name."""
    rows = conn.execute(
        """
        SELECT name, agent, stat, (array_agg(value ORDER BY step))[1], (array_agg(value ORDER BY step DESC))[1],
          min(value), max(value), min(step), max(step), count(*)
        FROM store.metric WHERE run_id = %s GROUP BY name, agent, stat ORDER BY name, agent, stat
        """,
        [run_id],
    ).fetchall()
    return [SeriesSummary(*row) for row in rows]


def series(
    conn: Connection,
    run_id: int,
    names: Sequence[str],
    *,
    agent: str | None = None,
    x: Axis = "step",
    start: float | None = None,
    end: float | None = None,
    max_points: int = 1000,
) -> list[Series]:
    """Read series by name, thinned to about `max_points` each. `start` and `end` bound the x axis, both included."""
    rows = conn.execute(
        f"""
        SELECT name, agent, stat, array_agg(x ORDER BY step), array_agg(value ORDER BY step)
        FROM (SELECT name, agent, stat, step, value, {_AXIS[x]} AS x FROM store.metric
              WHERE run_id = %(run)s AND name = ANY(%(names)s)
                AND (%(agent)s::text IS NULL OR agent = %(agent)s)) m
        WHERE (%(start)s::float8 IS NULL OR x >= %(start)s) AND (%(end)s::float8 IS NULL OR x <= %(end)s)
        GROUP BY name, agent, stat ORDER BY name, agent, stat
        """.encode(),
        {"run": run_id, "names": list(names), "agent": agent, "start": start, "end": end},
    ).fetchall()
    return [Series(name, role, stat, *thin(xs, ys, max_points)) for name, role, stat, xs, ys in rows]


def curves_of_runs(conn: Connection, run_ids: Sequence[int], name: str, points: int) -> dict[int, list[float]]:
    """Read a team series of many runs in one query: every k-th step back from the newest, about `points` of each."""
    rows = conn.execute(
        """
        SELECT m.run_id, array_agg(m.value ORDER BY m.step)
        FROM store.run_state r
        CROSS JOIN LATERAL generate_series(r.step, 1, -ceil(r.step / %(points)s::float8)::int) AS at (step)
        JOIN store.metric m ON m.run_id = r.run_id AND m.name = %(name)s AND m.agent = '' AND m.stat = 'mean'
          AND m.step = at.step
        WHERE r.run_id = ANY(%(runs)s) AND r.step > 0 GROUP BY m.run_id
        """,
        {"runs": list(run_ids), "name": name, "points": max(1, points)},
    ).fetchall()
    return dict(rows)


def last_of_runs(conn: Connection, run_ids: Sequence[int], name: str) -> dict[int, float]:
    """Read the newest value of a team series of many runs in one query."""
    rows = conn.execute(
        """
        SELECT r.run_id, m.value FROM unnest(%(runs)s::bigint[]) AS r (run_id)
        CROSS JOIN LATERAL (
          SELECT value FROM store.metric
          WHERE run_id = r.run_id AND name = %(name)s AND agent = '' AND stat = 'mean' ORDER BY step DESC LIMIT 1) m
        """,
        {"runs": list(run_ids), "name": name},
    ).fetchall()
    return dict(rows)


def runs_by_last(
    conn: Connection, name: str, agent: str, stat: str, at_least: float | None, at_most: float | None
) -> list[int]:
    """List the runs whose newest value of a series lies between two bounds, both included."""
    rows = conn.execute(
        """
        SELECT r.run_id FROM store.run_state r
        CROSS JOIN LATERAL (
          SELECT value FROM store.metric
          WHERE run_id = r.run_id AND name = %(name)s AND agent = %(agent)s AND stat = %(stat)s
          ORDER BY step DESC LIMIT 1) m
        WHERE r.step > 0 AND (%(low)s::float8 IS NULL OR m.value >= %(low)s)
          AND (%(high)s::float8 IS NULL OR m.value <= %(high)s)
        """,
        {"name": name, "agent": agent, "stat": stat, "low": at_least, "high": at_most},
    ).fetchall()
    return [row[0] for row in rows]


def thin(xs: list[float], ys: list[float], max_points: int) -> tuple[list[float], list[float]]:
    """Keep at most `max_points` of a series (at least 4), its ends and every bucket's extremes among them."""
    if len(xs) <= max(max_points, 4):
        return xs, ys
    values: npt.NDArray[np.float64] = np.asarray(ys, np.float64)
    buckets = max(1, (max_points - 2) // 2)
    edges = np.linspace(1, len(ys) - 1, buckets + 1).astype(int)
    keep = {0, len(ys) - 1}
    for low, high in pairwise(edges.tolist()):
        if high > low:
            keep |= {low + int(values[low:high].argmin()), low + int(values[low:high].argmax())}
    order = sorted(keep)
    return [xs[i] for i in order], [ys[i] for i in order]
