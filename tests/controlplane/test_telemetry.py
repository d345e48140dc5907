"""What a run shows: series, trajectories, timeline, feed; and the hardware behind it."""

import pytest

from flexmarl.contracts.decisions import Metric
from flexmarl.contracts.status import RunStatus
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.runs import queries as runs
from flexmarl.controlplane.telemetry import queries
from flexmarl.controlplane.telemetry.timeline.timeline import coalesce, union
from flexmarl.store.control.decisions import _write_metrics
from flexmarl.store.telemetry.intervals import DeviceInterval
from tests.support.played import STEPS, play
from tests.support.statements import at_most

pytestmark = pytest.mark.django_db


@pytest.fixture
def run(editor, make_run):
    return make_run(editor, RunStatus.RUNNING)


@pytest.fixture
def played(run):
    return play(run)


def get(api, run, path):
    answer = api.get(f"/api/v1/runs/{run.id}/{path}")
    assert answer.status_code == 200, answer.content
    return answer.json()


def test_the_catalogue_names_series_with_unit_and_range(api, run, played) -> None:
    rows = {(row["name"], row["agent"]): row for row in get(api, run, "series")["results"]}
    team = rows["reward/team", ""]
    assert (team["title"], team["stat"], team["first"], team["last"]) == ("Team reward", "mean", 0.1, 0.3)
    assert (team["min"], team["max"], team["last_step"], team["points"]) == (0.1, 0.3, STEPS, STEPS)
    assert rows["reward/agent", "speaker"]["last"] == 0.25


def test_points_come_on_the_axis_asked_for(api, run, played) -> None:
    by_step = get(api, run, "series/data?names=reward/team&from=2")
    assert by_step["series"] == [{"name": "reward/team", "agent": "", "stat": "mean", "x": [2.0, 3.0], "y": [0.2, 0.3]}]
    assert by_step["seq"] == runs.find_run(Actor.system(), run.id).state.seq
    by_samples = get(api, run, "series/data?names=reward/team&x=samples")
    assert by_samples["series"][0]["x"] == [8.0, 16.0, 24.0]
    assert get(api, run, "series/data?names=reward/agent&agent=listener")["series"] == []


def test_long_series_are_thinned_without_losing_an_extreme(api, run, played) -> None:
    points = [(1.0, Metric("train/loss", step, 0.0, agent="solver")) for step in range(2000)]
    points[777] = (1.0, Metric("train/loss", 777, 9.0, agent="solver"))
    points[1234] = (1.0, Metric("train/loss", 1234, -9.0, agent="solver"))
    _write_metrics(store_connection(), run.no, points)
    [series] = get(api, run, "series/data?names=train/loss&max_points=100")["series"]
    assert len(series["x"]) <= 100
    assert (max(series["y"]), min(series["y"])) == (9.0, -9.0)
    assert (series["x"][0], series["x"][-1]) == (0.0, 1999.0)


def test_a_trajectory_reads_as_text_and_tokens(api, run, played) -> None:
    page = get(api, run, "trajectories")
    assert [row["id"] for row in page["results"]] == ["1-1-1", "1-0-1", "0-1-1", "0-0-1"]
    detail = get(api, run, f"trajectories/{played.trajectory}")
    [turn] = detail["turns"]
    assert turn["response_text"] == "square big small"
    [arrays] = get(api, run, f"trajectories/{played.trajectory}/tokens")["turns"]
    assert "".join(arrays["texts"]) == turn["response_text"]
    assert (arrays["ids"], arrays["versions"]) == ([4, 5, 6], [0, 0, 0])
    assert arrays["logprobs"] == [-0.5, -0.25, -0.125]
    assert (turn["advantage"], turn["in_loss"], turn["micro_batch"]) == (0.5, True, 0)
    assert (turn["policy"], turn["version"], turn["allowed_tokens"]) == ("solver", 0, 4)
    assert [member["team_score"] for member in detail["group"]] == [0.0, 1.0]
    assert detail["title"] == "task 1"
    assert detail["pins"] == {"solver": 0}


def test_trajectories_filter_and_page(api, run, played) -> None:
    def ids(query):
        return [row["id"] for row in get(api, run, f"trajectories?{query}")["results"]]

    assert ids("solved=true") == ["1-1-1", "0-1-1"]
    assert ids("reward__lte=0.5") == ["1-0-1", "0-0-1"]
    assert ids("step=1&origin=train&status=finished&reward__gte=1") == ["1-1-1", "0-1-1"]
    assert ids("step=2") == []
    first = get(api, run, "trajectories?limit=3")
    second = api.get(first["next"]).json()
    assert [row["id"] for row in second["results"]] == ["0-0-1"]
    assert second["next"] is None


@pytest.mark.parametrize("identity", ["9-9-9", "x", "1-1", "1-1-1-1", "99999999999-0-1"])
def test_an_unknown_trajectory_is_not_found(api, run, played, identity) -> None:
    assert api.get(f"/api/v1/runs/{run.id}/trajectories/{identity}").status_code == 404


def test_ids_without_a_tokenizer_are_numbers(api, run, played) -> None:
    store_connection().execute("DELETE FROM store.tokenizer WHERE run_id = %s", [run.no])
    from flexmarl.controlplane.telemetry.trajectories import decoding

    decoding._bodies.cache_clear()
    [turn] = get(api, run, "trajectories/1-1-1")["turns"]
    assert turn["response_text"] == "4 5 6"


