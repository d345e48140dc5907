"""The evidence of an advisory is where its link leads."""

import re
from time import time

import pytest
from django.test import Client

from flexmarl.contracts.decisions import Metric
from flexmarl.contracts.status import RunStatus
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.telemetry.advisor import advice
from flexmarl.controlplane.telemetry.advisor.rules import RULES, Facts
from flexmarl.store.control.decisions import _write_metrics
from flexmarl.store.reads.advisor_inputs import SeriesEnds
from flexmarl.store.telemetry.intervals import BusyInterval, put
from tests.support.markup import markup
from tests.support.played import play

pytestmark = pytest.mark.django_db


def bad(name, value, agent="", stat="mean", first=1.0):
    return {(name, agent, stat): SeriesEnds(1, name, agent, stat, (first,) * 20, (value,) * 20, 40)}


EVERYTHING = Facts(
    status="running",
    now=10_000.0,
    status_since=0.0,
    last_event=0.0,
    series=bad("time/step", 10.0) | bad("time/wait_samples", 9.0) | bad("staleness/own_max", 9.0, "solver", "max")
    | bad("train/kl_engine", 0.9, "solver") | bad("train/entropy", 0.1, "solver")
    | bad("episodes/failed", 9.0, stat="sum") | bad("groups/useful", 0.0, stat="share"),
    episodes_per_step=10,
    truncated={"solver": (64, 64)},
    rollout_s={"solver": 100.0, "planner": 1.0},
    engine_busy={"e1": 0.9, "e2": 0.1},
)  # fmt: skip


@pytest.fixture
def run(editor, make_run):
    run = make_run(editor, RunStatus.RUNNING, agents={"speaker": {"policy": "solver"}, "listener": {}})
    play(run)
    conn = store_connection()
    points = [(1.0, Metric(name, 1, 0.5, "solver")) for name in ("train/entropy", "train/kl_engine")]
    _write_metrics(conn, run.no, points)
    lease, device, incarnation = conn.execute(
        "SELECT id, device_id, incarnation FROM store.lease WHERE run_id = %s ORDER BY id LIMIT 1", [run.no]
    ).fetchone()
    busy = [BusyInterval(1000, "rollout", "solver", time() - 20, time() - 10, 5)]
    put(conn, run.no, lease, device, incarnation=incarnation or "e1", rows=busy)
    return run


def test_every_link_of_an_advisory_leads_to_its_evidence(editor, run) -> None:
    browser = Client()
    browser.force_login(editor)
    rows = [row for rule in RULES for row in rule(EVERYTHING)]
    assert {row.rule for row in rows} == {rule.__name__ for rule in RULES}, "each rule says something here"
    for row in rows:
        address = advice._chart(run, row)["web_url"]
        page, _, anchor = address.partition("#")
        answer = browser.get(page)
        assert answer.status_code == 200, address
        html = markup(answer)
        if anchor:
            assert html.count(f'id="{anchor}"') == 1, address
        if "?open=" in page:
            assert re.search(rf'name="open" value="{re.escape(row.chart[1])}', html), address
