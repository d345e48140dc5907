"""Sessions of agent programs over REST: handed out once, reported on once, each refusal by name."""

import uuid
from datetime import UTC, datetime

import pytest

from flexmarl.contracts.status import RunStatus
from flexmarl.controlplane.common.models import AuditEntry
from flexmarl.controlplane.common.store import store_connection
from flexmarl.store.control import program_sessions
from flexmarl.store.control.program_sessions import SessionOffer
from tests.support.controlplane import PROGRAM, key

pytestmark = pytest.mark.django_db
SEEN_LATER = "UPDATE store.program_session SET seen_at = clock_timestamp() + interval '1 hour' WHERE id = %s"
"""No worker says that it is there, however long a test takes."""


@pytest.fixture
def run(editor, make_run):
    return make_run(editor, RunStatus.RUNNING, **PROGRAM)


@pytest.fixture
def opened(run):
    """Return a function that opens a session, as a rollout worker does."""

    def open_one(task: int = 3, held_out: bool = False) -> str:
        offer = SessionOffer(uuid.uuid4(), "http://127.0.0.1:9", held_out, task, (task, 0, 1))
        program_sessions.open_session(store_connection(), run.no, offer)
        store_connection().execute(SEEN_LATER, [offer.id])
        return str(offer.id)

    return open_one


def post(client, run, path: str = "", body: object = None, **headers: str):
    return client.post(f"/api/v1/runs/{run.key}/sessions{path}", body or {}, format="json", headers=headers)


def refused(answer, status: int, code: str) -> str:
    body = answer.json()
    assert (answer.status_code, body["code"]) == (status, code), body
    return body["errors"][0]["pointer"] if body["errors"] else body["detail"]


def test_a_session_is_handed_out_once_and_its_key_is_stored_nowhere(api, run, opened) -> None:
    first, second = opened(3), opened(4)
    taken = post(api, run).json()
    assert (taken["id"], taken["task"], taken["state"], taken["purpose"]) == (first, 3, "taken", "training")
    assert taken["base_url"] == "http://127.0.0.1:9/v1"
    assert taken["seats"] == ["solver", "reviser"]
    rows = store_connection().execute("SELECT s::text FROM store.program_session s").fetchall()
    assert not any(taken["key"] in row[0] for row in rows)
    assert "key" not in api.get(f"/api/v1/runs/{run.key}/sessions/{first}").json()
    repeated = key()
    assert post(api, run, Idempotency_Key=repeated).json()["id"] == second
    assert post(api, run, Idempotency_Key=repeated).json()["key"] is None
    answer = post(api, run)
    assert "no session" in refused(answer, 409, "no_open_session")
    assert answer.headers["Retry-After"] == "1"


@pytest.mark.parametrize(("status", "verb"), [(RunStatus.DRAFT, "start"), (RunStatus.PAUSED, "resume")])
def test_a_program_that_asks_a_run_that_does_not_play_is_told_what_makes_it_play(
    api, editor, make_run, status, verb
) -> None:
    answer = post(api, make_run(editor, status, **PROGRAM))
    assert f"Only its action {verb} makes it open one." in refused(answer, 409, "no_open_session")


def test_many_programs_that_ask_use_up_nothing_else(api, run, opened, settings) -> None:
    """Each asks every second while no session waits, with one token: they are counted apart."""
    settings.API_RATES = {**settings.API_RATES, "ordinary": 3, "sessions": 5}
    for _ in range(5):
        refused(post(api, run), 409, "no_open_session")
    answer = post(api, run)
    assert "class sessions" in refused(answer, 429, "rate_limited")
    assert int(answer.headers["Retry-After"]) >= 1
    listed = [api.get(f"/api/v1/runs/{run.key}/sessions").status_code for _ in range(4)]
    assert listed == [200, 200, 200, 429], "reading the list is ordinary"


