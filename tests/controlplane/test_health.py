"""Alive, ready, gauges."""

import asyncio
import html
import json
import re
import threading
import time

import pytest
from channels.testing import HttpCommunicator
from django.db import OperationalError
from prometheus_client.parser import text_string_to_metric_families

from flexmarl.contracts.status import UPLOAD_NEXT, RunStatus
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.inventory import machine
from flexmarl.controlplane.telemetry.health import probes, readiness
from flexmarl.host import disk
from flexmarl.store.control import process_heartbeats
from flexmarl.store.control.process_heartbeats import ProcessFacts
from tests.support.controlplane import set_state
from tests.support.markup import markup
from tests.support.played import play

pytestmark = pytest.mark.django_db


def test_alive_and_ready(client) -> None:
    assert client.get("/healthz").json() == {"status": "ok"}
    answer = client.get("/readyz")
    assert answer.status_code == 200
    assert answer.json()["checks"] == dict.fromkeys(("database", "migrations", "store", "broker", "driver"), "ok")
    assert answer.json()["processes"] == []


def beat(kind: str, silent_s: float, pid: int = 1, loop: str = "") -> None:
    conn = store_connection()
    process_heartbeats.put(conn, ProcessFacts(kind, "box", "", pid, time.time()), loop, 99.0)
    moved = "UPDATE store.process_heartbeat SET heard_at = heard_at - make_interval(secs => %s) "
    conn.execute(moved + "WHERE kind = %s AND pid = %s", [silent_s, kind, pid])


def test_a_silent_driver_is_not_ready_and_is_named(client) -> None:
    beat("driver", 23.0)
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["checks"]["driver"]) == (503, "failed")
    (process,) = answer.json()["processes"]
    assert re.fullmatch(r"no heartbeat for 2[3-9] s", process.pop("detail"))
    assert process == {"process": "driver", "node": "box", "state": "silent"}


def test_a_stuck_driver_is_not_ready(client) -> None:
    beat("driver", 0.0, loop="loop")
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["processes"][0]["detail"] == "its loop has not moved for 99 s"


def test_one_driver_of_two_is_enough_and_workers_only_degrade(client) -> None:
    beat("driver", 23.0, pid=1)
    beat("driver", 0.0, pid=2)
    beat("rollout", 60.0)
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["status"]) == (200, "degraded")
    assert [process["process"] for process in answer.json()["processes"]] == ["driver", "rollout"]


def test_processes_long_gone_are_forgotten(client) -> None:
    beat("driver", process_heartbeats.FORGOTTEN_S + 1)
    assert client.get("/readyz").json()["status"] == "ok"


async def ask(application, path: str, method: str = "GET") -> tuple[int, dict]:
    communicator = HttpCommunicator(application, method, path)
    answer = await communicator.get_response(timeout=10)
    return answer["status"], json.loads(answer["body"] or b"{}")


async def never(scope, receive, send) -> None:
    raise AssertionError("a probe must not reach the application")


async def test_probes_do_not_wait_for_what_hangs(monkeypatch) -> None:
    over = threading.Event()

    def hangs() -> None:
        over.wait()
        raise OperationalError("too late")

    monkeypatch.setattr(readiness, "_CHECKS", {"database": bool, "migrations": bool, "store": hangs, "broker": bool})
    monkeypatch.setattr(probes, "ANSWER_S", 0.3)
    application = probes.Probes(never)
    try:
        began = time.monotonic()
        (first, body), (second, _), alive = await asyncio.gather(
            ask(application, "/readyz"), ask(application, "/readyz"), ask(application, "/healthz")
        )
        assert (first, second, alive) == (503, 503, (200, {"status": "ok"}))
        assert body["checks"] == {
            "database": "ok", "migrations": "ok", "store": "failed", "broker": "unknown", "driver": "unknown",
        }, "what answered is not blamed"  # fmt: skip
        assert time.monotonic() - began < 30
    finally:
        over.set()


async def test_one_look_serves_all_who_ask_at_a_time(monkeypatch) -> None:
    looks = []

    def report(checks: dict[str, str]) -> readiness.ReadinessReport:
        looks.append(1)
        return readiness.ReadinessReport({"database": "ok"}, ())

    monkeypatch.setattr(readiness, "report", report)
    application = probes.Probes(never)
    answers = [await ask(application, "/readyz", method) for method in ("GET", "HEAD", "GET")]
    assert [status for status, _ in answers] == [200, 200, 200]
    assert len(looks) == 1


