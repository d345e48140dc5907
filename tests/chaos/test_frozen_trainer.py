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
from pathlib import Path

import psycopg
import pytest

from flexmarl.contracts.commands import OptimizerStep
from flexmarl.launcher.processes import wait_until
from flexmarl.store import steps
from flexmarl.store.commands import Taken
from flexmarl.store.errors import LeaseLost, TokenLost
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
    run = api.wait(run["id"], lambda run: run["step"] >= 3, 300)
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


def step_in_work(store: Store) -> tuple[Taken, OptimizerStep]:
    """Return the step that a node holds, with its hold, once it does."""
    asked = (
        "SELECT run_id, no, token, takes, epoch, body::text FROM store.command "
        "WHERE run_id = %s AND kind = 'optimizer_step' AND status = 'taken'"
    )
    while not (rows := store.read(asked, store.run_no)):
        time.sleep(0.02)
    order = OptimizerStep.model_validate_json(rows[0][5])
    return Taken(*rows[0][:5], order), order


def assert_old_fence_is_refused(conn: psycopg.Connection, held: Taken, order: OptimizerStep) -> None:
    """Commit, under the hold and the life of then, the step that the returned trainer made."""
    step = steps.Step(
        lease_id=order.lease_id, policy=order.policy, accumulator=order.accumulator,
        micro_batches=order.micro_batches, version=order.next_version, digest="a" * 64, state="b" * 64,
        null_step=False, grad_norm=1.0, learning_rate=order.learning_rate, seconds=1.0,
    )  # fmt: skip
    with pytest.raises((TokenLost, LeaseLost)):
        steps.commit_step(conn, held, step)


def refusals(log: Path, behind: int) -> list[str]:
    """Return what a node's log says of commands it did not commit."""
    lines = [json.loads(line) for line in log.read_bytes()[behind:].splitlines()]
    names = {"command given up", "command given back", "command withdrawn"}
    return [f"{line['event']}: {line.get('reason', '')}" for line in lines if line["event"] in names]


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
            held, order = step_in_work(store)
            frozen.enter_context(stopped([processes["node"]]))
            before = versions(store)
            assert before[order.policy] == order.next_version - 1
            time.sleep(STOP_S)
            assert "trainer" not in store.children(), "its lease has expired, the run counts it as lost"
            returned.close()
            time.sleep(2.0)  # it ends its step now, and its answer waits for the node
            assert versions(store) == before
        assert wait_until(lambda: refusals(node_log, said), 20), "the node tells by name what it does not commit"
        assert_old_fence_is_refused(conn, held, order)
        assert versions(store) == before, "what the returned trainer answered is no version"
    print(f"stood {STOP_S:.0f} s before {order.policy} v{order.next_version}; {refusals(node_log, said)}")
    api = system.api()
    run = api.finish(run["id"], 400)
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
            _, order = step_in_work(store)
            time.sleep(STOP_S)
            assert versions(store)[order.policy] == order.next_version - 1
    run = (api := system.api()).finish(run["id"], 400)
    assert (run["status"], run["step"]) == ("completed", STEPS), run["reason_text"]
    assert_nothing_lost_or_repeated(system, api, run)
    lost = "SELECT count(*) FROM store.event WHERE run_id = %s AND kind = 'child_lost'"
    assert store.read(lost, store.run_no) == [(0,)], f"{life} was vouched for all the time"
