"""Trajectories over REST: lists both ways, facets, tokens, groups side by side, labels, export."""

import json

import pytest
from asgiref.sync import async_to_sync

from flexmarl.contracts.status import RunStatus
from flexmarl.contracts.wire import EVALUATION_DRAWS
from flexmarl.controlplane.common.store import store_connection
from tests.support.played import play

pytestmark = pytest.mark.django_db


@pytest.fixture
def run(editor, make_run):
    return make_run(editor, RunStatus.RUNNING)


@pytest.fixture
def played(run):
    return play(run)


@pytest.fixture
def evaluated(run, played):
    """An evaluation after step 2 beside the training episodes."""
    store_connection().execute(
        "INSERT INTO store.episode (run_id, draw, member, attempt, origin, status, reason, cohort, scores, team_score, "
        "solved, turns, tokens, pins, task, transcript, started_at, finished_at) "
        "SELECT run_id, %s, member, attempt, 'eval', status, reason, 2, scores, team_score, solved, turns, tokens, "
        "pins, task, transcript, started_at, finished_at FROM store.episode WHERE run_id = %s AND draw = 1",
        [EVALUATION_DRAWS, run.no],
    )


@pytest.fixture
def get(api, run):
    def read(path, status=200):
        answer = api.get(f"/api/v1/runs/{run.id}/{path}")
        assert answer.status_code == status, answer.content
        return answer.json()

    return read


def ids(page):
    return [row["id"] for row in page["results"]]


def test_evaluations_are_listed_only_when_asked_for(get, evaluated) -> None:
    assert ids(get("trajectories")) == ["1-1-1", "1-0-1", "0-1-1", "0-0-1"]
    assert ids(get("trajectories?origin=eval")) == [f"{EVALUATION_DRAWS}-1-1", f"{EVALUATION_DRAWS}-0-1"]


def test_steps_count_from_one_and_an_evaluation_has_the_step_it_follows(get, evaluated) -> None:
    assert {row["step"] for row in get("trajectories")["results"]} == {1}
    assert {row["step"] for row in get("trajectories?origin=eval")["results"]} == {2}
    assert len(ids(get("trajectories?step=1"))) == 4
    assert ids(get("trajectories?step=2")) == []
    assert len(ids(get("trajectories?step=2&origin=eval"))) == 2


@pytest.mark.parametrize("ordering", ["-draw", "draw", "-reward", "reward", "-tokens", "duration_s"])
def test_pages_go_both_ways(api, get, played, ordering) -> None:
    whole = ids(get(f"trajectories?ordering={ordering}"))
    first = get(f"trajectories?ordering={ordering}&limit=3")
    assert first["previous"] is None
    second = api.get(first["next"]).json()
    assert ids(first) + ids(second) == whole
    assert second["next"] is None
    assert ids(api.get(second["previous"]).json()) == whole[:3]


def test_a_cursor_of_another_order_is_refused(api, get, played, run) -> None:
    cursor = get("trajectories?limit=1")["next"].partition("cursor=")[2]
    problem = get(f"trajectories?ordering=reward&cursor={cursor}", status=400)
    assert problem["errors"][0]["pointer"] == "cursor"


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("agent=solver&agent_reward__gte=0.5", 2),
        ("version=solver:0", 4),
        ("version=solver:1", 0),
        ("search=task", 4),
        ("search=TASK%201", 2),
        ("said=BIG%20sma", 4),
        ("said=big&said_by=solver", 4),
        ("said=big&said_by=planner", 0),
        ("said=small%20small%20red", 0),
        ("broken=any", 2),
        ("broken=shortened", 2),
        ("broken=other_end", 0),
        ("draw=1&solved=false", 1),
        ("turns__gte=2", 0),
        ("tokens__lte=3", 4),
        ("duration_s__gte=0.5&duration_s__lte=1", 4),
    ],
)
def test_filters(get, played, query, found) -> None:
    assert len(ids(get(f"trajectories?{query}"))) == found
    facets = get(f"trajectories/facets?{query}")
    assert (facets["counted"], facets["exact"]) == (found, True)


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ("agent=solver", "agent_reward__gte"),
        ("agent_reward__gte=1", "agent"),
        ("version=12", "version"),
        ("said_by=solver", "said"),
        ("broken=glass", "broken"),
        ("origin=both", "origin"),
        ("limit=0", "limit"),
        ("colour=red", "colour"),
    ],
)
def test_a_refusal_names_the_parameter(get, played, query, pointer) -> None:
    assert get(f"trajectories?{query}", status=400)["errors"][0]["pointer"] == pointer


def test_facets_say_when_they_counted_only_the_newest(run, played) -> None:
    from flexmarl.controlplane.telemetry.trajectories import trajectories

    few = trajectories.facets(run, bound=3)
    assert (few["counted"], few["exact"]) == (3, False)
    every = trajectories.facets(run)
    assert every["exact"]
    assert every["outcomes"] == {"solved": 2, "not_solved": 2, "failed": 0, "cancelled": 0}
    assert sum(row["count"] for row in every["histogram"]) == 4
    assert (every["histogram"][0]["count"], every["histogram"][-1]["count"]) == (2, 2)


def test_a_row_is_light_and_a_turn_says_how_it_was_trained(get, played) -> None:
    assert "transcript" not in get("trajectories")["results"][0]
    [turn] = get("trajectories/1-1-1")["turns"]
    assert "tokens" not in turn
    assert (turn["micro_batch_state"], turn["trained_step"], turn["trained_version"]) == ("applied", 1, 1)
    assert turn["staleness"] == 0
    assert turn["broken"] == "shortened"
    assert get("trajectories/0-1-1")["turns"][0]["broken"] == ""
    assert (turn["content"], turn["reasoning"], turn["tool_calls"]) == ("square big small", "", [])
    assert turn["read"] == [], "in a closed vocabulary nobody is named"


