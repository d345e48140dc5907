"""Two driver processes: each run has one of them, a stalled one is replaced, and what it still holds is refused."""

import os
import signal
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from flexmarl.contracts.events import RunVerb, Verb
from flexmarl.contracts.status import RunStatus
from flexmarl.controlplane.runs.driver.replaying import replay
from flexmarl.controlplane.runs.driver.session import RunSession
from flexmarl.controlplane.runs.driver.turning import turns
from flexmarl.store.control import inbox, runs
from flexmarl.store.control.runs import RunLease
from flexmarl.store.errors import FenceLost
from tests.integration.test_driver_process import SPEC, drive, environment, eventually

pytestmark = pytest.mark.services

__all__ = ["environment"]  # the fixture

RUNS = (1, 2, 3, 4)


@pytest.fixture
def drivers(environment: dict[str, str], short_tmp: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    processes = [drive(environment, short_tmp / f"driver{i}.log") for i in range(2)]
    yield processes
    for process in processes:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGCONT)
            process.kill()
        process.wait(60)


def start(conn: psycopg.Connection, run_id: int) -> None:
    runs.create_run(conn, run_id, {**SPEC}, RunStatus.DRAFT)
    inbox.put_verb(conn, run_id, f"verb:{run_id}", RunVerb(verb=Verb.START, actor="ada"))


def owners(conn: psycopg.Connection) -> dict[int, tuple[str, int]]:
    found = conn.execute("SELECT run_id, owner, fence FROM store.run_state WHERE owner <> ''").fetchall()
    return {run_id: (owner, fence) for run_id, owner, fence in found}


def is_refused(conn: psycopg.Connection, lease: RunLease) -> bool:
    """Decide on a verb under a lease that another driver has taken. False: the other one handled the verb before."""
    stale = RunSession.load(conn, lease)
    inbox.put_verb(conn, lease.run_id, f"late:{uuid.uuid4()}", RunVerb(verb=Verb.RESUME))
    try:
        decided = list(turns(stale, conn))
    except FenceLost:
        return True
    assert decided == [], "a decision was written under an old fence"
    return False


def test_drivers_share_runs_and_a_stale_one_writes_nothing(
    drivers: list[subprocess.Popen[bytes]], store_conn: psycopg.Connection, short_tmp: Path
) -> None:
    for run_id in RUNS:
        start(store_conn, run_id)
    eventually(lambda: all(runs.load_run(store_conn, n).status is RunStatus.QUEUED for n in RUNS), 60.0)
    eventually(lambda: len(owners(store_conn)) == len(RUNS))
    before = owners(store_conn)
    # One stops dead in the middle of its work; the other takes every run of it over, under a higher fence.
    logs = [(short_tmp / f"driver{i}.log").read_text() for i in range(2)]
    holder = next(i for i, log in enumerate(logs) if any(owner in log for owner, _ in before.values()))
    os.kill(drivers[holder].pid, signal.SIGSTOP)

    stopped = next(owner for owner, _ in before.values() if owner in logs[holder])

    def taken_over() -> bool:
        now = owners(store_conn)
        return len(now) == len(RUNS) and all(owner != stopped for owner, _ in now.values())

    eventually(taken_over, 60.0)
    lost = {run_id: own for run_id, own in before.items() if own[0] == stopped}
    assert lost
    for run_id, (owner, fence) in lost.items():
        assert owners(store_conn)[run_id][1] > fence
        lease = RunLease(run_id, owner, fence)
        eventually(lambda lease=lease: is_refused(store_conn, lease))  # type: ignore[misc]
    # It wakes up with its old fences: nothing it does is taken, and all runs end in the hands of whoever holds them.
    os.kill(drivers[holder].pid, signal.SIGCONT)
    for run_id in RUNS:
        inbox.put_verb(store_conn, run_id, f"stop:{run_id}", RunVerb(verb=Verb.STOP))
    eventually(lambda: all(runs.load_run(store_conn, n).status is RunStatus.CANCELLED for n in RUNS), 60.0)
    for run_id in RUNS:
        assert replay(store_conn, run_id).differences == ()
        keys = store_conn.execute("SELECT count(*), max(seq) FROM store.event WHERE run_id = %s", [run_id]).fetchone()
        assert keys is not None
        assert keys[0] == keys[1]