def test_the_first_report_stands(api, run, opened) -> None:
    opened()
    session = post(api, run).json()["id"]
    report = {"reward": 0.5, "rewards": {"solver": 1.0}}
    assert post(api, run, f"/{session}/finish", report).json()["report"] == report
    assert post(api, run, f"/{session}/finish", report).json()["state"] == "finished"
    refused(post(api, run, f"/{session}/finish", {"reward": 1}), 409, "session_over")
    assert api.get(f"/api/v1/runs/{run.key}/sessions/{session}").json()["report"] == report


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/reward"),
        ({"reward": 1, "error": "both"}, "/reward"),
        ({"reward": 2}, "/reward"),
        ({"reward": -0.1}, "/reward"),
        ({"reward": "much"}, "/reward"),
        ({"rewards": {"judge": 1}}, "/rewards/judge"),
        ({"rewards": {"solver": 1}}, "/rewards/reviser"),
        ({"rewards": {"solver": 7, "reviser": 0}}, "/rewards/solver"),
        ({"score": 1}, "/score"),
    ],
    ids=str,
)
def test_a_report_that_cannot_count_names_its_member(api, run, opened, body, pointer) -> None:
    opened()
    session = post(api, run).json()["id"]
    assert refused(post(api, run, f"/{session}/finish", body), 400, "validation_error") == pointer
    assert api.get(f"/api/v1/runs/{run.key}/sessions/{session}").json()["state"] == "taken"


@pytest.fixture
def late(editor, make_run):
    """Return a run whose rewards may come later."""
    return make_run(editor, RunStatus.RUNNING, **later_by(600))


def later_by(timeout_s: float, **more: object) -> dict:
    return {**PROGRAM, "environment": {**PROGRAM["environment"], "reward_timeout_s": timeout_s, **more}}


@pytest.fixture
def awaited(api, late):
    """Return a session whose program has said that its reward comes later."""
    offer = SessionOffer(uuid.uuid4(), "http://127.0.0.1:9", False, 3, (3, 0, 1))
    program_sessions.open_session(store_connection(), late.no, offer)
    session = post(api, late).json()["id"]
    assert post(api, late, f"/{session}/finish", {"reward_later": True}).status_code == 200
    # Its worker stays there, however slow the machine is.
    store_connection().execute("UPDATE store.program_session SET seen_at = clock_timestamp() + interval '1 hour'")
    return session


def test_a_reward_may_come_later_and_the_first_one_stands(api, late, awaited) -> None:
    path = f"/{awaited}/finish"
    again = post(api, late, path, {"reward_later": True}).json()
    assert (again["state"], again["report"], again["reward"], again["ended_at"]) == ("awaiting_reward", {}, None, None)
    assert again["deadline_at"] == again["reward_deadline_at"], "said twice, and the first time counts"
    left_s = (datetime.fromisoformat(again["deadline_at"]) - datetime.now(UTC)).total_seconds()
    assert 0 < left_s <= 600
    counted = program_sessions.counts(store_connection(), late.no)
    assert (counted.open, counted.taken, counted.awaiting_reward, counted.finished, counted.ended) == (0, 0, 1, 0, 0)
    given = post(api, late, path, {"reward": 0.5}).json()
    assert (given["state"], given["reward"], given["deadline_at"]) == ("finished", 0.5, None)
    assert post(api, late, path, {"reward": 0.5}).json() == given
    assert post(api, late, path, {"reward_later": True}).json() == given, "a repetition that was on its way for long"
    refused(post(api, late, path, {"reward": 1}), 409, "session_over")
    refused(post(api, late, path, {"error": "no"}), 409, "session_over")
    assert (given["taken_by"], given["reported_by"]) == ("edith", "edith")
    assert not AuditEntry.objects.filter(action="session.finish").exists(), "the trail has the session that edith took"


def test_an_error_may_come_later_too(api, late, awaited) -> None:
    ended = post(api, late, f"/{awaited}/finish", {"error": "the tests did not start"}).json()
    assert (ended["state"], ended["reward"], ended["report"]) == (
        "finished",
        None,
        {"error": "the tests did not start"},
    )


