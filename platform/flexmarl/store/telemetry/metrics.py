"""Series of a run: what exists, and their points thinned without losing an extreme.

Invariant: a thinned series keeps its first and last point and, of every bucket between, the smallest and the largest
value, so a peak or a collapse is never averaged away. It holds for long series as well, which are read from summaries
of 256 steps (`metric_span`, kept by triggers in the transaction of the points): a bucket is made of whole summaries,
and a summary knows its extremes. Values that are no finite numbers are no points of a chart.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from psycopg import Connection, DataError
from psycopg.errors import QueryCanceled

from flexmarl.store.telemetry.metric_cells import Bucket, Cells, as_floats, as_steps, cut, pick

Axis = Literal["step", "time", "samples", "version"]
Key = tuple[str, str, str]
VERSION_SERIES = "policy/version"
"""Series of a policy that the axis `version` is made of."""
WHOLE = 8192
"""A series with at most this many points in the window is read point by point."""
SPAN = 256
EXPORT_ROWS = 10_000

_AXIS = {"step": "m.step::float8", "time": "extract(epoch FROM m.at)::float8", "samples": "m.samples::float8"}


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
    buckets: list[Bucket] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SeriesWindow:
    """What of the series is asked for: on which axis, between which values (both included), how fine."""

    x: Axis = "step"
    start: float | None = None
    end: float | None = None
    max_points: int = 1000
    buckets: bool = False


@dataclass(slots=True)
class _Plan:
    """How one series is read: ranges of steps point by point, the rest from summaries."""

    key: Key
    ranges: list[tuple[int, int]] = field(default_factory=list)
    spans: list[tuple[int | float, ...]] = field(default_factory=list)


def catalogue(conn: Connection, run_id: int) -> list[SeriesSummary]:
    """List the series of a run with their range, by name."""
    rows = conn.execute(
        """
        SELECT name, agent, stat, (array_agg(first_value ORDER BY span))[1],
          (array_agg(last_value ORDER BY span DESC))[1], min(min_value), max(max_value), min(first_step),
          max(last_step), sum(points)::bigint
        FROM store.metric_span WHERE run_id = %s GROUP BY name, agent, stat ORDER BY name, agent, stat
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
    window: SeriesWindow | None = None,
    policy_of: Mapping[str, str] | None = None,
) -> list[Series]:
    """Read series by name, thinned to about `max_points` each.

    On the axis `version` a point lies at the version that its agent's policy (`policy_of`, or the agent itself) had at
    the end of its step; series of the team have no such axis and are left out.
    """
    window = window or SeriesWindow()
    policies = policy_of or {}
    plans = _plans(conn, run_id, names, agent, window)
    if window.x == "version":
        plans = _bounded_by_version(conn, run_id, [plan for plan in plans if plan.key[1]], window, policies)
    raw = _points(conn, run_id, plans, window)
    found = []
    for plan, read in zip(plans, raw, strict=True):
        cells = read.joined(Cells.of_spans(plan.spans)).sorted()
        if len(cells):
            found.append(_drawn(conn, run_id, plan.key, cells, window, policies))
    return [one for one in found if one.x or one.buckets]


def matching(conn: Connection, names: Sequence[str], pattern: str) -> set[str] | None:
    """Return the names that a regular expression finds, whatever the case; None when it is none.

    The database matches, not Python: its engine does not backtrack, and it stops after a moment.
    """
    try:
        with conn.transaction():
            conn.execute("SET LOCAL statement_timeout = 500")
            rows = conn.execute("SELECT n FROM unnest(%s::text[]) n WHERE n ~* %s", [list(names), pattern]).fetchall()
            conn.execute("SET LOCAL statement_timeout = DEFAULT")
    except (DataError, QueryCanceled):
        return None
    return {row[0] for row in rows}


def export(
    conn: Connection, run_id: int, names: Sequence[str], agent: str | None = None
) -> Iterator[list[tuple[object, ...]]]:
    """Read every point as (name, agent, stat, step, at, samples, value), ordered, some thousand rows at a time."""
    after: tuple[object, ...] = ("", "", "", -(2**31))
    while True:
        rows = conn.execute(
            """
            SELECT name, agent, stat, step, extract(epoch FROM at)::float8, samples, value FROM store.metric
            WHERE run_id = %(run)s AND name = ANY(%(names)s) AND (%(agent)s::text IS NULL OR agent = %(agent)s)
              AND (name, agent, stat, step) > (%(a)s, %(b)s, %(c)s, %(d)s)
            ORDER BY name, agent, stat, step LIMIT %(limit)s
            """,
            {
                "run": run_id, "names": list(names), "agent": agent, "limit": EXPORT_ROWS,
                "a": after[0], "b": after[1], "c": after[2], "d": after[3],
            },
        ).fetchall()  # fmt: skip
        if rows:
            yield rows
        if len(rows) < EXPORT_ROWS:
            return
        after = rows[-1][:4]


