"""Checks of a run's consistency as operations: started, joined, cancelled, taken over, remembered with their time."""

import threading
from datetime import timedelta

import pytest
from django.utils import timezone

from flexmarl.contracts.status import RunStatus
from flexmarl.controlplane.common.leased_work import MOST_TAKES, Holder, Stopped, end
from flexmarl.controlplane.common.models import WorkState
from flexmarl.controlplane.common.store import database_url, store_connection
from flexmarl.controlplane.runs.models import ConsistencyCheck
from flexmarl.controlplane.telemetry.checks import checking
from flexmarl.store.reads import report_sql
from tests.support.controlplane import key
from tests.support.markup import markup
from tests.support.played import play
from tests.support.statements import counted

pytestmark = pytest.mark.django_db(transaction=True)

ROWS = ("store.sample", "store.event", "store.micro_batch", "store.episode ")
"""Tables that grow with the run."""


@pytest.fixture
def run(editor, make_run):
    return make_run(editor, RunStatus.RUNNING)


@pytest.fixture
def played(run):
    yield play(run)
    store_connection().execute("TRUNCATE store.lease, store.device, store.node")


@pytest.fixture
def address(run) -> str:
    return f"/api/v1/runs/{run.id}/consistency"


def start(api, address):
    answer = api.post(address, {}, format="json", HTTP_IDEMPOTENCY_KEY=key())
    assert answer.status_code == 202, answer.content
    return answer


def make(*, stopping: bool = False) -> None:
    """Make the check that waits, as the process does."""
    stop = threading.Event()
    if stopping:
        stop.set()
    row = checking.take()
    assert row is not None
    checking.check(row, database_url(), stop)


def test_a_check_is_made_apart_from_requests_and_remembered_with_its_time(api, run, played, address) -> None:
    before = api.get(address).json()
    assert (before["ok"], before["checked_at"], before["checks"], before["counts"]) == (None, None, [], None)
    with counted() as statements:
        answer = start(api, address)
        assert api.get(address).json()["check"]["state"] == "queued"
    assert not [text for text in statements if any(table in text for table in ROWS)], (
        "a request reads no row of the run"
    )
    check = answer.json()
    assert (answer["Location"], check["state"], check["created_by"]) == (check["url"], "queued", "edith")
    make()
    done = api.get(check["url"]).json()
    assert (done["state"], done["progress"]["done"], done["allowed_actions"]) == ("done", 1000, [])
    found = api.get(address).json()
    checks = {one["name"]: one for one in found["checks"]}
    assert checks["none_trained_twice"]["ok"]
    assert checks["sample_rows_match_log"]["found"] == 4
    assert found["counts"]["samples_trained"] == 4
    assert found["checked_at"] == done["finished_at"]
    store_connection().execute("DELETE FROM store.sample WHERE run_id = %s AND draw = 0", [run.no])
    assert api.get(address).json() == found, "what was found is remembered until the next check"
    start(api, address)
    make()
    again = api.get(address).json()
    assert again["ok"] is False
    assert again["checked_at"] > found["checked_at"]


def test_a_second_request_joins_the_check_that_is_open(api, run, address) -> None:
    first = start(api, address).json()
    assert start(api, address).json()["id"] == first["id"]
    assert checking.take() is not None
    assert start(api, address).json()["id"] == first["id"]
    assert ConsistencyCheck.objects.count() == 1
    assert checking.take() is None, "and no second process makes it too"


def test_a_cancelled_check_ends_before_its_next_statement(api, address, monkeypatch) -> None:
    check, heard = start(api, address).json(), []
    watch = checking._watch

    def cancelled_midway(holder):
        listen = watch(holder)

        def hear(done, now):
            heard.append(now)
            if len(heard) == 1:
                assert api.post(f"{check['url']}/actions/cancel", {}, format="json").status_code == 200
            listen(done, now)

        return hear

    monkeypatch.setattr(checking, "_watch", cancelled_midway)
    make()
    assert len(heard) == 1, "it read no further"
    row = api.get(check["url"]).json()
    assert (row["state"], row["reason_text"]) == ("cancelled", "cancelled by edith")
    assert api.post(f"{check['url']}/actions/cancel", {}, format="json").json()["code"] == "invalid_state"
    assert api.get(address).json()["ok"] is None


def test_what_a_dead_process_left_is_made_by_the_next_and_the_dead_one_writes_nothing(api, address) -> None:
    check = start(api, address).json()
    dead = checking.take()
    assert dead is not None
    assert checking.take() is None, "as long as its lease holds"
    ConsistencyCheck.objects.update(lease_until=timezone.now() - timedelta(seconds=1))
    make()
    assert api.get(check["url"]).json()["state"] == "done"
    with pytest.raises(Stopped, match="taken away"):
        Holder(dead, 30.0, 30.0, lambda: False).write(done=1, now_at="log")
    end(dead, WorkState.FAILED, "fault", "late")
    assert api.get(check["url"]).json()["state"] == "done"


def test_a_process_that_is_told_to_end_gives_its_check_back(api, address) -> None:
    check = start(api, address).json()
    make(stopping=True)
    row = ConsistencyCheck.objects.get(pk=check["id"])
    assert (row.state, row.takes) == ("queued", 0)
    make()
    assert api.get(check["url"]).json()["state"] == "done"


def test_a_check_that_kills_its_process_is_given_up(api, address) -> None:
    check = start(api, address).json()
    past = timezone.now() - timedelta(seconds=1)
    ConsistencyCheck.objects.update(state="running", takes=MOST_TAKES, lease_until=past)
    assert checking.take() is None
    row = api.get(check["url"]).json()
    assert (row["state"], row["reason"]) == ("failed", "gave_up")


def test_a_statement_that_takes_too_long_fails_the_check_and_says_so(api, address, monkeypatch) -> None:
    check = start(api, address).json()
    monkeypatch.setattr(checking, "STATEMENT_S", 0.3)
    monkeypatch.setattr(report_sql, "STATE", "SELECT 0, 0, 0, true, false FROM pg_sleep(20)")
    make()
    row = api.get(check["url"]).json()
    assert (row["state"], row["reason"]) == ("failed", "time_limit")
    assert "longer than 0.3 s" in row["reason_text"]


def test_old_checks_are_forgotten_and_the_last_whole_one_is_not(api, address, monkeypatch) -> None:
    monkeypatch.setattr(checking, "MOST_KEPT", 1)
    start(api, address)
    make()
    for _ in range(3):
        check = start(api, address).json()
        api.post(f"{check['url']}/actions/cancel", {}, format="json")
    checking._forget_old(ConsistencyCheck.objects.first())
    assert sorted(ConsistencyCheck.objects.values_list("state", flat=True)) == ["cancelled", "done"]
    assert api.get(address).json()["ok"] is True


@pytest.mark.parametrize("tab", ["logs", "checkpoints", "parts/checks"])
def test_a_tab_shows_what_is_remembered_and_checks_nothing(browser, api, run, played, address, tab) -> None:
    def shown() -> str:
        with counted() as statements:
            html = markup(browser.get(f"/runs/{run.key}/{tab}"))
        assert not [text for text in statements if "jsonb_array_elements(m.keys)" in text], "it reads the rows"
        return html

    assert "Not checked yet" in shown()
    start(api, address)
    assert "Queued." in shown()
    make()
    html = shown()
    assert "all passed" in html
    assert "No sample is trained twice" in html
    assert "Run again" in html
