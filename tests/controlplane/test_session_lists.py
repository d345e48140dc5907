"""Lists of sessions of agent programs, over REST and on their page: filters, orders, and what sessions became."""

import re
import uuid
from datetime import datetime, timedelta

import pytest

from flexmarl.contracts.status import RunStatus
from flexmarl.controlplane.common.models import AuditEntry
from flexmarl.controlplane.common.store import store_connection
from flexmarl.store.control import program_sessions
from flexmarl.store.control.program_sessions import SessionMeter, SessionOffer
from tests.support.controlplane import PROGRAM
from tests.support.markup import markup
from tests.support.played import play
from tests.support.statements import at_most

pytestmark = pytest.mark.django_db
SEEN_LATER = "UPDATE store.program_session SET seen_at = clock_timestamp() + interval '1 hour' WHERE id = %s"
"""No worker says that it is there, however long a test takes."""


@pytest.fixture
def run(editor, make_run):
    return make_run(editor, RunStatus.RUNNING, **PROGRAM)


@pytest.fixture
def opened(run):
    """Return a function that opens a session of an episode, as a rollout worker does."""

    def open_one(draw: int = 9, member: int = 0, *, task: int = 3, held_out: bool = False) -> str:
        offer = SessionOffer(uuid.uuid4(), "http://127.0.0.1:9", held_out, task, (draw, member, 1))
        program_sessions.open_session(store_connection(), run.no, offer)
        store_connection().execute(SEEN_LATER, [offer.id])
        return str(offer.id)

    return open_one


@pytest.fixture
def take(api, run):
    return lambda: api.post(f"/api/v1/runs/{run.key}/sessions").json()["id"]


@pytest.fixture
def finish(api, run, opened, take):
    """Return a function that opens a session, takes it, and reports on it."""

    def finish_one(*episode: int, report: dict | None = None, **options: object) -> str:
        opened(*episode, **options)
        session = take()
        answer = api.post(f"/api/v1/runs/{run.key}/sessions/{session}/finish", report or {"reward": 0.5}, format="json")
        assert answer.status_code == 200, answer.content
        return session

    return finish_one


@pytest.fixture
def get(api, run):
    def read(query: str = "", status: int = 200):
        answer = api.get(f"/api/v1/runs/{run.key}/sessions{query}")
        assert answer.status_code == status, answer.content
        return answer.json()

    return read


def ids(page) -> list[str]:
    return [row["id"] for row in page["results"]]


def meter(session: str, calls: int, tokens: int, left_s: float = 1.0) -> None:
    program_sessions.seen(store_connection(), [SessionMeter(uuid.UUID(session), calls, tokens, left_s)])


def silence(session: str) -> None:
    store_connection().execute(
        "UPDATE store.program_session SET seen_at = clock_timestamp() - interval '1 minute' WHERE id = %s", [session]
    )


def test_filters_choose_and_illegal_ones_name_what_is_legal(get, opened, take, finish) -> None:
    finished = finish(task=1)
    opened(task=2)
    taken = take()
    opened(task=2)
    silent = take()
    silence(silent)
    held_out = opened(task=1001, held_out=True)
    assert ids(get()) == [held_out, silent, taken, finished]
    assert ids(get("?state=finished")) == [finished]
    assert ids(get("?state=finished&state=open")) == [held_out, finished]
    assert ids(get("?state=ended")) == [silent], "its worker fell silent"
    assert ids(get("?live=yes")) == [held_out, taken]
    assert ids(get("?live=no")) == [silent, finished]
    assert ids(get("?purpose=evaluation")) == [held_out]
    assert ids(get("?purpose=training&task=2")) == [silent, taken]
    for query in ("?state=asleep", "?purpose=play", "?live=1", "?task=one", "?ordering=reward", "?reward=1"):
        assert get(query, 400)["errors"][0]["pointer"] == query[1:].partition("=")[0]
    assert "open, taken, awaiting_reward, finished, ended" in get("?state=asleep", 400)["errors"][0]["hint"]