def _plans(conn: Connection, run_id: int, names: Sequence[str], agent: str | None, window: SeriesWindow) -> list[_Plan]:
    """Decide per series what is read point by point: all of a short one, the ends of a window in a long one."""
    rows = conn.execute(
        """
        SELECT name, agent, stat, points, first_step, first_value, last_step, last_value, min_step, min_value,
          max_step, max_value, extract(epoch FROM at_low)::float8, extract(epoch FROM at_high)::float8,
          samples_low, samples_high
        FROM store.metric_span WHERE run_id = %s AND name = ANY(%s) AND (%s::text IS NULL OR agent = %s)
        ORDER BY name, agent, stat, span
        """,
        [run_id, list(names), agent, agent],
    ).fetchall()
    by_key: dict[Key, list[tuple[int | float, ...]]] = {}
    for row in rows:
        low, high = _reach(row[3:], window.x)
        if (window.start is None or high >= window.start) and (window.end is None or low <= window.end):
            by_key.setdefault(row[:3], []).append(row[3:])
    return [_plan(key, spans, window) for key, spans in by_key.items()]


def _reach(span: Sequence[int | float], x: Axis) -> tuple[float, float]:
    """Return the smallest and the largest x of a summary; versions are bounded later, by steps."""
    if x == "time":
        return span[9], span[10]
    if x == "samples":
        return span[11], span[12]
    return (-float("inf"), float("inf")) if x == "version" else (span[1], span[3])


def _plan(key: Key, spans: list[tuple[int | float, ...]], window: SeriesWindow) -> _Plan:
    if sum(span[0] for span in spans) <= max(WHOLE, window.max_points):
        return _Plan(key, [(int(spans[0][1]), int(spans[-1][3]))])
    plan = _Plan(key)
    for span in spans:
        low, high = _reach(span, window.x)
        whole = (window.start is None or window.start <= low) and (window.end is None or high <= window.end)
        if whole or window.x == "version":
            plan.spans.append(span)
        else:
            plan.ranges.append((int(span[1]), int(span[3])))
    return plan


def _bounded_by_version(
    conn: Connection, run_id: int, plans: list[_Plan], window: SeriesWindow, policies: Mapping[str, str]
) -> list[_Plan]:
    """Turn bounds on versions into bounds on steps: a policy's version never falls."""
    if window.start is None and window.end is None:
        return plans
    rows = conn.execute(
        """
        SELECT agent, min(step) FILTER (WHERE %(start)s::float8 IS NULL OR value >= %(start)s),
          coalesce(min(step) FILTER (WHERE value > %(end)s::float8) - 1, 2147483647)
        FROM store.metric WHERE run_id = %(run)s AND name = %(name)s GROUP BY agent
        """,
        {"run": run_id, "name": VERSION_SERIES, "start": window.start, "end": window.end},
    ).fetchall()
    bounds = {agent: (low, high) for agent, low, high in rows if low is not None}
    kept = []
    for plan in plans:
        low, high = bounds.get(policies.get(plan.key[1], plan.key[1]), (1, 0))
        inside = [(max(a, low), min(b, high)) for a, b in plan.ranges if max(a, low) <= min(b, high)]
        spans = [span for span in plan.spans if low <= span[1] and span[3] <= high]
        edges = [(max(int(s[1]), low), min(int(s[3]), high)) for s in plan.spans if s not in spans]
        kept.append(_Plan(plan.key, [*inside, *((a, b) for a, b in edges if a <= b)], spans))
    return kept


