"""Series: summaries that follow every write, long series read from them, places on each axis."""

import math
import random

import pytest

from flexmarl.contracts.decisions import Metric
from flexmarl.store.control.decisions import _write_metrics
from flexmarl.store.telemetry import metrics
from flexmarl.store.telemetry.metric_ingest import put_points
from flexmarl.store.telemetry.metrics import SeriesWindow

RUN = 1
FACTS = "points, first_step, first_value, last_step, last_value, min_step, min_value, max_step, max_value"


def write(conn, values, name="train/loss", agent="solver", stat="mean", at=1000.0):
    """Write values by step; a point lies at one second and 8 samples a step."""
    points = [(at + s, Metric(name, s, v, agent, stat, 8 * s)) for s, v in values.items()]
    _write_metrics(conn, RUN, points)


def spans(conn):
    return conn.execute(f"SELECT span, {FACTS} FROM store.metric_span ORDER BY name, agent, stat, span").fetchall()


def made_anew(conn):
    """What the summaries must be, from the points alone."""
    groups = {}
    for name, agent, stat, step, value in conn.execute("SELECT name, agent, stat, step, value FROM store.metric"):
        if math.isfinite(value):
            groups.setdefault((name, agent, stat, step >> 8), []).append((step, value))
    rows = []
    for key in sorted(groups):
        points = sorted(groups[key])
        low = min(points, key=lambda p: (p[1], p[0]))
        high = max(points, key=lambda p: (p[1], -p[0]))
        rows.append((key[3], len(points), *points[0], *points[-1], *low, *high))
    return rows


def test_summaries_follow_every_write(store_conn):
    rng = random.Random(3)
    for _ in range(60):
        steps = rng.sample(range(900), rng.randrange(1, 40))
        write(store_conn, {s: rng.choice([rng.random(), rng.gauss(0, 5), math.nan, math.inf]) for s in steps})
    found, wanted = spans(store_conn), made_anew(store_conn)
    assert len(wanted) == 4
    # Of equal values any step may be remembered; all values here differ.
    assert found == wanted


def test_summaries_follow_a_training_run(store_conn):
    rng = random.Random(4)
    for step in range(1, 301):
        write(store_conn, {step: rng.random()})
    assert spans(store_conn) == made_anew(store_conn)
    assert [row.points for row in metrics.catalogue(store_conn, RUN)] == [300]


def test_the_catalogue_is_made_of_summaries(store_conn):
    write(store_conn, {s: float(s % 100) for s in range(1, 1001)})
    write(store_conn, {1: 5.0, 2: math.nan}, name="reward/team", agent="")
    rows = metrics.catalogue(store_conn, RUN)
    assert [(r.name, r.agent) for r in rows] == [("reward/team", ""), ("train/loss", "solver")]
    assert (rows[0].points, rows[0].last) == (1, 5.0)
    long = rows[1]
    assert (long.first, long.last, long.min, long.max) == (1.0, 0.0, 0.0, 99.0)
    assert (long.first_step, long.last_step, long.points) == (1, 1000, 1000)


def one(conn, **options):
    [found] = metrics.series(conn, RUN, ["train/loss"], window=SeriesWindow(**options))
    return found


@pytest.fixture
def long(store_conn):
    """20 000 points with a peak and a pit, more than are read one by one."""
    values = {s: math.sin(s / 900) for s in range(1, 20_001)}
    values[4321], values[15_001] = 50.0, -50.0
    write(store_conn, values)
    return store_conn


def test_a_long_series_keeps_its_ends_and_extremes(long):
    assert metrics.WHOLE < 20_000
    found = one(long, max_points=20)  # several summaries to a bucket
    assert len(found.x) <= 20
    assert (found.x[0], found.x[-1]) == (1.0, 20_000.0)
    assert found.x[found.y.index(50.0)] == 4321.0
    assert found.x[found.y.index(-50.0)] == 15_001.0
    assert found.x == sorted(found.x)