def test_a_group_has_statistics(get, played) -> None:
    group = get("groups/1")
    assert group["statistics"] == {
        "finished": 2, "solved": 1, "mean": 0.5, "deviation": 0.5, "best": "1-1-1", "worst": "1-0-1", "useful": True,
        "roles": {"solver": {"mean": 0.5, "deviation": 0.5}},
    }  # fmt: skip
    assert [member["advantages"] for member in group["members"]] == [{"solver": -0.5}, {"solver": 0.5}]
    get("groups/77", status=404)


def test_members_are_compared_best_first(get, played) -> None:
    found = get("trajectories/compare?ids=1-0-1,1-1-1")
    assert [member["id"] for member in found["members"]] == ["1-1-1", "1-0-1"]
    assert found["first_difference"] is None, "both said the same"
    [row] = found["rows"]
    assert [cell["parts"] for cell in row["cells"]] == [[["square big small", False]]] * 2


@pytest.mark.parametrize(
    ("query", "status"),
    [("ids=1-1-1", 400), ("ids=1-1-1,0-1-1", 400), ("", 400), ("ids=1-1-1,1-9-1", 404), ("ids=1-1-1,x", 404)],
)
def test_what_cannot_be_compared_is_refused(get, played, query, status) -> None:
    get(f"trajectories/compare?{query}", status=status)


def test_a_label_replaces_the_callers_own_and_is_a_filter(api, admin_api, get, run, played) -> None:
    from flexmarl.controlplane.common.models import AuditEntry

    path = f"/api/v1/runs/{run.id}/trajectories/1-1-1/labels"
    assert api.put(path, {"label": "Reward  Bug", "comment": " <b> "}).json()["label"] == "reward bug"
    api.put(path, {"label": "good"})
    admin_api.put(path, {"label": "odd"})
    assert [row["label"] for row in get("trajectories/1-1-1/labels")["results"]] == ["good", "odd"]
    assert ids(get("trajectories?label=good")) == ids(get("trajectories?label=any")) == ["1-1-1"]
    assert ids(get("trajectories?label=reward%20bug")) == []
    assert [row["label"] for row in get("trajectories")["results"][0]["labels"]] == ["good", "odd"]
    entry = AuditEntry.objects.filter(action="trajectory.label").order_by("id")[1]
    assert (entry.before["label"], entry.after["label"]) == ("reward bug", "good")
    assert api.delete(path).status_code == 204
    assert api.delete(path).status_code == 404
    assert ids(get("trajectories?label=any")) == ["1-1-1"]


@pytest.mark.parametrize(
    ("body", "pointer"),
    [({}, "/label"), ({"label": "any"}, "/label"), ({"label": "<b>"}, "/label"), ({"label": "a", "x": 1}, "/x")],
)
def test_a_bad_label_is_refused(api, run, played, body, pointer) -> None:
    answer = api.put(f"/api/v1/runs/{run.id}/trajectories/1-1-1/labels", body)
    assert answer.status_code == 400
    assert answer.json()["errors"][0]["pointer"] == pointer


def test_a_viewer_reads_and_does_not_label(person, client_of, run, played) -> None:
    viewer = client_of(person("viewer"))
    path = f"/api/v1/runs/{run.id}/trajectories/1-1-1/labels"
    assert viewer.get(path).status_code == 200
    assert viewer.put(path, {"label": "good"}).status_code == 403
    assert viewer.delete(path).status_code == 403


def test_no_label_on_what_does_not_exist(api, run, played) -> None:
    assert api.put(f"/api/v1/runs/{run.id}/trajectories/9-9-9/labels", {"label": "a"}).status_code == 404


def exported(api, run, query="") -> list[dict]:
    answer = api.get(f"/api/v1/runs/{run.id}/trajectories/export?{query}")
    assert answer.status_code == 200
    assert answer["Content-Type"] == "application/x-ndjson"

    async def read() -> bytes:
        return b"".join([part async for part in answer.streaming_content])

    return [json.loads(line) for line in async_to_sync(read)().splitlines()]


def test_the_export_has_every_match_whole(api, run, played, monkeypatch) -> None:
    from flexmarl.controlplane.telemetry.trajectories import exports

    monkeypatch.setattr(exports, "BATCH", 3)
    lines = exported(api, run)
    assert [line["id"] for line in lines] == ["1-1-1", "1-0-1", "0-1-1", "0-0-1"]
    [turn] = lines[0]["turns"]
    assert turn["response_text"] == "square big small"
    assert (turn["ids"], turn["logprobs"]) == ([4, 5, 6], [-0.5, -0.25, -0.125])
    assert turn["advantage"] == 0.5
    assert [line["id"] for line in exported(api, run, "solved=true&limit=1&ordering=draw")] == ["0-1-1"]


def test_the_number_of_queries_does_not_grow_with_rows(api, run, played) -> None:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    base = f"/api/v1/runs/{run.id}"
    counts = {}
    lists = ("trajectories?limit=1", "trajectories?limit=4", "trajectories/facets")
    for path in (*lists, "groups/1", "trajectories/1-1-1/tokens"):
        api.get(f"{base}/{path}")
        with CaptureQueriesContext(connection) as captured:
            assert api.get(f"{base}/{path}").status_code == 200
        counts[path] = len(captured)
    assert counts["trajectories?limit=1"] == counts["trajectories?limit=4"] <= 5
    assert counts["trajectories/facets"] <= 4
    assert counts["groups/1"] <= 5
    assert counts["trajectories/1-1-1/tokens"] <= 7