def _points(conn: Connection, run_id: int, plans: list[_Plan], window: SeriesWindow) -> list[Cells]:
    """Read the ranges of all plans in one query. Values travel as packed bytes: a row per series, not per point."""
    wanted = [(no, *plan.key, low, high) for no, plan in enumerate(plans) for low, high in plan.ranges]
    cells = [Cells.none() for _ in plans]
    if not wanted:
        return cells
    axis = _AXIS["step" if window.x == "version" else window.x]
    columns = [list(column) for column in zip(*wanted, strict=True)]
    start, end = (None, None) if window.x == "version" else (window.start, window.end)
    rows = conn.execute(
        f"""
        SELECT no, string_agg(int4send(step), ''::bytea), string_agg(float8send(x), ''::bytea),
          string_agg(float8send(value), ''::bytea)
        FROM (
          SELECT k.no, m.step, {axis} AS x, m.value
          FROM unnest(%(no)s::int[], %(name)s::text[], %(agent)s::text[], %(stat)s::text[], %(low)s::int[],
            %(high)s::int[]) AS k(no, name, agent, stat, low, high)
          JOIN store.metric m ON m.run_id = %(run)s AND m.name = k.name AND m.agent = k.agent AND m.stat = k.stat
            AND m.step BETWEEN k.low AND k.high
          WHERE m.value - m.value = 0
          ORDER BY k.no, m.step) p
        WHERE (%(start)s::float8 IS NULL OR x >= %(start)s) AND (%(end)s::float8 IS NULL OR x <= %(end)s)
        GROUP BY no
        """.encode(),
        {
            **dict(zip(("no", "name", "agent", "stat", "low", "high"), columns, strict=True)),
            "run": run_id, "start": start, "end": end,
        },
    ).fetchall()  # fmt: skip
    for no, steps, xs, values in rows:
        cells[no] = Cells.of_points(as_steps(steps), as_floats(xs), as_floats(values))
    return cells


def _drawn(
    conn: Connection, run_id: int, key: Key, cells: Cells, window: SeriesWindow, policies: Mapping[str, str]
) -> Series:
    """Thin one series and give its points their place on the axis."""
    if window.buckets:
        parts = cut(cells, window.max_points)
        ends = [step for part in parts for step in (part.first_step, part.last_step)]
        place = _places(conn, run_id, key, ends, cells, window, policies)
        buckets = [part.at(place.get(part.first_step), place.get(part.last_step)) for part in parts]
        return Series(*key, [], [], [bucket for bucket in buckets if bucket is not None])
    steps, values = pick(cells, window.max_points)
    place = _places(conn, run_id, key, steps, cells, window, policies)
    kept = [(place[step], value) for step, value in zip(steps, values, strict=True) if step in place]
    return Series(*key, [x for x, _ in kept], [y for _, y in kept])


def _places(
    conn: Connection,
    run_id: int,
    key: Key,
    steps: Sequence[int],
    cells: Cells,
    window: SeriesWindow,
    policies: Mapping[str, str],
) -> dict[int, float]:
    """Map steps to their x. Points that were read know theirs; those of summaries are looked up."""
    if window.x == "step":
        return {step: float(step) for step in steps}
    if window.x == "version":
        return _versions(conn, run_id, policies.get(key[1], key[1]), steps)
    known = cells.places()
    missing = [step for step in steps if step not in known]
    if missing:
        rows = conn.execute(
            f"""
            SELECT step, {_AXIS[window.x]} FROM store.metric m
            WHERE run_id = %s AND name = %s AND agent = %s AND stat = %s AND step = ANY(%s)
            """.encode(),
            [run_id, *key, missing],
        ).fetchall()
        known.update(dict(rows))
    return known


def _versions(conn: Connection, run_id: int, policy: str, steps: Sequence[int]) -> dict[int, float]:
    """Return the version a policy had at the end of each step: the newest one written at or before it."""
    rows = conn.execute(
        """
        SELECT s.step, v.value FROM unnest(%s::int[]) AS s(step) CROSS JOIN LATERAL (
          SELECT value FROM store.metric m WHERE m.run_id = %s AND m.name = %s AND m.agent = %s AND m.stat = 'last'
            AND m.step <= s.step ORDER BY m.step DESC LIMIT 1) v
        """,
        [list(steps), run_id, VERSION_SERIES, policy],
    ).fetchall()
    return dict(rows)


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


def recent_of_runs(conn: Connection, run_ids: Sequence[int], name: str, steps: int) -> dict[int, list[float]]:
    """Read the newest values of a team series of many runs in one query: those of the last `steps` steps."""
    rows = conn.execute(
        """
        SELECT m.run_id, array_agg(m.value ORDER BY m.step)
        FROM store.run_state r
        JOIN store.metric m ON m.run_id = r.run_id AND m.name = %(name)s AND m.agent = '' AND m.stat = 'mean'
          AND m.step > r.step - %(steps)s
        WHERE r.run_id = ANY(%(runs)s) GROUP BY m.run_id
        """,
        {"runs": list(run_ids), "name": name, "steps": steps},
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