def test_another_schema_of_the_store_is_not_ready(client) -> None:
    store_connection().execute("UPDATE store.meta SET value = '0' WHERE key = 'version'")
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["checks"]["store"]) == (503, "failed")


@pytest.fixture
def no_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "FULL_BYTES", 2**62)
    monkeypatch.setattr(machine, "_MEMORY", machine._Memory())


def test_a_full_disk_is_told_and_pages_answer_on(client, editor, no_space) -> None:
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["status"]) == (200, "degraded")
    (notice,) = answer.json()["notices"]
    assert notice["code"] == "disk_full"
    assert notice["text"].startswith("The disk of the data folder is full: ")
    assert "continue automatically once there is space" in notice["text"]
    client.force_login(editor)
    for path in ("/", "/runs", "/cluster"):
        page = markup(client.get(path))
        assert 'data-notice="disk_full"' in page, path
        assert "retire samples and delete checkpoints of ended runs" in page


def test_a_process_that_a_setting_keeps_from_running_is_named(client, tmp_path, settings, monkeypatch) -> None:
    settings.HOME = tmp_path
    (tmp_path / "up.json").write_text('{"refused": {"device-worker": "FLEXMARL_CHILD_THREADS is \'0\'"}}')
    monkeypatch.setattr(machine, "_MEMORY", machine._Memory())
    found = client.get("/readyz").json()
    assert found["status"] == "degraded"
    assert "FLEXMARL_CHILD_THREADS is '0'. Correct the setting" in found["notices"][0]["text"]


def test_a_run_that_waits_for_space_says_so_on_its_page(client, editor, make_run) -> None:
    run = make_run(editor, RunStatus.RUNNING)
    text = "optimizer step waits for disk space: no room left in /data/state; free some space there"
    set_state(run, reason="waiting_for_space", reason_text=text)
    client.force_login(editor)
    page = markup(client.get(f"/runs/{run.key}"))
    assert "Waiting for disk space" in page
    assert text in page


def test_a_run_that_waits_for_an_upload_says_so_on_its_page_and_by_rest(client, api, editor, make_run) -> None:
    run = make_run(editor, RunStatus.RUNNING)
    text = f"optimizer step waits for an upload: box answers 500; {UPLOAD_NEXT}"
    set_state(run, reason="waiting_for_upload", reason_text=text)
    shown = api.get(f"/api/v1/runs/{run.key}").json()
    assert (shown["reason"], shown["reason_text"]) == ("waiting_for_upload", text)
    client.force_login(editor)
    page = html.unescape(markup(client.get(f"/runs/{run.key}")))
    assert "Waiting for an upload" in page
    assert text in page


def test_a_page_without_a_database_says_so_and_why(client, editor, no_space, monkeypatch) -> None:
    def away(*_: object, **__: object) -> None:
        raise OperationalError("connection refused")

    client.force_login(editor)
    client.raise_request_exception = False
    monkeypatch.setattr("webui.views.runs.show", away)
    monkeypatch.setattr("webui.views.base.show", away)
    answer = client.get("/runs")
    page = markup(answer)
    assert (answer.status_code, answer["Retry-After"]) == (503, "5")
    assert "The database does not answer" in page
    assert "The disk is full" in page


def test_gauges_are_for_those_who_may_read_the_cluster(client, api, editor, make_run, client_of) -> None:
    assert client.get("/metrics").status_code == 401
    assert client_of(editor, ["runs:read"]).get("/metrics").status_code == 403
    play(make_run(editor, RunStatus.RUNNING))
    make_run(editor)
    answer = api.get("/metrics")
    assert answer["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    families = {family.name: family for family in text_string_to_metric_families(answer.content.decode())}
    runs = {sample.labels["status"]: sample.value for sample in families["flexmarl_runs"].samples}
    assert (runs["running"], runs["draft"]) == (1, 1)
    devices = {tuple(sample.labels.values()): sample.value for sample in families["flexmarl_devices"].samples}
    assert devices["default", "leased"] == 2
    assert {state for pool, state in devices if pool == "default"} == {"free", "leased", "unavailable"}
    assert "flexmarl_http_request_seconds" in families
