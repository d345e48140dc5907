"""How a run ended or what it waits for, in the same words in the API, in lists and on its page; filing it away."""

import json
import re
from datetime import UTC, datetime

import pytest
from django.test import Client

from flexmarl.contracts.commands import RequestDevices
from flexmarl.contracts.events import DeviceUse
from flexmarl.contracts.status import RunReason, RunStatus
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.runs.models import Run
from flexmarl.store.control import leases, nodes
from flexmarl.store.control.nodes import DeviceFacts, NodeFacts
from flexmarl.store.control.runs import RunLease
from flexmarl.store.data import lineage
from tests.support.controlplane import set_state
from tests.support.markup import markup

pytestmark = pytest.mark.django_db


def header(client: Client, run: Run) -> str:
    return markup(client.get(f"/runs/{run.key}/parts/header"))


@pytest.fixture
def stopped(editor, make_run):
    run = make_run(editor, RunStatus.COMPLETED)
    set_state(run, reason=RunReason.USER_REQUEST, step=3, finished_at=datetime.now(UTC))
    return run


def test_a_run_that_somebody_stopped_is_stopped_everywhere(api, browser, editor, make_run, stopped) -> None:
    done = make_run(editor, RunStatus.COMPLETED)
    set_state(done, reason=RunReason.BUDGET_STEPS)
    assert api.get(f"/api/v1/runs/{stopped.id}").json()["status"] == "stopped"
    assert api.get(f"/api/v1/runs/{done.id}").json()["status"] == "completed"

    def found(*statuses: str) -> set[str]:
        query = "&".join(f"status={status}" for status in statuses)
        return {row["key"] for row in api.get(f"/api/v1/runs?{query}").json()["results"]}

    assert found("stopped") == {stopped.key}
    assert found("completed") == {done.key}
    assert found("completed", "stopped") == {stopped.key, done.key}
    assert found("failed", "stopped") == {stopped.key}
    assert ">Stopped" in header(browser, stopped)
    assert "Completed" not in header(browser, stopped)
    rows = markup(browser.get("/runs?status=stopped"))
    assert stopped.key in rows
    assert done.key not in rows
    assert re.search(r'<option value="stopped">', rows), "the filter offers it"


def test_a_page_files_ended_runs_and_offers_nothing_to_those_who_may_not(browser, editor, person, stopped) -> None:
    assert 'data-verb="archive"' in header(browser, stopped)
    assert browser.post(f"/api/v1/runs/{stopped.id}/actions/archive").status_code == 200
    assert 'data-verb="restore"' in header(browser, stopped)
    viewer = Client()
    viewer.force_login(person("viewer"))
    text = header(viewer, stopped)
    assert "data-verb" not in text
    assert "New run from this one" not in text


def test_a_running_run_says_why_it_is_not_archived(browser, editor, make_run) -> None:
    text = header(browser, make_run(editor, RunStatus.RUNNING))
    assert "Only ended runs and drafts can be archived." in text


def test_a_fork_names_run_and_step(browser, editor, make_run, stopped) -> None:
    made = make_run(editor)
    assert "fork of" not in header(browser, made)
    Run.objects.filter(pk=made.pk).update(parent=stopped)
    origin = lineage.VersionOrigin("speaker", stopped.no, "speaker", 40, 40, True, "d" * 64)
    lineage.put(store_connection(), made.no, [origin])
    assert f"fork of {stopped.key}, step 40" in header(browser, made)
    assert "after step 40" in markup(browser.get(f"/runs/{made.key}"))


def test_a_queued_run_names_whom_it_waits_for(browser, editor, make_run) -> None:
    conn = store_connection()
    nodes.register_node(conn, NodeFacts("box", "127.0.0.1:1", "i1", "0.1"), [DeviceFacts("box.cpu0", "cpu", 0)])
    holder, waiting = make_run(editor, RunStatus.RUNNING), make_run(editor, RunStatus.QUEUED)
    for run in (holder, waiting):
        wish = RequestDevices(pool="default", engines=1, trainers=0)
        conn.execute(
            "INSERT INTO store.command (run_id, no, seq, epoch, kind, route, body) "
            "VALUES (%s, 1, 1, 1, 'request_devices', 'driver', %s::jsonb)",
            [run.no, wish.model_dump_json()],
        )
    conn.execute("UPDATE store.run_state SET owner = 'd', fence = 1 WHERE run_id = %s", [holder.no])
    assert leases.grant(conn, RunLease(holder.no, "d", 1), 1, [("box.cpu0", DeviceUse.ENGINE)])
    set_state(waiting, reason=RunReason.WAITING_FOR_DEVICES, reason_text="waiting for devices")
    assert f"held by {holder.key} (1)" in header(browser, waiting)


def test_the_header_says_why_a_run_ended_before_its_last_step(browser, editor, make_run) -> None:
    run = make_run(editor, RunStatus.COMPLETED)
    set_state(run, step=3, reason=RunReason.TARGET_REACHED, reason_text="eval/solved reached 1.000, the target is 0.95")
    text = header(browser, run)
    assert "Target reached" in text
    assert "eval/solved reached 1.000, the target is 0.95" in text


def test_an_estimate_to_the_last_step_says_that_a_target_may_come_first(browser, editor, make_run) -> None:
    with_target = make_run(editor, RunStatus.RUNNING, budget={"target": {"metric": "eval/solved", "value": 0.95}})
    without = make_run(editor, RunStatus.RUNNING, budget={"target": None})
    for run in (with_target, without):
        set_state(run, step=3, progress=json.dumps({"step_seconds": 2.0}))
    assert "or at target" in header(browser, with_target)
    assert "ETA" in header(browser, without)
    assert "or at target" not in header(browser, without)
