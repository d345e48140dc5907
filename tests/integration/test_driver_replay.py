"""The log explains everything that is stored; the rest is told, and stops a run at the next takeover."""

import re
from dataclasses import replace
from typing import Any

import pytest
from psycopg import Cursor

from flexmarl.contracts.events import Verb
from flexmarl.contracts.status import RunStatus
from flexmarl.controlplane.runs.driver.replaying import replay
from flexmarl.controlplane.runs.driver.session import RunSession
from flexmarl.orchestrator import Orchestrator
from flexmarl.store.control import inbox
from flexmarl.store.control.runs import RunLease
from flexmarl.store.errors import StoreError
from tests.integration.test_driver import Bench, bench, make_spec
from tests.support import scripted_workers
from tests.support.scripted_workers import ScriptedWorkers

pytestmark = pytest.mark.services

__all__ = ["bench"]  # the fixture

ENDLESS = {"train_steps": 100_000}


@pytest.fixture
def ended(bench: Bench) -> Bench:
    spec = make_spec(budget={"train_steps": 2})
    with ScriptedWorkers(bench.url, bench.pushed, spec):
        bench.driver()
        bench.start(spec=spec)
        bench.finish()
        bench.settle()
    return bench


def test_the_log_of_a_run_leads_to_its_commands_and_its_state(ended: Bench) -> None:
    found = replay(ended.conn, 1)
    assert found.differences == ()
    assert found.status is RunStatus.COMPLETED
    assert found.events == ended.stored().seq > 20
    assert found.commands == ended.column("SELECT count(*) FROM store.command")[0]
    assert found.snapshot_seq > 0


def test_tasks_that_were_chosen_are_chosen_again_after_a_takeover(bench: Bench) -> None:
    """What a sampler believes is in the snapshot and in the log behind it, as everything that commands depend on."""
    sampler = {"task_sampler": {"type": "greso", "tasks": 12}}
    spec = make_spec(budget={"train_steps": 4}, sampling=sampler)
    with ScriptedWorkers(bench.url, bench.pushed, spec):
        bench.driver()
        bench.start(spec=spec)
        bench.wait(lambda run: run.step >= 1)
        for _ in range(20):
            stored = bench.stored()
            assert RunSession.load(bench.conn, RunLease(1, stored.owner, stored.fence)).differences == []
        bench.finish()
        bench.settle()
    found = replay(bench.conn, 1, tasks=True)
    assert found.differences == ()
    assert len(found.tasks) == 12
    assert any(line.startswith("task ") and "not played yet" not in line for line in found.tasks)
    stored = bench.stored()
    core = RunSession.load(bench.conn, RunLease(1, stored.owner, stored.fence)).core
    assert core.state.choice.belief.solved


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("DELETE FROM store.command WHERE no = 5", r"event \d+ leads to command 5 \(\w+\), which has no row"),
        ("UPDATE store.command SET seq = seq + 1 WHERE no = 5", r"command 5 is \w+ of event \d+ in epoch 1, the log"),
        (
            "UPDATE store.command SET body = jsonb_set(body, '{learning_rate}', '7') WHERE kind = 'optimizer_step'",
            r"command \d+ \(optimizer_step\) differs at /learning_rate: 7 is stored, the log leads to [\d.e-]+",
        ),
        ("DELETE FROM store.event WHERE seq = 9", "the log has a gap behind event 0"),
        ("UPDATE store.run_state SET step = 99", "step is 99, the log leads to 2"),
        (
            "UPDATE store.event SET body = jsonb_set(body, '{digest}', to_jsonb(repeat('0', 64))) "
            "WHERE kind = 'step_committed'",
            r"/digest: \"0+\" is|leads to \"0+\"",
        ),
    ],
)
def test_a_row_that_was_changed_is_told(ended: Bench, change: str, told: str) -> None:
    ended.conn.execute(change)
    differences = replay(ended.conn, 1).differences
    assert any(re.search(told, text) for text in differences), differences


def test_a_run_that_does_not_exist_cannot_be_replayed(bench: Bench) -> None:
    with pytest.raises(StoreError, match="run 7 does not exist"):
        replay(bench.conn, 7)


CHANGES = [
    ("UPDATE store.command SET status = 'void' WHERE status = 'open' AND kind = 'play_groups'", "is void, but the log"),
    ("DELETE FROM store.event WHERE seq = (SELECT max(seq) FROM store.event)", "the log should hold events"),
    ("UPDATE store.policy_version SET digest = repeat('0', 64) WHERE policy = 'speaker'", "has digest 000000000000"),
    ("DELETE FROM store.policy_version WHERE policy = 'speaker' AND version = "
     "(SELECT max(version) FROM store.policy_version WHERE policy = 'speaker')", "speaker is committed at version"),
    ("UPDATE store.lease SET state = 'ended' WHERE use = 'engine'", "has ended but no event reports it"),
    ("INSERT INTO store.command (run_id, no, seq, epoch, kind, route, body) "
     "SELECT 1, max(no) + 1, max(seq), 1, 'accumulate', 'node', '{}' FROM store.command", "but not in the log"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "told"), CHANGES, ids=lambda value: str(value)[:40])
