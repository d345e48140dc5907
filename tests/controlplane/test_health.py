"""Alive, ready, gauges."""

import pytest

from flexmarl.contracts.status import RunStatus
from flexmarl.controlplane.common.store import store_connection
from tests.support.played import play

pytestmark = pytest.mark.django_db


def test_alive_and_ready(client) -> None:
    assert client.get("/healthz").json() == {"status": "ok"}
    answer = client.get("/readyz")
    assert answer.status_code == 200
    assert answer.json()["checks"] == dict.fromkeys(("database", "migrations", "store", "broker"), "ok")


def test_another_schema_of_the_store_is_not_ready(client) -> None:
    store_connection().execute("UPDATE store.meta SET value = '0' WHERE key = 'version'")
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["checks"]["store"]) == (503, "failed")


def test_gauges_are_for_those_who_may_read_the_cluster(client, api, editor, make_run, client_of) -> None:
    assert client.get("/metrics").status_code == 401
    assert client_of(editor, ["runs:read"]).get("/metrics").status_code == 403
    play(make_run(editor, RunStatus.RUNNING))
    make_run(editor)
    lines = api.get("/metrics").content.decode().splitlines()
    assert 'flexmarl_runs{status="running"} 1' in lines
    assert 'flexmarl_runs{status="draft"} 1' in lines
    assert 'flexmarl_devices{pool="default",state="leased"} 2' in lines
    assert lines.count("# TYPE flexmarl_devices gauge") == 1