@pytest.mark.parametrize("ordering", ["-opened_at", "opened_at", "-calls", "calls", "-tokens", "tokens"])
def test_pages_go_both_ways_in_every_order(api, get, opened, ordering) -> None:
    for place in range(5):
        meter(opened(), calls=place // 2, tokens=9 - place // 3)
    rows = get(f"?ordering={ordering}")["results"]
    name = ordering.lstrip("-")
    values = [row["tokens"]["sampled"] if name == "tokens" else row[name] for row in rows]
    assert values == sorted(values, reverse=ordering.startswith("-"))
    whole = [row["id"] for row in rows]
    first = get(f"?ordering={ordering}&limit=3&count=exact")
    assert (first["previous"], first["count"]) == (None, 5)
    second = api.get(first["next"]).json()
    assert ids(first) + ids(second) == whole
    assert second["next"] is None
    assert ids(api.get(second["previous"]).json()) == whole[:3]
    cursor = first["next"].partition("cursor=")[2].partition("&")[0]
    other = "calls" if name != "calls" else "tokens"
    assert get(f"?ordering={other}&cursor={cursor}", 400)["errors"][0]["code"] == "other_ordering"


def test_a_session_says_how_far_it_is_and_until_when_it_may_go_on(get, opened, take) -> None:
    def deadline(row, since: str) -> timedelta:
        return datetime.fromisoformat(row["deadline_at"]) - datetime.fromisoformat(row[since])

    opened()
    [row] = get()["results"]
    assert deadline(row, "opened_at") == timedelta(seconds=600), "environment.boot_timeout_s"
    session = take()
    [row] = get()["results"]
    assert deadline(row, "taken_at") == timedelta(seconds=60), "environment.run_timeout_s"
    meter(session, calls=2, tokens=40, left_s=5.0)
    [row] = get()["results"]
    assert (row["calls"], row["tokens"]) == (2, {"sampled": 40, "delivered": None})
    assert deadline(row, "taken_at") < timedelta(seconds=10), "what its program has left"
    assert row["trajectory"] is row["chains"] is row["reward"] is row["ended_at"] is None
    silence(session)
    [row] = get()["results"]
    assert (row["state"], row["deadline_at"]) == ("ended", None)
    assert row["ended_at"] is not None


def test_a_session_tells_its_rewards_its_trajectory_and_what_of_it_was_trained(get, run, finish) -> None:
    play(run)  # draws 0 and 1, of which the rows of draw 0 are trained
    store_connection().execute("UPDATE store.episode SET status = 'failed' WHERE run_id = %s AND draw = 1", [run.no])
    store_connection().execute("UPDATE store.micro_batch SET keys = keys - 2 - 2 WHERE run_id = %s", [run.no])
    trained = finish(0, 0, report={"rewards": {"solver": 1.0, "reviser": 0.5}})
    waiting = finish(1, 1, report={"reward": 0.25, "rewards": {"solver": 1.0}})
    again = finish(7, 0, report={"error": "the browser crashed"})
    rows = {row["id"]: row for row in get()["results"]}
    assert rows[trained]["trajectory"] == {
        "id": "0-0-1",
        "status": "finished",
        "url": f"/api/v1/runs/{run.id}/trajectories/0-0-1",
        "web_url": f"/runs/{run.key}/trajectories/0-0-1",
    }
    assert (rows[trained]["reward"], rows[trained]["rewards"]) == (0.75, {"solver": 1.0, "reviser": 0.5})
    assert (rows[trained]["chains"], rows[trained]["tokens"]["delivered"]) == (1, 3)
    assert (rows[waiting]["reward"], rows[waiting]["rewards"]) == (0.25, {"solver": 1.0, "reviser": 0.25})
    assert rows[waiting]["trajectory"]["status"] == "failed"
    assert (rows[waiting]["chains"], rows[waiting]["tokens"]["delivered"]) == (1, 0)
    assert (rows[again]["reward"], rows[again]["rewards"], rows[again]["trajectory"]) == (None, {}, None)
    store_connection().execute("UPDATE store.micro_batch SET status = 'accumulated' WHERE run_id = %s", [run.no])
    rows = {row["id"]: row for row in get()["results"]}
    assert (rows[trained]["chains"], rows[trained]["tokens"]["delivered"]) == (1, 0), "no step was taken on it yet"
    store_connection().execute("UPDATE store.program_session SET held_out = true WHERE id = %s", [trained])
    assert {row["id"]: row for row in get()["results"]}[trained]["tokens"]["delivered"] is None, "nobody trains on it"
    store_connection().execute("DELETE FROM store.sample WHERE run_id = %s", [run.no])
    rows = {row["id"]: row for row in get()["results"]}
    assert rows[trained]["chains"] is rows[trained]["tokens"]["delivered"] is None, "its rows were retired"
    assert rows[trained]["trajectory"]["id"] == "0-0-1"


def test_other_runs_have_no_sessions_and_other_people_do_not_know_of_them(
    api, client_of, person, editor, make_run, run, opened
) -> None:
    opened()
    answer = api.get(f"/api/v1/runs/{make_run(editor, RunStatus.RUNNING).key}/sessions")
    assert (answer.status_code, answer.json()["code"]) == (409, "no_programs")
    assert len(ids(client_of(person("viewer", "looks")).get(f"/api/v1/runs/{run.key}/sessions").json())) == 1
    outside = client_of(person("editor", "outside", "elsewhere"))
    assert outside.get(f"/api/v1/runs/{run.key}/sessions").status_code == 404


def test_the_audit_trail_has_the_first_session_of_each_actor_and_sessions_say_the_rest(
    api, client_of, person, run, opened, take, finish, get
) -> None:
    refused = api.post(f"/api/v1/runs/{run.key}/sessions")
    assert refused.status_code == 409
    session = finish(task=4)
    api.post(f"/api/v1/runs/{run.key}/sessions/{session}/finish", {"reward": 0.5}, format="json")  # heard once
    rows = list(AuditEntry.objects.filter(target_kind="session").order_by("id"))
    assert [row.action for row in rows] == ["session.take"]
    assert [row.detail for row in rows] == [{"purpose": "training", "task": 4}]
    assert {(row.target_name, row.project) for row in rows} == {(f"{run.key} {session}", run.project_id)}
    for draw in (10, 11):
        finish(draw)
    other = client_of(person("operator", "judges"))
    for draw in (12, 13):
        opened(draw)
        report = {"error": "no"}
        answer = other.post(f"/api/v1/runs/{run.key}/sessions/{take()}/finish", report, format="json")
        assert answer.status_code == 200, answer.content
    rows = AuditEntry.objects.filter(target_kind="session").order_by("id")
    assert [(row.actor_name, row.action) for row in rows] == [("edith", "session.take"), ("judges", "session.finish")]
    said = [(row["taken_by"], row["reported_by"]) for row in get()["results"]]
    assert said == [("edith", "judges")] * 2 + [("edith", "edith")] * 3


def test_the_page_lists_sessions_and_leads_to_their_trajectories(browser, run, opened, take, finish) -> None:
    address = f"/runs/{run.key}/trajectories/sessions"
    empty = markup(browser.get(address))
    assert "No sessions yet" in empty
    assert f"http://testserver/api/v1/runs/{run.key}/sessions" in empty
    play(run)
    finish(0, 0, report={"reward": 0.5})
    opened()
    lost = take()
    program_sessions.end(store_connection(), uuid.UUID(lost), "environment: program: lost <it>")
    opened(task=8)
    text = markup(browser.get(address))
    assert f'data-href="/runs/{run.key}/trajectories/0-0-1"' in text
    assert "environment: program: lost &lt;it&gt;" in text
    assert "How a program" in text
    only = browser.get(f"{address}?state=open", headers={"X-Part": "1"}).content.decode()
    assert "Task 8" in only
    assert "Task 3" not in only
    assert "<form" not in only
    late = markup(browser.get(f"{address}?state=awaiting_reward"))
    assert re.search(r"State\s*<[^>]+>\s*Awaits its reward", late), "the filter in force is said in words"
    assert "No session matches" in markup(browser.get(f"{address}?task=77"))
    refused = markup(browser.get(f"{address}?state=asleep"))
    assert "Invalid filter" in refused
    assert "Legal: open, taken, awaiting_reward, finished, ended." in refused


def test_a_run_that_has_ended_says_no_more_how_to_connect(browser, editor, make_run) -> None:
    run = make_run(editor, RunStatus.COMPLETED, **PROGRAM)
    store_connection().execute("UPDATE store.run_state SET finished_at = now() WHERE run_id = %s", [run.no])
    address = f"/runs/{run.key}/trajectories/sessions"
    assert "No session was opened" in markup(browser.get(address))
    offer = SessionOffer(uuid.uuid4(), "http://127.0.0.1:9", False, 3, (1, 0, 1))
    program_sessions.open_session(store_connection(), run.no, offer)
    text = markup(browser.get(address))
    assert "Task 3" in text
    assert "OpenAI(" not in text


def test_the_number_of_statements_does_not_follow_the_sessions(api, browser, run, opened, finish) -> None:
    play(run)
    for member in range(2):
        finish(0, member)
        opened()
    with at_most(6, "REST"):
        api.get(f"/api/v1/runs/{run.key}/sessions")
    browser.get(f"/runs/{run.key}/trajectories/sessions")
    with at_most(20, "page"):
        browser.get(f"/runs/{run.key}/trajectories/sessions")
