"""The life cycle over REST: options of verbs, operations, attempts, the published table, the request id on its way."""

import re
from pathlib import Path

import pytest

from flexmarl.contracts.attempts import AttemptBegan, AttemptEnded, VerbEnded
from flexmarl.contracts.events import PauseMode, Verb, event_adapter
from flexmarl.contracts.status import INTERNAL_MOVES, TERMINAL, TRANSITIONS, RunReason, RunStatus
from flexmarl.controlplane.accounts.queries import actor_of_user
from flexmarl.controlplane.common.models import AuditEntry
from flexmarl.controlplane.common.problems import ValidationProblem
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.runs import actions, queries
from flexmarl.controlplane.runs.models import Operation
from flexmarl.controlplane.runs.verbs import VerbOptions
from flexmarl.controlplane.telemetry import queries as telemetry
from flexmarl.store.control import attempts, inbox
from tests.support.controlplane import set_state

pytestmark = pytest.mark.django_db

DOCS = Path(__file__).resolve().parents[2] / "docs" / "api.md"


def told(run):
    """The newest verb in the inbox of a run, as the driver gets it."""
    row = (
        store_connection()
        .execute("SELECT body::text FROM store.inbox WHERE run_id = %s ORDER BY id DESC LIMIT 1", [run.no])
        .fetchone()
    )
    return event_adapter.validate_json(row[0])


def ended(run, operation_id, succeeded, status, text=""):
    conn = store_connection()
    conn.execute(
        "INSERT INTO store.handled VALUES (%s, %s, 1) ON CONFLICT DO NOTHING", [run.no, f"verb:{operation_id}"]
    )
    attempts.write_outcomes(conn, run.no, [(5.0, VerbEnded(operation_id, succeeded, RunStatus(status), text))])


# -- options --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("body", "mode", "hold_s"),
    [
        ({}, PauseMode.DRAIN, 900.0),
        ({"mode": "freeze"}, PauseMode.FREEZE, 900.0),
        ({"mode": "drain", "hold_s": None}, PauseMode.DRAIN, None),
        ({"hold_s": 0}, PauseMode.DRAIN, 0.0),
    ],
)
def test_a_pause_carries_its_options_to_the_driver(api, editor, make_run, body, mode, hold_s) -> None:
    run = make_run(editor, RunStatus.RUNNING)
    assert api.post(f"/api/v1/runs/{run.id}/actions/pause", body).status_code == 202
    event = told(run)
    assert (event.mode, event.hold_s) == (mode, hold_s)
    detail = AuditEntry.objects.get(action="run.pause").detail
    assert {k: v for k, v in detail.items() if k in ("mode", "hold_s")} == body


def test_the_specification_says_how_long_devices_are_held(editor, make_run) -> None:
    run = make_run(editor, RunStatus.RUNNING, resources={"hold_s": 5})
    actions.act(actor_of_user(editor), run, Verb.PAUSE)
    assert told(run).hold_s == 5.0


@pytest.mark.parametrize(
    ("verb", "body", "pointer"),
    [
        ("pause", {"mode": "sleep"}, "/mode"),
        ("pause", {"hold_s": -1}, "/hold_s"),
        ("pause", {"hold_s": 10**9}, "/hold_s"),
        ("pause", {"hold_s": "NaN"}, "/hold_s"),
        ("pause", {"hold_s": "Infinity"}, "/hold_s"),
        ("pause", {"colour": 1}, "/colour"),
        ("stop", {"mode": "drain"}, "/mode"),
        ("kill", {"hold_s": None}, "/hold_s"),
    ],
)
def test_a_wrong_option_is_refused_by_name_with_a_legal_value(api, editor, make_run, verb, body, pointer) -> None:
    run = make_run(editor, RunStatus.RUNNING)
    answer = api.post(f"/api/v1/runs/{run.id}/actions/{verb}", body)
    assert answer.status_code == 400, answer.json()
    error = answer.json()["errors"][0]
    assert error["pointer"] == pointer
    assert not Operation.objects.exists()
    assert inbox.waiting(store_connection(), run.no) == 0


