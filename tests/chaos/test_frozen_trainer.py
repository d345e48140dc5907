"""Children that live and do nothing: a trainer that stood with its host and returns, and those that hang alone.

A trainer is stopped in the middle of a step together with the processes that vouch for it, for 300 s, by when its lease
has expired, and then continues with an old fence. It stands in a system of its own while the other tests
use another one, so that the wait costs nobody anything.
"""

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from flexmarl.contracts.commands import OptimizerStep
from flexmarl.launcher.processes import wait_until
from flexmarl.store.control.commands import Taken
from flexmarl.store.data import steps
from flexmarl.store.errors import LeaseLost, TokenLost
from tests.chaos.test_kill_points import TRIGGERS, halted
from tests.chaos.test_random_kills import SPEC, assert_nothing_lost_or_repeated
from tests.support.chaos import Store
from tests.support.system import System
from workers.watchdog import ANSWER_S, PROBE_S, SILENT_PROBES

pytestmark = [pytest.mark.slow, pytest.mark.full, pytest.mark.services, pytest.mark.timeout(900)]

STOP_S = 300.0
EXPIRED_S = 120.0
STEPS = 10
FOUND_S = SILENT_PROBES * (PROBE_S + ANSWER_S)
"""A child that stopped is found by then where its host gets the processor at all."""
REPLACED_S = FOUND_S + 60.0
MOMENT_S = 3.0


@dataclass
class Standing:
    """A run whose trainer, node, device worker and supervisor have been stopped in the middle of a step."""

    system: System
    conn: psycopg.Connection
    store: Store
    run: dict
    life: str
    trainer: int
    hosts: list[int]
    held: Taken
    order: OptimizerStep
    before: dict[str, int]
    node_log_at: int
    since: float


@pytest.fixture(scope="module", autouse=True)
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standing]:
    with System(tmp_path_factory.mktemp("standing") / "home") as system, connected(system) as conn, ExitStack() as all_:
        run, store = start(system, "frozen host")
        trainer, life = store.children()["trainer"]
        processes = system.processes()
        said = (system.home / "logs" / "node.log").stat().st_size
        # The supervisor stands with its host: it would replace processes that hang while it works.
        all_.enter_context(stopped([system.pid]))
        all_.enter_context(stopped([processes["device-worker"]]))
        with halted(conn, "taken:optimizer_step"):
            all_.enter_context(stopped([trainer]))
        held, order = step_in_work(store)
        all_.enter_context(stopped([processes["node"]]))
        before = versions(store)
        assert before[order.policy] == order.next_version - 1
        hosts = [processes["node"], processes["device-worker"], system.pid]
        yield Standing(
            system, conn, store, run, life, trainer, hosts, held, order, before, said, time.monotonic()
        )  # fmt: skip


@pytest.fixture(scope="module")
def system(installations: Callable[[int], System]) -> System:
    return installations(0)


@contextmanager
def connected(system: System) -> Iterator[psycopg.Connection]:
    """Connect to a system's database and make its points stoppable."""
    with psycopg.connect(system.database_url, autocommit=True) as conn:
        conn.execute(TRIGGERS.encode())
        yield conn


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
        go_on(pids)


def go_on(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
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


def losses(store: Store, life: str) -> list[str]:
    """Return why a life of a child was counted as lost, each time it was."""
    lost = "SELECT body ->> 'reason' FROM store.event WHERE run_id = %s AND kind = 'child_lost'"
    return [reason for (reason,) in store.read(f"{lost} AND body ->> 'incarnation' = %s", store.run_no, life)]


def assert_old_fence_is_refused(conn: psycopg.Connection, held: Taken, order: OptimizerStep) -> None:
    """Commit, under the hold and the life of then, the step that the returned trainer made."""
    step = steps.StepRow(
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


@pytest.mark.parametrize("use", ["trainer", pytest.param("engine", marks=pytest.mark.full)])
def test_a_child_that_hangs_alone_is_found_and_replaced(system: System, use: str) -> None:
    """Its worker lives and vouches for it; nothing but the child itself is wrong."""
    run, store = start(system, f"hung {use}")
    pid, life = store.children()[use]
    api, seen = system.api(), set()
    with stopped([pid]):
        began = time.monotonic()
        while store.children().get(use, (pid, life))[1] == life:
            assert time.monotonic() - began < REPLACED_S, f"the {use} still counts as well"
            seen.add((now := api.run(run["id"]))["status"])
            if now["reason"] == f"recovering_{use}":
                seen.add(now["reason"])
            time.sleep(0.1)
        print(f"{use} found and replaced after {time.monotonic() - began:.1f} s", flush=True)
    assert seen == {"running", f"recovering_{use}"}, "the page says what the run does meanwhile"
    run = api.finish(run["id"], 400)
    assert (run["status"], run["step"]) == ("completed", STEPS), run["reason_text"]
    assert_nothing_lost_or_repeated(system, api, run)
    (why,) = losses(store, life)
    assert why.startswith(f"it hung: {SILENT_PROBES} probes without an answer")
    lines = [note["text"] for note in api.get(f"/runs/{run['id']}/notes?limit=200")["results"]]
    assert any(f"lost: {why}" in line and "restarted automatically" in line for line in lines), lines
    assert any(line.endswith("is back") for line in lines), lines


def test_a_trainer_that_stood_for_a_moment_goes_on_as_if_nothing_was(system: System) -> None:
    run, store = start(system, "a moment")
    trainer, life = store.children()["trainer"]
    with stopped([trainer]):
        before = versions(store)
        time.sleep(MOMENT_S)
        assert max(versions(store).values()) <= max(before.values()) + 1, "at most what was on its way"
    run = (api := system.api()).finish(run["id"], 400)
    assert (run["status"], run["step"]) == ("completed", STEPS), run["reason_text"]
    assert_nothing_lost_or_repeated(system, api, run)
    assert losses(store, life) == [], "it was vouched for all the time"


def test_a_trainer_that_stood_with_its_host_returns_with_an_old_fence_and_changes_nothing(standing: Standing) -> None:
    store, order = standing.store, standing.order
    time.sleep(max(0.0, STOP_S - (time.monotonic() - standing.since)))
    expired = wait_until(lambda: "trainer" not in store.children(), EXPIRED_S)
    assert expired, "the run counts it as lost"
    go_on([standing.trainer])
    time.sleep(2.0)  # it ends its step now, and its answer waits for the node
    assert versions(store) == standing.before
    stood_s = time.monotonic() - standing.since
    go_on(standing.hosts)
    node_log = standing.system.home / "logs" / "node.log"
    told = wait_until(lambda: bool(refusals(node_log, standing.node_log_at)), 120)
    assert told, "the node tells by name what it does not commit"
    assert_old_fence_is_refused(standing.conn, standing.held, order)
    said = refusals(node_log, standing.node_log_at)
    print(f"stood {stood_s:.0f} s before {order.policy} v{order.next_version}; {said}", flush=True)
    api = standing.system.api()
    run = api.finish(standing.run["id"], 400)
    assert (run["status"], run["step"]) == ("completed", STEPS), run["reason_text"]
    made = (
        "SELECT body ->> 'accumulator' FROM store.event WHERE run_id = %s AND kind = 'step_committed' "
        "AND body ->> 'policy' = %s AND (body ->> 'version')::int = %s"
    )
    ((accumulator,),) = store.read(made, store.run_no, order.policy, order.next_version)
    assert accumulator != order.accumulator, "what the returned trainer answered is no version"
    assert len(losses(store, standing.life)) == 1
    assert_nothing_lost_or_repeated(standing.system, api, run)
