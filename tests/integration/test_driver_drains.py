"""What a drain does to the runs of a driver: leases recalled, runs stopped in time, and a drain taken back."""

import time
from types import SimpleNamespace

import psycopg
import pytest

from flexmarl.contracts.events import RunVerb, Verb
from flexmarl.contracts.live import Progress
from flexmarl.contracts.status import RunReason, RunStatus
from flexmarl.controlplane.runs.driver import draining, loop
from flexmarl.controlplane.runs.driver.draining import GRACE_STEPS, MIN_GRACE_S, grace_s
from flexmarl.orchestrator.state.tree import RunState
from flexmarl.store.control import cordons, leases, nodes
from flexmarl.store.control.cordons import Drained, DrainMode
from tests.integration.test_driver import Bench, make_spec
from tests.support.scripted_workers import ScriptedWorkers

pytestmark = pytest.mark.services

LONG = {"budget": {"train_steps": 4000}, "evaluation": {"every_steps": 2000, "tasks": 6}}


@pytest.fixture
def bench(store_url: str, store_conn: psycopg.Connection):
    made = Bench(store_url)
    yield made
    made.close()


def running(bench: Bench) -> None:
    bench.driver()
    bench.start(1, make_spec(**LONG))
    bench.wait(lambda run: run.status is RunStatus.RUNNING and run.step >= 2)


def drain(bench: Bench, mode: DrainMode, deadline: float | None = None) -> None:
    cordons.drain(bench.conn, "node", "box", mode, deadline=deadline, by="ada")


def test_a_drain_that_waits_keeps_the_run_and_gives_nobody_else_a_device(bench: Bench) -> None:
    with ScriptedWorkers(bench.url, bench.pushed, make_spec(**LONG)):
        running(bench)
        drain(bench, DrainMode.WAIT)
        step = bench.stored().step
        bench.wait(lambda run: run.step >= step + 5)
        assert leases.supply(bench.conn).capacity == {}
        assert bench.column("SELECT count(*) FROM store.event WHERE kind = 'lease_recalled'") == [0]
        bench.verb(Verb.KILL)
        bench.finish()


def test_a_move_without_another_device_waits_and_is_taken_back(bench: Bench) -> None:
    with ScriptedWorkers(bench.url, bench.pushed, make_spec(**LONG)):
        running(bench)
        drain(bench, DrainMode.MOVE)
        told = bench.wait(lambda run: run.reason == RunReason.MOVING)
        assert "keeps its device until another is free" in told.reason_text
        bench.wait(lambda run: run.step >= told.step + 5)
        assert bench.column("SELECT count(*) FROM store.event WHERE kind = 'lease_recalled'") == [2]
        cordons.enable(bench.conn, "node", "box")
        bench.wait(lambda run: run.reason == RunReason.NONE)
        assert bench.column("SELECT count(*) FROM store.lease WHERE state <> 'ended'") == [2]
        bench.verb(Verb.KILL)
        bench.finish()


def test_an_engine_whose_node_is_silent_shall_move_and_stays_when_it_is_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer waits for its node, which alone may have what it made last."""
    monkeypatch.setattr(loop, "TRUSTED_S", 0.0)
    with ScriptedWorkers(bench.url, bench.pushed, make_spec(**LONG)):
        running(bench)
        monkeypatch.setattr(cordons, "SILENT_S", -60.0)  # as if its last heartbeat were long ago
        told = bench.wait(lambda run: run.reason == RunReason.MOVING)
        assert "engine on box.cpu" in told.reason_text
        assert bench.column("SELECT count(*) FROM store.event WHERE kind = 'lease_recalled'") == [1]
        monkeypatch.setattr(cordons, "SILENT_S", 90.0)
        bench.wait(lambda run: run.reason == RunReason.NONE and run.step >= told.step + 2)
        assert bench.column("SELECT count(*) FROM store.event WHERE kind = 'lease_recalled'") == [2]
        bench.verb(Verb.KILL)
        bench.finish()


def test_a_deadline_stops_the_run_after_its_open_step(bench: Bench) -> None:
    with ScriptedWorkers(bench.url, bench.pushed, make_spec(**LONG)):
        running(bench)
        drain(bench, DrainMode.STOP, deadline=time.time() + MIN_GRACE_S + 2.0)
        time.sleep(1.0)
        assert bench.stored().status is RunStatus.RUNNING, "it trains on until the deadline is near"
        ended = bench.finish()
        assert (ended.status, ended.reason_text) == (RunStatus.COMPLETED, "box is being drained by ada")
        bench.settle()
        assert cordons.drained_leases(bench.conn) == []


def told(deadline: float, now: float, status: RunStatus = RunStatus.RUNNING, step_seconds: float | None = None):
    """What a run is told of one lease on a node that is drained with a deadline."""
    state = RunState()
    state.lifecycle.status = status
    core = SimpleNamespace(state=state, progress=lambda: Progress(step_seconds=step_seconds))
    one = Drained(7, 1, "box.cpu0", "box", DrainMode.STOP, deadline, "ada", 3.0)
    return draining._stops(SimpleNamespace(core=core, seq=1), [one], now)


def test_runs_are_asked_in_time_and_killed_at_the_deadline() -> None:
    assert grace_s(None) == MIN_GRACE_S
    assert grace_s(100.0) == GRACE_STEPS * 100.0
    assert told(1000.0, 1000.0 - MIN_GRACE_S - 1) == []
    [(_, asked)] = told(1000.0, 1000.0 - MIN_GRACE_S)
    assert asked == RunVerb(verb=Verb.STOP, actor="ada", reason="box is being drained by ada")
    [(_, asked)] = told(1000.0, 800.0, step_seconds=100.0)
    assert asked.verb is Verb.STOP
    assert told(1000.0, 990.0, RunStatus.STOPPING) == [], "asked once is enough"
    [(_, asked)] = told(1000.0, 1000.0, RunStatus.STOPPING)
    assert asked.verb is Verb.KILL
    assert told(1000.0, 1000.0, RunStatus.COMPLETED) == []


def test_a_device_rules_before_its_node_and_both_come_back(bench: Bench) -> None:
    with ScriptedWorkers(bench.url, bench.pushed, make_spec(**LONG)):
        running(bench)
        cordons.drain(bench.conn, "node", "box", DrainMode.WAIT, deadline=None, by="ada")
        cordons.drain(bench.conn, "device", "box.cpu0", DrainMode.MOVE, deadline=None, by="eve")
        found = {one.device_id: (one.mode, one.where, one.by) for one in cordons.drained_leases(bench.conn)}
        assert found == {
            "box.cpu0": (DrainMode.MOVE, "box.cpu0", "eve"),
            "box.cpu1": (DrainMode.WAIT, "box", "ada"),
        }
        assert nodes.supply(bench.conn).free == []
        bench.verb(Verb.KILL)
        bench.finish()