def test_options_are_checked_for_every_caller(editor, make_run) -> None:
    run = make_run(editor, RunStatus.RUNNING)
    with pytest.raises(ValidationProblem):
        actions.act(actor_of_user(editor), run, Verb.STOP, options=VerbOptions(mode=PauseMode.FREEZE))


# -- operations -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("verb", Verb)
def test_an_operation_ends_as_the_driver_says(api, editor, make_run, verb) -> None:
    status = next(status for status in RunStatus if verb in TRANSITIONS[status])
    run = make_run(editor, status)
    first = api.post(f"/api/v1/runs/{run.id}/actions/{verb}").json()
    assert (first["state"], first["ended_at"]) == ("pending", None)
    ended(run, first["id"], False, "killed", "superseded by kill")
    answer = api.get(first["url"]).json()
    assert (answer["state"], answer["error"]) == ("failed", {"status": "killed", "reason": "superseded by kill"})
    assert answer["ended_at"]


def test_operations_of_a_run_are_listed_newest_first_in_a_fixed_number_of_queries(
    api, editor, make_run, django_assert_max_num_queries
) -> None:
    run, other = make_run(editor, RunStatus.RUNNING), make_run(editor, RunStatus.RUNNING)
    asked = []
    for verb in (Verb.PAUSE, Verb.RESUME, Verb.STOP, Verb.KILL):
        asked.append(str(actions.act(actor_of_user(editor), run, verb, reason=f"why {verb}").id))
    actions.act(actor_of_user(editor), other, Verb.KILL)
    ended(run, asked[0], True, "paused")
    api.get(f"/api/v1/runs/{run.id}/operations")
    with django_assert_max_num_queries(6):
        page = api.get(f"/api/v1/runs/{run.id}/operations").json()
    assert [row["id"] for row in page["results"]] == asked[::-1]
    assert [row["state"] for row in page["results"]] == ["pending", "pending", "pending", "succeeded"]
    assert page["results"][0]["reason"] == "why kill"
    first = api.get(f"/api/v1/runs/{run.id}/operations?limit=3&ordering=created_at").json()
    assert [row["action"] for row in first["results"]] == ["pause", "resume", "stop"]
    assert [row["action"] for row in api.get(first["next"]).json()["results"]] == ["kill"]


def test_a_failed_run_can_be_retried_and_a_completed_one_not(api, editor, make_run) -> None:
    failed, done = make_run(editor, RunStatus.FAILED), make_run(editor, RunStatus.COMPLETED)
    assert api.get(f"/api/v1/runs/{failed.id}").json()["allowed_actions"] == ["retry"]
    assert api.post(f"/api/v1/runs/{failed.id}/actions/retry").status_code == 202
    assert api.get(f"/api/v1/runs/{failed.id}").json()["allowed_actions"] == ["stop", "kill"]
    refused = api.post(f"/api/v1/runs/{done.id}/actions/retry")
    assert (refused.status_code, refused.json()["allowed_actions"]) == (409, [])


def test_an_archived_run_is_restored_before_anything_else(api, editor, make_run) -> None:
    run = make_run(editor, RunStatus.KILLED)
    api.post(f"/api/v1/runs/{run.id}/actions/archive")
    assert api.get(f"/api/v1/runs/{run.id}").json()["allowed_actions"] == []
    refused = api.post(f"/api/v1/runs/{run.id}/actions/retry")
    assert (refused.status_code, refused.json()["allowed_actions"]) == (409, [])
    assert "restore it first" in refused.json()["detail"]
    api.post(f"/api/v1/runs/{run.id}/actions/restore")
    assert api.post(f"/api/v1/runs/{run.id}/actions/retry").status_code == 202


