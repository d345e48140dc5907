"""The driver against a real PostgreSQL with scripted workers: nothing is lost, whoever dies."""

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from itertools import pairwise

import psycopg
import pytest

from flexmarl.contracts.events import DeviceUse, RunVerb, Verb, event_adapter
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.status import TERMINAL, RunStatus
from flexmarl.controlplane.runs.driver import loop, tail
from flexmarl.controlplane.runs.driver.announcing import Silence
from flexmarl.controlplane.runs.driver.loop import Driver
from flexmarl.controlplane.runs.driver.session import RunSession
from flexmarl.controlplane.runs.driver.turning import turns
from flexmarl.orchestrator import Orchestrator
from flexmarl.store.control import inbox, runs
from flexmarl.store.control.runs import RunLease
from flexmarl.store.errors import FenceLost
from flexmarl.store.reads import report
from tests.support.scripted_workers import Pushed, ScriptedWorkers

pytestmark = pytest.mark.services


def make_spec(**changes) -> ExperimentSpec:
    return ExperimentSpec.model_validate(
        {
            "agents": {"speaker": {}, "listener": {}},
            "environment": {"type": "reference_game"},
            "batch": {"tasks_per_step": 6, "episodes_per_task": 3, "micro_batch_groups": 2, "rollout_groups": 2},
            "budget": {"train_steps": 6},
            "evaluation": {"every_steps": 3, "tasks": 6},
            **changes,
        }
    )


class Crashed(BaseException):
    """Ends a driver's thread at once, as SIGKILL would: nothing is released."""


