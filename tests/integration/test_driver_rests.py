"""Rests, attempts and retries on a real PostgreSQL: devices really go back, and nothing is lost on the way."""

import pytest

from flexmarl.contracts.events import PauseMode, Verb
from flexmarl.contracts.status import RunStatus
from flexmarl.controlplane.runs.driver import loop
from flexmarl.store.control import runs
from tests.integration.test_driver import Bench, bench, make_spec
from tests.support.scripted_workers import ScriptedWorkers

pytestmark = pytest.mark.services

__all__ = ["bench"]  # the fixture

ENDLESS = {"train_steps": 100_000}
HELD = "SELECT count(*) FROM store.lease WHERE run_id = 1 AND state <> 'ended'"


@pytest.mark.parametrize("mode", PauseMode)
def test_devices_go_back_while_a_run_rests_and_a_driver_may_die_meanwhile(bench: Bench, mode: PauseMode) -> None:
    spec = make_spec(budget={"train_steps": 12})
    with ScriptedWorkers(bench.url, bench.pushed, spec):
        first = bench.driver()
        bench.start(spec=spec)
        bench.wait(lambda run: run.step >= 2)
        pause = bench.verb(Verb.PAUSE, mode=mode, hold_s=0.0, cause="req-1")
        bench.wait(lambda run: run.reason == "devices_given_back" and bench.column(HELD) == [0])
        bench.crash(first)
        assert bench.stored().status is RunStatus.PAUSED
        resume = bench.verb(Verb.RESUME, cause="req-2")
        bench.driver()
        assert bench.finish().status is RunStatus.COMPLETED
        assert bench.stored().step == 12
        bench.account()
    found = bench.conn.execute(
        "SELECT no, verb, began_by, status, reason, first_step, last_step, versions ->> 'speaker' FROM store.attempt "
        "ORDER BY no"
    ).fetchall()
    assert [row[:5] for row in found] == [
        (1, "start", "ada", "paused", "devices_given_back"),
        (2, "resume", "ada", "completed", "budget_steps"),
    ]
    assert found[0][5] == 0
    assert found[0][6] == found[1][5], "the second begins where the first ended"
    assert (found[1][6], found[1][7]) == (12, "12")
    ended = dict(bench.conn.execute("SELECT producer_key, succeeded FROM store.verb_outcome").fetchall())
    assert ended[f"verb:{pause}"]
    assert ended[f"verb:{resume}"]
    causes = set(bench.column("SELECT kind || ' ' || cause FROM store.command WHERE cause <> ''"))
    assert "request_devices req-2" in causes
    said = set(bench.column("SELECT cause FROM store.note WHERE text LIKE 'run is paused%'"))
    assert said == {"req-1"}


def test_a_killed_run_goes_on_in_a_new_attempt(bench: Bench) -> None:
    spec = make_spec(budget={"train_steps": 8})
    with ScriptedWorkers(bench.url, bench.pushed, spec):
        bench.driver()
        bench.start(spec=spec)
        for attempt in (1, 2):
            bench.wait(lambda run, least=attempt * 2: run.step >= least and run.status is RunStatus.RUNNING)
            bench.verb(Verb.KILL)
            killed = bench.finish()
            assert killed.finished_at is not None
            bench.account()
            retry = bench.verb(Verb.RETRY)
            again = bench.wait(lambda run: run.status not in (RunStatus.KILLED,))
            assert again.finished_at is None
            assert again.epoch == killed.epoch + 1
        assert bench.finish().status is RunStatus.COMPLETED
        assert bench.stored().step == 8
        bench.account()
    assert bench.column("SELECT status FROM store.attempt ORDER BY no") == ["killed", "killed", "completed"]
    assert bench.column(f"SELECT succeeded FROM store.verb_outcome WHERE producer_key = 'verb:{retry}'") == [True]


def test_nothing_of_an_ended_run_stays_in_the_inbox(bench: Bench) -> None:
    spec = make_spec(budget=ENDLESS)
    with ScriptedWorkers(bench.url, bench.pushed, spec):
        bench.driver()
        bench.start(spec=spec)
        bench.wait(lambda run: run.step >= 1)
        bench.verb(Verb.KILL)
        bench.finish()
        bench.settle()
    kinds = bench.column("SELECT kind FROM store.event WHERE run_id = 1 ORDER BY seq")
    assert kinds.count("lease_ended") == 2, "facts that come after the end are in the log"
    assert bench.column("SELECT count(*) FROM store.inbox") == [0]


def test_a_run_that_was_given_up_without_its_core_says_so_everywhere(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "MAX_ERRORS", 2)
    spec = make_spec(budget=ENDLESS)
    with ScriptedWorkers(bench.url, bench.pushed, spec):
        first = bench.driver()
        bench.start(spec=spec)
        bench.wait(lambda run: run.step >= 1)
        bench.crash(first)
        good = bench.stored()
        bench.conn.execute("UPDATE store.run_state SET snapshot = 'rubbish'")
        stop = bench.verb(Verb.STOP)
        bench.driver()
        assert bench.finish().reason == "orchestrator_error"
        bench.settle()
        assert bench.column("SELECT status FROM store.attempt") == ["failed"]
        assert bench.column(f"SELECT succeeded FROM store.verb_outcome WHERE producer_key = 'verb:{stop}'") == [False]
        assert bench.column("SELECT count(*) FROM store.command WHERE status IN ('open', 'taken')") == [0]
        # A retry of what cannot be read fails again, and does not spin.
        retry = bench.verb(Verb.RETRY)
        bench.wait(lambda run: bool(bench.column(f"SELECT 1 FROM store.handled WHERE producer_key = 'verb:{retry}'")))
        bench.settle()
        assert bench.stored().status is RunStatus.FAILED
        # Once it can be read again, the run goes on from its committed versions.
        statement = "UPDATE store.run_state SET snapshot = %s, snapshot_seq = %s"
        bench.conn.execute(statement, [good.snapshot, good.snapshot_seq])
        bench.verb(Verb.RETRY)
        bench.wait(lambda run: run.status is RunStatus.RUNNING and run.step > good.step)
        bench.verb(Verb.STOP)
        assert bench.finish().status is RunStatus.COMPLETED
        bench.settle()
    assert runs.load_run(bench.conn, 1).owner == ""