def test_a_window_holds_nothing_from_outside(long):
    for x, scale, shift in (("step", 1, 0), ("samples", 8, 0), ("time", 1, 1000)):
        found = one(long, x=x, start=4300 * scale + shift, end=14_999 * scale + shift, max_points=200)
        assert found.x[0] == 4300 * scale + shift
        assert found.x[-1] == 14_999 * scale + shift
        assert max(found.y) == 50.0
        assert min(found.y) > -50.0
        assert found.x[found.y.index(50.0)] == 4321 * scale + shift
    short = one(long, start=4320, end=4322)
    assert short.y[1] == 50.0
    assert len(short.x) == 3
    assert metrics.series(long, RUN, ["train/loss"], window=SeriesWindow(start=30_000)) == []


def test_buckets_are_exact(long):
    found = one(long, max_points=16, buckets=True)
    assert len(found.buckets) == 16
    assert sum(b.points for b in found.buckets) == 20_000
    for b in found.buckets:
        low, high = int(b.x_from), int(b.x_to)
        inside = (
            {s: math.sin(s / 900) for s in range(low, high + 1)}
            | ({4321: 50.0} if low <= 4321 <= high else {})
            | ({15_001: -50.0} if low <= 15_001 <= high else {})
        )
        assert (b.min, b.max, b.last) == (min(inside.values()), max(inside.values()), inside[high])
        assert b.points == len(inside)


def test_versions_are_the_policys_at_the_end_of_the_step(store_conn):
    write(store_conn, {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4}, name="reward/agent", agent="critic")
    write(store_conn, {1: 1.0, 3: 2.0}, name=metrics.VERSION_SERIES, agent="shared", stat="last")
    write(store_conn, {1: 9.0}, name="reward/agent", agent="")

    def read(**options):
        return metrics.series(
            store_conn,
            RUN,
            ["reward/agent"],
            window=SeriesWindow(x="version", **options),
            policy_of={"critic": "shared"},
        )

    [found] = read()
    assert (found.agent, found.x, found.y) == ("critic", [1.0, 1.0, 2.0, 2.0], [0.1, 0.2, 0.3, 0.4])
    [late] = read(start=2)
    assert late.y == [0.3, 0.4]
    assert read(start=3) == []
    [early] = read(end=1)
    assert early.y == [0.1, 0.2]


def test_versions_of_a_long_series(long):
    write(long, {s: float(s) for s in range(1, 20_001)}, name=metrics.VERSION_SERIES, agent="solver", stat="last")
    found = one(long, x="version", start=4300, end=14_999, max_points=100)
    assert (found.x[0], found.x[-1]) == (4300.0, 14_999.0)
    assert found.x[found.y.index(50.0)] == 4321.0


def test_a_batch_sent_again_changes_nothing_and_the_last_point_wins(store_conn):
    batch = [(10.0, Metric("user/a", s, 1.0 * s)) for s in (1, 2, 3)]
    first = put_points(store_conn, RUN, [*batch, (11.0, Metric("user/a", 3, 30.0))])
    assert (first.added, first.replaced) == (3, 0)
    before = store_conn.execute("SELECT * FROM store.metric ORDER BY step").fetchall()
    again = put_points(store_conn, RUN, [*batch, (11.0, Metric("user/a", 3, 30.0))])
    assert (again.added, again.replaced) == (0, 3)
    assert store_conn.execute("SELECT * FROM store.metric ORDER BY step").fetchall() == before
    assert [row.max for row in metrics.catalogue(store_conn, RUN)] == [30.0]
    assert spans(store_conn) == made_anew(store_conn)


def test_an_export_has_every_point_once(long, monkeypatch):
    monkeypatch.setattr(metrics, "EXPORT_ROWS", 777)
    write(long, {1: 1.0, 2: 2.0}, name="a", agent="")
    rows = [row for chunk in metrics.export(long, RUN, ["train/loss", "a"]) for row in chunk]
    assert len(rows) == 20_002
    assert rows[0] == ("a", "", "mean", 1, 1001.0, 8, 1.0)
    assert [row[3] for row in rows[2:]] == list(range(1, 20_001))