class Bench:
    """A store, pushes that can be lost, and drivers in threads."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.pushed = Pushed()
        self.conn = psycopg.connect(url, autocommit=True)
        self.drivers: list[tuple[Driver, threading.Thread]] = []

    def driver(self) -> Driver:
        driver = Driver(self.url, f"driver-{uuid.uuid4().hex[:6]}", self.pushed, Silence())

        def run() -> None:
            try:
                driver.run()
            except Crashed:
                return

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self.drivers.append((driver, thread))
        return driver

    def crash(self, driver: Driver) -> None:
        """End a driver between two looks, without any goodbye."""

        def die(*_: object) -> None:
            raise Crashed

        driver._keep_runs = die
        next(thread for one, thread in self.drivers if one is driver).join(60)

    def close(self) -> None:
        for driver, thread in self.drivers:
            driver.stop()
            thread.join(60)
            assert not thread.is_alive()
        self.conn.close()

    def start(self, run_id: int = 1, spec: ExperimentSpec | None = None) -> int:
        runs.create_run(self.conn, run_id, (spec or make_spec()).model_dump(mode="json"), RunStatus.DRAFT)
        self.verb(Verb.START, run_id)
        return run_id

    def verb(self, verb: Verb, run_id: int = 1, **options: object) -> str:
        operation = str(uuid.uuid4())
        event = RunVerb(verb=verb, actor="ada", operation=operation, **options)
        inbox.put_verb(self.conn, run_id, f"verb:{operation}", event)
        return operation

    def column(self, statement: str) -> list[object]:
        return [row[0] for row in self.conn.execute(statement).fetchall()]

    def stored(self, run_id: int = 1) -> runs.StoredRun:
        return runs.load_run(self.conn, run_id)

    def wait(self, done: Callable[[runs.StoredRun], bool], run_id: int = 1, timeout_s: float = 90.0) -> runs.StoredRun:
        until = time.monotonic() + timeout_s
        while not done(run := self.stored(run_id)):
            assert time.monotonic() < until, f"{run.status} {run.reason_text} at step {run.step}: {run.progress}"
            time.sleep(0.01)
        return run

    def finish(self, run_id: int = 1, timeout_s: float = 90.0) -> runs.StoredRun:
        return self.wait(lambda run: run.status in TERMINAL, run_id, timeout_s)

    def settle(self, run_id: int = 1) -> None:
        """Wait until the devices of an ended run are free and nothing of it is left in the inbox."""
        held = "SELECT count(*) FROM store.lease WHERE run_id = %s AND state <> 'ended'"

        def done(run: runs.StoredRun) -> bool:
            free = self.conn.execute(held, [run_id]).fetchone() == (0,)
            return free and inbox.waiting(self.conn, run_id) == 0 and run.owner == ""

        self.wait(done, run_id)

    def account(self, run_id: int = 1) -> None:
        """Counts add up, and the log alone leads to the very state and commands that are stored."""
        self.settle(run_id)
        wrong = [check for check in report.consistency_report(self.conn, run_id) if not check.ok]
        assert not wrong
        stored = self.stored(run_id)
        core, issued = Orchestrator(ExperimentSpec.model_validate(stored.spec)), {}
        for entry in runs.events_after(self.conn, run_id, 0):
            for numbered in core.handle(entry.event, entry.at).commands:
                issued[numbered.no] = numbered.command.kind
        found = self.conn.execute("SELECT no, kind FROM store.command WHERE run_id = %s", [run_id]).fetchall()
        assert issued == dict(found)
        lease = RunLease(run_id, stored.owner, stored.fence)
        assert RunSession.load(self.conn, lease).core.snapshot() == core.snapshot()


@pytest.fixture
def bench(store_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(loop, "RUN_TTL_S", 1.0)
    monkeypatch.setattr(loop, "RENEW_S", 0.2)
    monkeypatch.setattr(loop, "CLAIM_S", 0.1)
    monkeypatch.setattr(tail, "TAIL_EVENTS", 20)
    bench = Bench(store_url)
    yield bench
    bench.close()


def test_a_run_completes_and_its_log_explains_every_command(bench: Bench) -> None:
    with ScriptedWorkers(bench.url, bench.pushed, make_spec()):
        bench.driver()
        bench.start()
        run = bench.finish()
        assert (run.status, run.reason, run.step) == (RunStatus.COMPLETED, "budget_steps", 6)
        assert run.progress["episodes_finished"] == 108
        assert run.progress["samples_trained"] == 216
        bench.account()
        held = bench.conn.execute("SELECT count(*) FROM store.lease WHERE state <> 'ended'")
        until = time.monotonic() + 5
        while held.fetchone() != (0,):
            assert time.monotonic() < until
            held = bench.conn.execute("SELECT count(*) FROM store.lease WHERE state <> 'ended'")
        points = bench.conn.execute("SELECT count(*) FROM store.metric WHERE name = 'reward/team' AND stat = 'mean'")
        assert points.fetchone() == (6,)


def test_another_driver_takes_over_from_one_that_died(bench: Bench) -> None:
    with ScriptedWorkers(bench.url, bench.pushed, make_spec(budget={"train_steps": 12})):
        first = bench.driver()
        bench.start(spec=make_spec(budget={"train_steps": 12}))
        for step in (2, 5, 8):
            bench.wait(lambda run, step=step: run.step >= step)
            held = first.held[1]
            bench.crash(first)
            first = bench.driver()
            bench.wait(lambda run, fence=held.lease.fence: run.fence > fence)
            assert held.session is not None
            with pytest.raises(FenceLost):
                held.session.explain(bench.conn, "from the grave") or _decide_again(held.session, bench)
        assert bench.finish().step == 12
        bench.account()


def _decide_again(dead: RunSession, bench: Bench) -> None:
    """Let a driver that was cut off try to commit a fact."""
    inbox.put_verb(bench.conn, 1, f"verb:{uuid.uuid4()}", RunVerb(verb=Verb.RESUME))
    while not list(turns(dead, bench.conn)):
        inbox.put_verb(bench.conn, 1, f"verb:{uuid.uuid4()}", RunVerb(verb=Verb.RESUME))


def test_two_drivers_share_runs_and_each_run_has_one(bench: Bench) -> None:
    with ScriptedWorkers(bench.url, bench.pushed, make_spec(), devices=4):
        one, two = bench.driver(), bench.driver()
        for run_id in (1, 2):
            bench.start(run_id)
        for run_id in (1, 2):
            bench.finish(run_id)
            bench.account(run_id)
        assert not set(one.held) & set(two.held)


def test_a_stopped_driver_gives_its_runs_back_at_once(bench: Bench) -> None:
    with ScriptedWorkers(bench.url, bench.pushed, make_spec()):
        first = bench.driver()
        bench.start()
        bench.wait(lambda run: run.step >= 1)
        first.stop()
        bench.drivers[0][1].join(60)
        assert bench.stored().owner == ""
        bench.driver()
        bench.finish()
        bench.account()


def test_losing_every_push_only_costs_time(bench: Bench) -> None:
    with ScriptedWorkers(bench.url, bench.pushed, make_spec()):
        bench.driver()
        bench.start()
        for step in (1, 3):
            bench.wait(lambda run, step=step: run.step >= step)
            bench.pushed.lost = True
            bench.pushed.flush_all()
            time.sleep(0.5)
            bench.pushed.lost = False
        bench.finish()
        bench.account()


@pytest.mark.parametrize("use", [DeviceUse.ENGINE, DeviceUse.TRAINER])
def test_lost_children_are_filled_again(bench: Bench, use: DeviceUse) -> None:
    with ScriptedWorkers(bench.url, bench.pushed, make_spec()) as workers:
        bench.driver()
        bench.start()
        for step in (1, 3):
            bench.wait(lambda run, step=step: run.step >= step)
            workers.kill_child(use)
        assert bench.finish().status is RunStatus.COMPLETED
        bench.account()


def test_children_of_expired_leases_count_as_lost(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "CHILD_TTL_S", 0.3)
    with ScriptedWorkers(bench.url, bench.pushed, make_spec(budget={"train_steps": 10_000})) as workers:
        bench.driver()
        bench.start(spec=make_spec(budget={"train_steps": 10_000}))
        bench.wait(lambda run: run.step >= 1)
        workers.silent_hosts = True
        bench.conn.execute("UPDATE store.lease SET expires_at = clock_timestamp() - interval '1 s'")
        bench.wait(lambda run: run.reason.startswith("recovering"))
        bench.verb(Verb.KILL)
        assert bench.finish().status is RunStatus.KILLED
        assert bench.stored().epoch == 2
        workers.silent_hosts = False
        bench.account()


def test_pause_resume_and_stop(bench: Bench) -> None:
    spec = make_spec(budget={"train_steps": 10_000})
    with ScriptedWorkers(bench.url, bench.pushed, spec):
        bench.driver()
        bench.start(spec=spec)
        bench.wait(lambda run: run.step >= 1)
        bench.verb(Verb.PAUSE)
        paused = bench.wait(lambda run: run.status is RunStatus.PAUSED)
        assert paused.pending_verb == ""
        time.sleep(0.2)
        assert bench.stored().step == paused.step
        bench.verb(Verb.RESUME)
        bench.wait(lambda run: run.step > paused.step)
        bench.verb(Verb.STOP)
        run = bench.finish()
        assert (run.status, run.reason) == (RunStatus.COMPLETED, "user_request")
        bench.account()
        labels = bench.conn.execute("SELECT label, max(step) FROM store.checkpoint GROUP BY 1").fetchall()
        assert dict(labels)["last"] == run.step


def test_the_time_budget_ends_a_run_without_any_fact_from_outside(bench: Bench) -> None:
    spec = make_spec(budget={"train_steps": 100_000, "seconds": 1.0})
    with ScriptedWorkers(bench.url, bench.pushed, spec):
        bench.driver()
        bench.start(spec=spec)
        assert bench.finish().reason == "budget_time"
        bench.account()


def test_a_run_that_waits_says_for_what_and_gets_the_devices_of_the_one_before(bench: Bench) -> None:
    with ScriptedWorkers(bench.url, bench.pushed, make_spec()):
        bench.driver()
        bench.start(1)
        bench.wait(lambda run: run.status is RunStatus.RUNNING, 1)
        bench.start(2)
        waiting = bench.wait(lambda run: run.reason_text.startswith("Needs"), 2)
        assert waiting.reason_text == "Needs 2 devices in default, 0 of 2 are free"
        assert waiting.progress["waiting_for"] == waiting.reason_text
        bench.finish(1)
        assert bench.finish(2).status is RunStatus.COMPLETED
        bench.account(2)


def test_a_fact_the_core_cannot_handle_fails_its_run_only(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Orchestrator.handle

    def handle(self: Orchestrator, event: object, now: float) -> object:
        if self.plan.spec.name == "cursed" and event.kind == "step_committed":
            raise RuntimeError("no such step")
        return original(self, event, now)

    monkeypatch.setattr(Orchestrator, "handle", handle)
    with ScriptedWorkers(bench.url, bench.pushed, make_spec(), devices=4):
        bench.driver()
        bench.start(1, make_spec(name="cursed"))
        bench.start(2)
        cursed = bench.finish(1)
        assert (cursed.status, cursed.reason) == (RunStatus.FAILED, "orchestrator_error")
        assert "step_committed" in cursed.reason_text
        assert bench.finish(2).status is RunStatus.COMPLETED
        bench.account(2)
        assert cursed.snapshot_seq == cursed.seq
        RunSession.load(bench.conn, RunLease(1, cursed.owner, cursed.fence))


def test_a_fault_that_passes_costs_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    original, raised = Orchestrator.handle, []

    def handle(self: Orchestrator, event: object, now: float) -> object:
        if event.kind == "step_committed" and not raised:
            raised.append(event)
            raise MemoryError
        return original(self, event, now)

    monkeypatch.setattr(Orchestrator, "handle", handle)
    with ScriptedWorkers(bench.url, bench.pushed, make_spec()):
        bench.driver()
        bench.start()
        assert bench.finish().status is RunStatus.COMPLETED
        bench.account()


def test_a_run_whose_state_is_unreadable_ends_in_words(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "MAX_ERRORS", 2)
    bench.start()
    bench.conn.execute("UPDATE store.run_state SET snapshot = 'rubbish', snapshot_seq = 0")
    bench.driver()
    run = bench.finish()
    assert run.reason == "orchestrator_error"
    assert "cannot continue" in run.reason_text


def test_the_driver_comes_back_after_the_database_dropped_it(bench: Bench) -> None:
    with ScriptedWorkers(bench.url, bench.pushed, make_spec(budget={"train_steps": 8})):
        bench.driver()
        bench.start(spec=make_spec(budget={"train_steps": 8}))
        for step in (2, 4):
            bench.wait(lambda run, step=step: run.step >= step)
            bench.conn.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'flexmarl.driver%%'"
            )
        bench.finish()
        bench.account()


def test_a_stored_fact_is_told_to_the_core_as_it_was(bench: Bench) -> None:
    with ScriptedWorkers(bench.url, bench.pushed, make_spec(budget={"train_steps": 1})):
        bench.driver()
        bench.start(spec=make_spec(budget={"train_steps": 1}))
        bench.finish()
        log = runs.events_after(bench.conn, 1, 0)
        assert [entry.seq for entry in log] == list(range(1, len(log) + 1))
        assert all(a.at <= b.at for a, b in pairwise(log))
        assert all(event_adapter.validate_json(event_adapter.dump_json(e.event)) == e.event for e in log)


def test_a_run_that_was_let_go_by_mistake_is_taken_up_again(bench: Bench) -> None:
    with ScriptedWorkers(bench.url, bench.pushed, make_spec()):
        driver = bench.driver()
        bench.start()
        bench.wait(lambda run: run.step >= 1)
        driver.held.pop(1)
        bench.finish()
        bench.account()
