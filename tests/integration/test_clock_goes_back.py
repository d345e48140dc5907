"""The database's clock goes back by an hour in the middle of a run: its log does not, and nothing is lost or made anew.

Steps of the clock are played where the driver learns the time; the rows are those of a real database.
"""

from dataclasses import replace
from itertools import pairwise

import psycopg
import pytest

from flexmarl.contracts.events import RunVerb, Verb
from flexmarl.contracts.status import RunStatus
from flexmarl.controlplane.runs.driver.replaying import replay
from flexmarl.controlplane.runs.driver.session import RunSession
from flexmarl.controlplane.runs.driver.turning import turns
from flexmarl.store.control import grants, inbox, leases, runs
from flexmarl.store.control.inbox import WaitingFacts
from flexmarl.store.control.runs import RunLease
from tests.integration.test_driver_process import SPEC

pytestmark = pytest.mark.services

HOUR = 3600.0


@pytest.fixture
def lease(store_conn: psycopg.Connection) -> RunLease:
    facts = [leases.DeviceFacts(f"box.cpu{i}", "cpu", i) for i in range(2)]
    leases.register_node(store_conn, leases.NodeFacts("box", "127.0.0.1:1", "life-1", "0"), facts)
    runs.create_run(store_conn, 1, {**SPEC}, RunStatus.DRAFT)
    inbox.put_verb(store_conn, 1, "start", RunVerb(verb=Verb.START, actor="ada"))
    [held] = runs.claim_runs(store_conn, "driver-1", 60.0)
    return held


def times(conn: psycopg.Connection) -> list[float]:
    rows = conn.execute(
        "SELECT extract(epoch FROM at)::float8 FROM store.event WHERE run_id = 1 ORDER BY seq"
    ).fetchall()
    return [row[0] for row in rows]


def test_the_log_keeps_its_order_and_the_run_goes_on(
    store_conn: psycopg.Connection, lease: RunLease, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = RunSession.load(store_conn, lease)
    list(turns(session, store_conn))
    [demand] = grants.open_demands(store_conn)
    before = session.core.state.now
    heard, database_now = inbox.heard, runs.database_now

    def late(answer: psycopg.Cursor) -> WaitingFacts:
        waiting = heard(answer)
        return replace(waiting, now=waiting.now - HOUR)

    monkeypatch.setattr(inbox, "heard", late)
    monkeypatch.setattr(runs, "database_now", lambda conn: database_now(conn) - HOUR)
    placements = [("box.cpu0", grants.DeviceUse.ENGINE), ("box.cpu1", grants.DeviceUse.TRAINER)]
    assert grants.grant(store_conn, lease, demand.no, placements) is not None
    list(turns(session, store_conn))
    assert session.core.state.lifecycle.status is RunStatus.STARTING
    assert session.core.state.now >= before, "an earlier time counts as the last"
    # A driver that takes over reads the time anew, and goes on from the log's.
    taken_over = RunSession.load(store_conn, lease)
    inbox.put_verb(store_conn, 1, "stop", RunVerb(verb=Verb.STOP, actor="ada"))
    for _ in range(2):  # the end of the leases is told once the stop is written
        list(turns(taken_over, store_conn))
    assert taken_over.core.state.lifecycle.status is RunStatus.CANCELLED
    told = times(store_conn)
    assert len(told) == 5
    assert all(earlier <= later for earlier, later in pairwise(told)), told
    assert taken_over.differences == []
    assert replay(store_conn, 1).differences == ()
    left = store_conn.execute("SELECT producer_key, body FROM store.inbox WHERE run_id = 1").fetchall()
    assert left == [], "no fact is left behind"