def test_a_run_whose_rows_differ_is_stopped_at_the_next_takeover(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, change: str, told: str
) -> None:
    monkeypatch.setattr(scripted_workers, "NODE_TTL_S", 60.0)
    spec = make_spec(budget=ENDLESS)
    with ScriptedWorkers(bench.url, bench.pushed, spec):
        driver = bench.driver()
        bench.start(spec=spec)
        bench.wait(lambda run: run.step >= 2)
        # Nobody plays: the run stands in the middle of a step, with a rollout command on its way and nothing else.
        monkeypatch.setattr(bench.pushed, "to_broker", lambda push: None)
        waits = "SELECT 1 FROM store.command WHERE status = 'open' AND kind = 'play_groups'"
        bench.wait(lambda run: bool(bench.column(waits)))
        _until_still(bench)
        bench.crash(driver)
    assert inbox.waiting(bench.conn, 1) == 0
    bench.conn.execute(change)
    bench.driver()
    run = bench.finish()
    assert (run.status, run.reason) == (RunStatus.FAILED, "store_differs")
    assert told in run.reason_text
    assert bench.column("SELECT kind FROM store.event ORDER BY seq DESC LIMIT 1") != ["step_committed"]


def _until_still(bench: Bench) -> None:
    """Wait until no fact comes any more."""
    for _ in range(200):
        before = bench.stored().seq
        bench.wait(lambda run: inbox.waiting(bench.conn, 1) == 0)
        bench.conn.execute("SELECT pg_sleep(0.3)")
        taken = bench.column("SELECT count(*) FROM store.command WHERE status = 'taken' AND kind <> 'host_lease'")
        if bench.stored().seq == before and taken == [0]:
            return
    raise AssertionError("facts keep coming")


def test_two_facts_the_core_cannot_handle_end_one_run_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both come in one batch; each is tried once more before it is given up on, and the log explains the end."""
    original, tried = Orchestrator.handle, []

    def handle(self: Orchestrator, event: Any, now: float) -> Any:
        if event.kind == "lease_recalled":
            tried.append(event.lease_id)
            raise RuntimeError("no such lease")
        return original(self, event, now)

    monkeypatch.setattr(Orchestrator, "handle", handle)
    spec = make_spec(budget=ENDLESS)
    with ScriptedWorkers(bench.url, bench.pushed, spec):
        bench.driver()
        bench.start(spec=spec)
        bench.wait(lambda run: run.step >= 1)
        body = '{"kind": "lease_recalled", "lease_id": %s}'
        bench.conn.execute(
            "INSERT INTO store.inbox (run_id, producer_key, body) VALUES (1, 'one', %s::jsonb), (1, 'two', %s::jsonb)",
            [body % 7, body % 8],
        )
        run = bench.finish()
        bench.settle()
    assert (run.reason, "lease_recalled" in run.reason_text) == ("orchestrator_error", True)
    assert (tried.count(7), tried.count(8)) == (2, 2)
    given_up = "SELECT body ->> 'fact' FROM store.event WHERE kind = 'run_given_up' ORDER BY seq"
    assert [str(fact)[:25] for fact in bench.column(given_up)] == ['{"kind":"lease_recalled",'] * 2
    assert replay(bench.conn, 1).differences == ()


def test_the_clock_of_the_database_may_go_back(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time stands still until the clock has caught up; the log stays in order and replays to the same."""
    real, gap = inbox.heard, [0.0]

    def heard(answer: Cursor[Any]) -> inbox.WaitingFacts:
        waiting = real(answer)
        return replace(waiting, now=waiting.now - gap[0])

    monkeypatch.setattr(inbox, "heard", heard)
    spec = make_spec(budget={"train_steps": 8})
    with ScriptedWorkers(bench.url, bench.pushed, spec):
        bench.driver()
        bench.start(spec=spec)
        for step, back in ((2, 3600.0), (4, 0.0), (6, 1.0)):
            bench.wait(lambda run, step=step: run.step >= step)
            gap[0] = back
        assert bench.finish().step == 8
        bench.settle()
    times = bench.column("SELECT extract(epoch FROM at)::float8 FROM store.event ORDER BY seq")
    assert times == sorted(times)  # type: ignore[type-var]
    assert len(set(times)) < len(times)
    assert replay(bench.conn, 1).differences == ()


def test_a_takeover_amid_facts_finds_no_difference(bench: Bench) -> None:
    """Whatever was on its way when a driver died is no difference."""
    spec = make_spec(budget=ENDLESS)
    with ScriptedWorkers(bench.url, bench.pushed, spec):
        driver = bench.driver()
        bench.start(spec=spec)
        bench.wait(lambda run: run.step >= 1)
        for _ in range(150):
            stored = bench.stored()
            session = RunSession.load(bench.conn, RunLease(1, stored.owner, stored.fence))
            assert session.differences == []
        bench.verb(Verb.STOP)
        bench.finish()
        assert driver.held.get(1) is None or bench.stored().status is RunStatus.COMPLETED