# -- attempts -------------------------------------------------------------------------------------------------------
def test_attempts_say_what_began_and_what_ended_them(api, editor, make_run) -> None:
    run = make_run(editor, RunStatus.RUNNING)
    assert api.get(f"/api/v1/runs/{run.id}/attempts").json()["results"] == []
    set_state(run, step=7, progress='{"attempt": 2}')
    changes = [
        (10.0, AttemptBegan(1, 1, Verb.START, "edith", 0)),
        (20.0, AttemptEnded(1, RunStatus.KILLED, RunReason.USER_REQUEST, "enough", "otto", 5, {"speaker": 5})),
        (30.0, AttemptBegan(2, 3, Verb.RETRY, "edith", 5)),
    ]
    attempts.write_attempts(store_connection(), run.no, changes)
    first, second = api.get(f"/api/v1/runs/{run.id}/attempts").json()["results"]
    assert (first["verb"], first["began_by"], first["ended_by"]) == ("start", "edith", "otto")
    assert (first["status"], first["reason"], first["reason_text"]) == ("killed", "user_request", "enough")
    assert (first["first_step"], first["last_step"], first["versions"]) == (0, 5, {"speaker": 5})
    assert first["ended_at"] == "1970-01-01T00:00:20.000Z"
    assert (second["status"], second["ended_at"], second["last_step"]) == ("running", None, 7)
    detail = api.get(f"/api/v1/runs/{run.id}").json()
    assert detail["attempt"] == 2
    assert detail["attempts"] == [first, second]
    assert api.get("/api/v1/runs?fields=attempt").json()["results"] == [{"attempt": 2}]


# -- the table ------------------------------------------------------------------------------------------------------
def test_the_published_table_is_the_one_that_the_driver_uses(api) -> None:
    table = api.get("/api/v1/transitions").json()
    states = {row["status"]: row for row in table["states"]}
    assert list(states) == [*RunStatus, "stopped"]
    assert states.pop("stopped") == {"status": "stopped", "terminal": True, "actions": [], "internal": []}
    for status, row in states.items():
        assert {move["action"]: move["to"] for move in row["actions"]} == TRANSITIONS[RunStatus(status)]
        assert set(row["internal"]) - {"stopped"} == INTERNAL_MOVES[RunStatus(status)]
        assert row["terminal"] == (status in TERMINAL)
    assert [row["action"] for row in table["actions"]] == list(Verb)
    assert set(table["reasons"]) == {reason.value for reason in RunReason if reason.value}


def test_the_documented_table_is_the_one_that_the_driver_uses() -> None:
    lines = re.findall(r"^\| `(\w+)` \|(.*)\|(.*)\|$", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    table = {status: (by_verb, by_itself) for status, by_verb, by_itself in lines if status in set(RunStatus)}
    assert list(table) == list(RunStatus)
    for status, (by_verb, by_itself) in table.items():
        moves = dict(re.findall(r"`(\w+)` to `(\w+)`", by_verb))
        assert moves == {v.value: to.value for v, to in TRANSITIONS[RunStatus(status)].items()}, status
        assert set(re.findall(r"`(\w+)`", by_itself)) - {"stopped"} == INTERNAL_MOVES[RunStatus(status)], status


# -- who, what, and which request -----------------------------------------------------------------------------------
def test_the_request_id_reaches_operation_audit_event_and_line(api, editor, make_run) -> None:
    run = make_run(editor, RunStatus.RUNNING)
    operation = api.post(f"/api/v1/runs/{run.id}/actions/stop", headers={"X-Request-ID": "trace-7"}).json()
    assert operation["request_id"] == "trace-7"
    assert AuditEntry.objects.get(action="run.stop").request_id == "trace-7"
    event = told(run)
    assert (event.cause, event.operation, event.actor) == ("trace-7", operation["id"], "edith")
    conn = store_connection()
    conn.execute("INSERT INTO store.event VALUES (%s, 1, 'run_verb', %s, now())", [run.no, event.model_dump_json()])
    conn.execute(
        "INSERT INTO store.note (run_id, seq, ord, level, actor, target, cause, text, at) "
        "VALUES (%s, 1, 0, 'info', 'edith', 'run', 'trace-7', 'run is stopping', now())",
        [run.no],
    )
    [row] = api.get(f"/api/v1/runs/{run.id}/events").json()["results"]
    assert (row["actor"], row["target"], row["cause"]) == ("edith", "run", "trace-7")
    [line] = api.get(f"/api/v1/runs/{run.id}/notes").json()["results"]
    assert (line["actor"], line["target"], line["cause"]) == ("edith", "run", "trace-7")
    assert telemetry.notes(queries.find_run(actor_of_user(editor), run.id))[0]["cause"] == "trace-7"
