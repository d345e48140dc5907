"""Series over REST: what they mean, every axis, buckets, several runs, exports, and what scripts add."""

import csv
import gzip
import io
import json

import pytest

from flexmarl.contracts.decisions import Metric
from flexmarl.contracts.status import RunStatus
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.telemetry.charts import ingest, series
from flexmarl.controlplane.telemetry.charts.definitions import DEFINITIONS, USER_PREFIX
from flexmarl.store.control.decisions import _write_metrics
from tests.support.statements import at_most

pytestmark = pytest.mark.django_db
NDJSON = "application/x-ndjson"


@pytest.fixture
def run(editor, make_run):
    run = make_run(editor, RunStatus.RUNNING)
    points = []
    for step in range(1, 11):
        points += [
            (1000.0 + step, Metric("reward/team", step, step / 10, samples=8 * step)),
            (1000.0 + step, Metric("reward/agent", step, step / 20, "speaker", samples=8 * step)),
            (1000.0 + step, Metric("throughput/tokens", step, 7.0)),
            (1000.0 + step, Metric("throughput/tokens", step, 3.0, "speaker")),
            (1000.0 + step, Metric("policy/version", step, 2.0 * step, "speaker", "last")),
        ]
    _write_metrics(store_connection(), run.no, points)
    return run


def get(api, path, **query):
    answer = api.get(f"/api/v1/{path}", query)
    assert answer.status_code == 200, answer.content
    return answer.json()


def test_the_catalogue_says_what_a_series_means_and_where_it_can_be_drawn(api, run) -> None:
    rows = {(row["name"], row["agent"]): row for row in get(api, f"runs/{run.key}/series")["results"]}
    team, own = rows["reward/team", ""], rows["reward/agent", "speaker"]
    assert team["x"] == ["step", "time", "samples"]
    assert own["x"] == ["step", "time", "samples", "version"]
    assert (own["first"], own["last"], own["points"]) == (0.05, 0.5, 10)
    assert own["meaning"] == DEFINITIONS["reward/agent"].meaning
    assert rows["throughput/tokens", "speaker"]["unit"] == "tokens/s"


@pytest.mark.parametrize(
    ("x", "low", "high", "found"),
    [
        ("step", 3, 4, [3.0, 4.0]),
        ("time", 1009, None, [1009.0, 1010.0]),
        ("samples", None, 16, [8.0, 16.0]),
        ("version", 17, 19, [18.0]),
    ],
)
def test_points_lie_on_the_axis_asked_for(api, run, x, low, high, found) -> None:
    query = {"names": "reward/agent", "x": x} | {k: v for k, v in (("from", low), ("to", high)) if v is not None}
    answer = get(api, f"runs/{run.key}/series/data", **query)
    [one] = answer["series"]
    assert one["x"] == found
    assert answer["x"] == x


def test_the_team_has_no_version(api, run) -> None:
    answer = api.get(f"/api/v1/runs/{run.key}/series/data", {"names": "reward/team", "x": "version"})
    assert answer.status_code == 400
    [error] = answer.json()["errors"]
    assert (error["pointer"], error["code"]) == ("x", "no_version")
    assert error["hint"] == "Legal for it: step, time, samples."
    both = get(api, f"runs/{run.key}/series/data", names="throughput/tokens", x="version")["series"]
    assert [row["agent"] for row in both] == ["speaker"]


def test_buckets_tell_smallest_largest_and_last(api, run) -> None:
    query = {"names": "reward/team", "buckets": "true", "max_points": 5}
    [one] = get(api, f"runs/{run.key}/series/data", **query)["series"]
    assert (one["x"], one["y"]) == ([], [])
    assert one["buckets"][0] == {"x_from": 1.0, "x_to": 2.0, "min": 0.1, "max": 0.2, "last": 0.2, "points": 2}
    assert sum(bucket["points"] for bucket in one["buckets"]) == 10


def test_one_stat_can_be_asked_for(api, run) -> None:
    _write_metrics(store_connection(), run.no, [(1.0, Metric("reward/team", 1, 0.0, stat="min"))])
    assert len(get(api, f"runs/{run.key}/series/data", names="reward/team")["series"]) == 2
    [one] = get(api, f"runs/{run.key}/series/data", names="reward/team", stat="min")["series"]
    assert one["stat"] == "min"


def test_runs_are_compared_in_one_request(api, editor, make_run, run, person, client_of) -> None:
    other = make_run(editor, RunStatus.COMPLETED)
    _write_metrics(store_connection(), other.no, [(1.0, Metric("reward/team", 1, 0.9))])
    body = {"runs": [run.key, str(other.id), run.key], "names": ["reward/team"], "from": 1, "to": 2}
    answer = api.post("/api/v1/series/data", body)
    assert answer.status_code == 200, answer.content
    rows = answer.json()["runs"]
    assert [row["key"] for row in rows] == [run.key, other.key]
    assert rows[0]["series"][0]["y"] == [0.1, 0.2]
    assert rows[1]["series"][0]["y"] == [0.9]
    stranger = client_of(person("editor", project="elsewhere"))
    assert stranger.post("/api/v1/series/data", body).status_code == 404
    many = {**body, "runs": [f"r{i}" for i in range(series.MAX_RUNS + 1)]}
    assert api.post("/api/v1/series/data", many).status_code == 400
    assert api.post("/api/v1/series/data", {**body, "window": 3}).json()["errors"][0]["pointer"] == "/window"


def text(answer) -> str:
    assert answer.status_code == 200, answer.content
    return b"".join(answer.streaming_content).decode()