def test_shares_are_made_of_the_time_the_device_was_held(api, run, played) -> None:
    found = get(api, run, "timeline?window_s=300")
    devices = {device["use"]: device for device in found["devices"]}
    engine, trainer = devices["engine"], devices["trainer"]
    assert held(engine, found) >= 40
    assert engine["busy_share"] == pytest.approx(played.busy_s / held(engine, found), abs=1e-4)
    assert engine["busy_share"] + engine["bubble_share"] == pytest.approx(1.0)
    assert trainer["busy_share"] == pytest.approx(3 / held(trainer, found), abs=1e-4)
    assert [interval[2] for interval in engine["intervals"]] == ["rollout", "rollout", "load"]
    assert engine["tokens"] == 200
    assert found["window"][1] - found["window"][0] == pytest.approx(300)
    ended = max(interval[1] for interval in engine["intervals"])
    since, until = (short := get(api, run, "timeline?window_s=10"))["window"]
    share = next(d for d in short["devices"] if d["use"] == "engine")["busy_share"]
    assert until - since == pytest.approx(10)
    assert share == pytest.approx(max(0.0, ended - since) / 10, abs=1e-4)


def held(device, found) -> float:
    """How long, s, the run has had this device: 40 and what the test took until it asked."""
    return (device["held_until"] or found["window"][1]) - device["held_since"]


def test_the_window_of_an_ended_run_ends_with_it(api, run, played) -> None:
    query = "UPDATE store.run_state SET status = 'completed', finished_at = now() - interval '4 seconds'"
    store_connection().execute(f"{query} WHERE run_id = %s", [run.no])
    store_connection().execute("UPDATE store.lease SET state = 'ended', ended_at = now() - interval '4 seconds'")
    found = get(api, run, "timeline?window_s=60")
    engine = next(device for device in found["devices"] if device["use"] == "engine")
    assert held(engine, found) == pytest.approx(36, abs=0.1), "both ends are of this transaction's one clock"
    assert engine["busy_share"] == pytest.approx(20 / held(engine, found), abs=1e-4)


def make(t0, t1, phase="rollout"):
    return DeviceInterval("d", 1, phase, "p", t0, t1, 0)


@pytest.mark.parametrize(
    ("own", "seconds"),
    [
        ([], 0),
        ([make(0, 4)], 4),
        ([make(-5, 2), make(8, 20)], 4),
        ([make(0, 6), make(2, 3), make(5, 7)], 7),
        ([make(3, 4), make(3, 4)], 1),
        ([make(0, 99)], 10),
    ],
)
def test_the_union_counts_no_second_twice(own, seconds) -> None:
    assert union(own, 0, 10) == pytest.approx(seconds)


def test_like_neighbours_are_drawn_as_one() -> None:
    drawn = coalesce([make(0, 1), make(1.01, 2), make(2.5, 3), make(3, 4, "train")], gap=0.1)
    assert [(d.t0, d.t1, d.phase) for d in drawn] == [(0, 2, "rollout"), (2.5, 3, "rollout"), (3, 4, "train")]


def test_the_log_is_read_behind_a_sequence(api, run, played) -> None:
    everything = get(api, run, "events")
    numbers = [event["seq"] for event in everything["results"]]
    assert numbers == list(range(1, len(numbers) + 1))
    assert "body" not in everything["results"][0]
    assert [line["text"] for line in everything["results"][-1]["notes"]] == ["Step 1 is done."]
    rest = get(api, run, f"events?after={numbers[-2]}&expand=body")
    assert [event["seq"] for event in rest["results"]] == numbers[-1:]
    assert rest["results"][0]["body"]["kind"] == rest["results"][0]["kind"]
    assert rest["next_after"] == numbers[-1]
    assert {e["kind"] for e in get(api, run, "events?kind=group_settled")["results"]} == {"group_settled"}
    assert queries.notes(run)[0]["text"] == "Step 1 is done."


def test_a_run_tells_progress_eta_and_agents(api, run, played) -> None:
    row = api.get(f"/api/v1/runs/{run.id}").json()
    assert (row["step"], row["max_steps"], row["progress"]["reward"]) == (STEPS, 400, 0.3)
    assert row["eta_s"]["low"] < 2.0 * (400 - STEPS) < row["eta_s"]["high"]
    assert {agent["role"]: agent["version"] for agent in row["agents"]} == {"speaker": 1, "listener": 0}
    assert get(api, run, "checkpoints")["results"][0]["size_bytes"] == 9
    assert get(api, run, "versions")["results"][0]["version"] == 1


def test_devices_name_the_run_that_holds_them(api, run, played) -> None:
    devices = api.get("/api/v1/devices").json()["results"]
    assert {device["lease"]["run"]["key"] for device in devices} == {run.key}
    phases = {device["lease"]["use"]: device["lease"]["phase"] for device in devices}
    assert phases["trainer"] == "train"
    assert phases["engine"] in {"load", "rollout"}, "both ended at the same moment"
    assert api.get("/api/v1/devices?free=true").json()["count"] == 0
    assert api.get("/api/v1/devices?pool=other").json()["count"] == 0
    one = api.get(devices[0]["url"]).json()
    assert one["id"] == devices[0]["id"]


def test_the_number_of_statements_is_bounded(api, run, played) -> None:
    """Who asks takes two, the run one; the rest is one read for each thing that the answer tells."""
    base = f"/api/v1/runs/{run.id}"
    for path, most in {
        base: 5,
        f"{base}/series": 4,
        f"{base}/series/data?names=reward/team": 5,
        f"{base}/trajectories": 5,
        f"{base}/trajectories/1-1-1": 8,
        f"{base}/timeline": 9,
        f"{base}/events": 5,
        "/api/v1/devices": 7,
        "/api/v1/pools": 9,
        "/api/v1/nodes": 4,
    }.items():
        api.get(path)
        with at_most(most, path):
            assert api.get(path).status_code == 200