def test_a_reward_after_its_deadline_is_refused_and_the_session_says_why_it_ended(api, late, awaited) -> None:
    conn, session = store_connection(), uuid.UUID(awaited)
    program_sessions.end_overdue(conn, session, "too early")
    assert api.get(f"/api/v1/runs/{late.key}/sessions/{awaited}").json()["state"] == "awaiting_reward"
    conn.execute("UPDATE store.program_session SET reward_deadline_at = clock_timestamp()")
    answer = post(api, late, f"/{awaited}/finish", {"reward": 1})
    assert "no reward arrived by" in refused(answer, 409, "session_over"), "its worker has not ended it yet"
    program_sessions.end_overdue(conn, session, "environment: reward: no reward arrived within 600 s")
    ended = api.get(f"/api/v1/runs/{late.key}/sessions/{awaited}").json()
    assert (ended["state"], ended["reward"]) == ("ended", None)
    for body in ({"reward": 1}, {"reward_later": True}):
        assert "within 600 s" in refused(post(api, late, f"/{awaited}/finish", body), 409, "session_over")


def test_the_store_ends_no_session_whose_reward_arrived(api, late, awaited) -> None:
    post(api, late, f"/{awaited}/finish", {"reward": 1})
    conn, session = store_connection(), uuid.UUID(awaited)
    conn.execute("UPDATE store.program_session SET reward_deadline_at = clock_timestamp()")
    program_sessions.end_overdue(conn, session, "too late")
    assert [(one.state, one.overdue) for one in program_sessions.news(conn, [session])] == [("finished", False)]


def test_a_session_that_awaits_its_reward_ends_with_its_worker(api, late, awaited) -> None:
    store_connection().execute("UPDATE store.program_session SET seen_at = clock_timestamp() - interval '1 minute'")
    assert "worker" in refused(post(api, late, f"/{awaited}/finish", {"reward": 1}), 409, "session_over")
    assert program_sessions.counts(store_connection(), late.no).ended == 1


def test_no_reward_comes_later_where_the_run_does_not_wait_or_one_is_there(api, run, late, awaited, opened) -> None:
    opened()
    session = post(api, run).json()["id"]
    answer = post(api, run, f"/{session}/finish", {"reward_later": True})
    assert refused(answer, 400, "validation_error") == "/reward_later"
    assert "environment.reward_timeout_s is 0" in answer.json()["detail"]
    assert "send reward, rewards or error" in answer.json()["detail"]
    for more in ({"reward": 1}, {"rewards": {"solver": 1, "reviser": 0}}, {"error": "no"}):
        answer = post(api, late, f"/{awaited}/finish", {"reward_later": True, **more})
        assert refused(answer, 400, "validation_error") == "/reward_later"
    answer = post(api, late, f"/{awaited}/finish", {"reward_later": False})
    assert refused(answer, 400, "validation_error") == "/reward"
    assert "reward_later" in answer.json()["detail"]


def test_lists_and_pages_show_what_awaits_its_reward(api, browser, late, awaited) -> None:
    for query, found in (("?state=awaiting_reward", 1), ("?live=yes", 1), ("?live=no", 0), ("?state=taken", 0)):
        assert len(api.get(f"/api/v1/runs/{late.key}/sessions{query}").json()["results"]) == found, query
    page = browser.get(f"/runs/{late.key}/trajectories/sessions?state=awaiting_reward").content.decode()
    assert "Left for its reward to arrive." in page
    assert "Awaiting a reward" in browser.get(f"/runs/{late.key}/parts/programs").content.decode()


def test_a_session_that_ended_takes_no_report_and_says_why(api, run, opened) -> None:
    opened()
    session = post(api, run).json()["id"]
    program_sessions.end(store_connection(), uuid.UUID(session), "environment: run: too late")
    assert "too late" in refused(post(api, run, f"/{session}/finish", {"reward": 1}), 409, "session_over")


def test_a_session_whose_worker_fell_silent_is_over(api, run, opened) -> None:
    opened()
    session = post(api, run).json()["id"]
    opened()
    store_connection().execute("UPDATE store.program_session SET seen_at = clock_timestamp() - interval '1 minute'")
    refused(post(api, run), 409, "no_open_session")
    shown = api.get(f"/api/v1/runs/{run.key}/sessions/{session}").json()
    assert (shown["state"], shown["reason"]) == ("ended", "gateway: the rollout worker that played it is gone")
    refused(post(api, run, f"/{session}/finish", {"reward": 1}), 409, "session_over")