def test_an_export_streams_every_point(api, run) -> None:
    path = f"/api/v1/runs/{run.key}/series/export"
    answer = api.get(path, {"names": "reward/team"})
    assert answer.streaming
    rows = list(csv.DictReader(io.StringIO(text(answer))))
    assert [float(row["value"]) for row in rows] == [step / 10 for step in range(1, 11)]
    assert rows[0]["time"] == "1970-01-01T00:16:41.000Z"
    lines = [json.loads(line) for line in text(api.get(path, {"format": "ndjson"})).splitlines()]
    assert len(lines) == 50
    assert lines[0] == {
        "name": "policy/version", "agent": "speaker", "stat": "last", "step": 1, "time": "1970-01-01T00:16:41.000Z",
        "samples": 0, "value": 2.0,
    }  # fmt: skip


def send(api, run, lines, **extra):
    body = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines).encode()
    if extra.pop("packed", False):
        body = gzip.compress(body)
        extra["HTTP_CONTENT_ENCODING"] = "gzip"
    return api.post(f"/api/v1/runs/{run.key}/series:batch", data=body, content_type=NDJSON, **extra)


def test_a_script_adds_its_own_series_and_may_repeat_itself(api, run) -> None:
    lines = [
        {"name": "user/score", "step": 1, "value": 0.5},
        {"name": "user/score", "step": 2, "value": 1, "agent": "speaker", "stat": "max", "samples": 16},
        {"name": "user/score", "step": 1, "value": 0.75, "at": "2026-01-31T12:00:00Z"},
    ]
    first = send(api, run, lines, packed=True)
    assert (first.status_code, first.json()) == (200, {"lines": 3, "added": 2, "replaced": 0})
    assert send(api, run, lines).json() == {"lines": 3, "added": 0, "replaced": 2}
    rows = [row for row in get(api, f"runs/{run.key}/series")["results"] if row["name"] == "user/score"]
    assert [(row["agent"], row["stat"], row["last"]) for row in rows] == [("", "mean", 0.75), ("speaker", "max", 1.0)]
    assert rows[0]["title"] == "Score"


@pytest.mark.parametrize(
    ("line", "pointer"),
    [
        ({"name": "reward/team", "step": 1, "value": 1}, "/1/name"),
        ({"name": "user/A b", "step": 1, "value": 1}, "/1/name"),
        ({"name": "user/a", "step": -1, "value": 1}, "/1/step"),
        ({"name": "user/a", "step": 2**31, "value": 1}, "/1/step"),
        ({"name": "user/a", "step": True, "value": 1}, "/1/step"),
        ({"name": "user/a", "step": 1, "value": "1"}, "/1/value"),
        ({"name": "user/a", "step": 1}, "/1/value"),
        ({"name": "user/a", "step": 1, "value": 1, "agent": "nobody"}, "/1/agent"),
        ({"name": "user/a", "step": 1, "value": 1, "agent": ["speaker"]}, "/1/agent"),
        ({"name": "user/a", "step": 1, "value": 1, "stat": "median"}, "/1/stat"),
        ({"name": "user/a", "step": 1, "value": 1, "at": "yesterday"}, "/1/at"),
        ({"name": "user/a", "step": 1, "value": 1, "samples": 0.5}, "/1/samples"),
        ({"name": "user/a", "step": 1, "value": 1, "colour": 1}, "/1/colour"),
        ([1], "/1"),
        ("NaN", "/1"),
        ('{"name": "user/a", "step": 1, "value": Infinity}', "/1"),
    ],
)
def test_a_wrong_line_is_named_and_nothing_is_written(api, run, line, pointer) -> None:
    answer = send(api, run, [{"name": "user/fine", "step": 1, "value": 1}, line])
    assert answer.status_code == 400
    assert answer.json()["errors"][0]["pointer"] == pointer
    assert not any(row["name"].startswith(USER_PREFIX) for row in get(api, f"runs/{run.key}/series")["results"])


def test_batches_are_bounded(api, run, monkeypatch) -> None:
    monkeypatch.setattr(ingest, "MAX_LINES", 3)
    monkeypatch.setattr(ingest, "MAX_SERIES", 2)
    lines = [{"name": f"user/{i}", "step": 1, "value": 1} for i in range(4)]
    assert send(api, run, lines).json()["errors"][0]["code"] == "too_many"
    assert send(api, run, lines[:3]).json()["errors"][0]["code"] == "too_many_series"
    assert send(api, run, lines[:2]).status_code == 200
    broken = api.post(
        f"/api/v1/runs/{run.key}/series:batch", data=b"\x1f\x8bno", content_type=NDJSON, HTTP_CONTENT_ENCODING="gzip"
    )
    assert broken.status_code == 400
    assert api.post(f"/api/v1/runs/{run.key}/series:batch", {"a": 1}, format="json").status_code == 415


def test_only_who_may_write_in_the_project_adds_series(run, person, client_of) -> None:
    lines = [{"name": "user/a", "step": 1, "value": 1}]
    assert send(client_of(person("viewer")), run, lines).status_code == 403
    assert send(client_of(person("editor", project="elsewhere")), run, lines).status_code == 404
    elsewhere = client_of(person("editor"), ["runs:read"])
    assert send(elsewhere, run, lines).status_code == 403


def test_figures_take_few_statements(api, run) -> None:
    base = f"/api/v1/runs/{run.key}/series"
    for path, most in {
        base: 5,
        f"{base}/data?names=reward/agent,reward/team,throughput/tokens": 6,
        f"{base}/data?names=reward/agent&x=version&from=2": 8,
    }.items():
        api.get(path)
        with at_most(most, path):
            assert api.get(path).status_code == 200
