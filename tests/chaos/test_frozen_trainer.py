"""SIGSTOP of a trainer in the middle of a step, and its return: alone, and with the processes that vouch for it.

FLEXMARL_CHAOS_STOP_S sets how long it stands (16 s unless set, longer than every lease, claim and command lives; 90 s
is the long form).
"""

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import psycopg
import pytest

from flexmarl.launcher.processes import wait_until
from tests.chaos.test_kill_points import TRIGGERS, halted
from tests.chaos.test_random_kills import SPEC, assert_nothing_lost_or_repeated
from tests.support.chaos import Store
from tests.support.system import System

pytestmark = [pytest.mark.slow, pytest.mark.services]

STOP_S = float(os.environ.get("FLEXMARL_CHAOS_STOP_S", "16"))
STEPS = 30


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with System(tmp_path_factory.mktemp("frozen") / "home") as system:
        with psycopg.connect(system.database_url, autocommit=True) as conn:
            conn.execute(TRIGGERS.encode())
        yield system


def start(system: System, name: str) -> tuple[dict, Store]:
    api = system.api()
    spec = {**SPEC, "budget": {"train_steps": STEPS, "target": None}}
    run = api.create_run(name=name, spec=spec)
    run = api.wait(run["id"], lambda run: run["step"] >= 3, 120)
    return run, Store(system, run["no"])


@contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    """Stop processes; whatever happens, none stays stopped."""
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def versions(store: Store) -> dict[str, int]:
    rows = "SELECT policy, max(version) FROM store.policy_version WHERE run_id = %s GROUP BY policy"
    return dict(store.read(rows, store.run_no))


def step_in_work(store: Store) -> tuple[str, int]:
    """Return policy and next version of the step that a node holds, once it does."""
    asked = (
        "SELECT body ->> 'policy', (body ->> 'next_version')::int FROM store.command "
        "WHERE run_id = %s AND kind = 'optimizer_step' AND status = 'taken'"
    )
    while not (rows := store.read(asked, store.run_no)):
        time.sleep(0.02)
    return rows[0]


def test_a_trainer_that_stood_returns_with_an_old_fence_and_changes_nothing(system: System) -> None:
    run, store = start(system, "frozen host")
    trainer, life = store.children()["trainer"]
    processes = system.processes()
    node_log = system.home / "logs" / "node.log"
    said = node_log.stat().st_size
    with psycopg.connect(system.database_url, autocommit=True) as conn, stopped([processes["device-worker"]]):
        with ExitStack() as frozen:
            with halted(conn, "taken:optimizer_step"):
                returned = frozen.enter_context(ExitStack())
                returned.enter_context(stopped([trainer]))
            policy, version = step_in_work(store)
            frozen.enter_context(stopped([processes["node"]]))
            before = versions(store)
            assert before[policy] == version - 1
            time.sleep(STOP_S)
            assert "trainer" not in store.children(), "its lease has expired, the run counts it as lost"
            returned.close()
            time.sleep(2.0)  # it ends its step now, and its answer waits for the node
            assert versions(store) == before
        assert wait_until(lambda: b"command given up" in node_log.read_bytes()[said:], 20), "refused by name"
        assert versions(store) == before, "what the returned trainer answered is no version"
    lines = [json.loads(line) for line in node_log.read_bytes()[said:].splitlines()]
    refused = [line["reason"] for line in lines if line["event"] == "command given up"]
    print(f"stood {STOP_S:.0f} s before version {version} of {policy}; refused: {refused}")
    api = system.api()
    run = api.finish(run["id"], 240)
    assert (run["status"], run["step"]) == ("completed", STEPS), run["reason_text"]
    lives = "SELECT count(*) FROM store.event WHERE run_id = %s AND kind = 'child_lost' AND body ->> 'incarnation' = %s"
    assert store.read(lives, store.run_no, life) == [(1,)]
    assert_nothing_lost_or_repeated(system, api, run)


def test_a_trainer_that_stood_alone_goes_on_as_if_nothing_was(system: System) -> None:
    run, store = start(system, "frozen trainer")
    trainer, life = store.children()["trainer"]
    with psycopg.connect(system.database_url, autocommit=True) as conn:
        with halted(conn, "taken:optimizer_step"):
            os.kill(trainer, signal.SIGSTOP)
        with stopped([trainer]):
            policy, version = step_in_work(store)
            time.sleep(STOP_S)
            assert versions(store)[policy] == version - 1
    run = (api := system.api()).finish(run["id"], 240)
    assert (run["status"], run["step"]) == ("completed", STEPS), run["reason_text"]
    assert_nothing_lost_or_repeated(system, api, run)
    lost = "SELECT count(*) FROM store.event WHERE run_id = %s AND kind = 'child_lost'"
    assert store.read(lost, store.run_no) == [(0,)], f"{life} was vouched for all the time"