def test_who_may_not_act_on_the_run_gets_no_session(api, client_of, person, editor, make_run, run, opened) -> None:
    opened()
    refused(post(client_of(person("editor", "other")), run), 403, "permission_denied")
    refused(post(client_of(editor, ["runs:read"]), run), 403, "permission_denied")
    refused(post(api, make_run(editor, RunStatus.RUNNING)), 409, "no_programs")
    refused(post(api, make_run(editor, RunStatus.COMPLETED, **PROGRAM)), 409, "invalid_state")
    assert api.get(f"/api/v1/runs/{run.key}/sessions/{uuid.uuid4()}").status_code == 404


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"mechanisms": {"ordered": True}}, "/mechanisms/ordered"),
        ({"mechanisms": {"parallel": {"turns": "together"}}}, "/mechanisms/parallel/turns"),
        ({"batch": {"episode_timeout_s": 5}}, "/environment/run_timeout_s"),
        ({"environment": {**PROGRAM["environment"], "seats": ["solver", "solver"]}}, "/environment"),
        ({"environment": {**PROGRAM["environment"], "reward_timeout_s": -1}}, "/environment/reward_timeout_s"),
    ],
    ids=str,
)
def test_a_run_that_no_program_could_play_is_refused(api, changes, pointer) -> None:
    headers = {"Idempotency-Key": key()}
    answer = api.post("/api/v1/runs", {"spec": {**PROGRAM, **changes}}, format="json", headers=headers)
    assert answer.status_code == 400
    assert any(one["pointer"].startswith(pointer) for one in answer.json()["errors"]), answer.content


def test_the_page_of_a_run_says_how_a_program_takes_a_session_and_where_sessions_stand(
    api, browser, make_run, editor, run, opened
) -> None:
    opened()
    page = browser.get(f"/runs/{run.key}").content.decode()
    assert page.count("Sessions wait for a program") == 1, "no other part says it too"
    assert f"http://testserver/api/v1/runs/{run.key}/sessions" in page
    session = post(api, run).json()["id"]
    program_sessions.end(store_connection(), uuid.UUID(session), "environment: program: lost <it>")
    opened()
    post(api, run)
    part = browser.get(f"/runs/{run.key}/parts/programs").content.decode()
    assert "last: environment: program: lost &lt;it&gt;" in part
    assert "Programs are at work" in part
    counted = program_sessions.counts(store_connection(), run.no)
    assert (counted.open, counted.taken, counted.finished, counted.ended) == (0, 1, 0, 1)
    assert "Agent programs" not in browser.get(f"/runs/{make_run(editor, RunStatus.RUNNING).key}").content.decode()


@pytest.fixture
def started(editor, make_run):
    """Return a run whose rollout workers start its programs."""
    run = make_run(editor, RunStatus.RUNNING, **PROGRAM)
    runner = {"type": "process", "package": "two-seats@1.0", "program": "sums"}
    run.spec = {**run.spec, "environment": {**run.spec["environment"], "runner": runner}}
    run.save(update_fields=["spec"])
    return run


def test_sessions_of_programs_that_workers_start_are_nobody_elses(api, browser, started) -> None:
    offer = SessionOffer(uuid.uuid4(), "http://127.0.0.1:9", False, 3, (3, 0, 1), "d" * 64)
    program_sessions.open_session(store_connection(), started.no, offer)
    assert "two-seats@1.0" in refused(post(api, started), 409, "starts_programs")
    refused(post(api, started, f"/{offer.id}/finish", {"reward": 1}), 409, "starts_programs")
    program_sessions.wrote(store_connection(), offer.id, "Traceback <of it>")
    program_sessions.end(store_connection(), offer.id, "environment: program: exit code 3")
    shown = api.get(f"/api/v1/runs/{started.key}/sessions").json()["results"]
    assert [(one["state"], one["output"]) for one in shown] == [("ended", "Traceback <of it>")]
    page = browser.get(f"/runs/{started.key}/trajectories/sessions").content.decode()
    assert "Traceback &lt;of it&gt;" in page
    assert "OpenAI(base_url" not in page, "no program of anybody's connects"
    assert "Rollout workers start the program" in browser.get(f"/runs/{started.key}/parts/programs").content.decode()
