"""Two driver processes and six runs that each need a gang from one pool which has room for two: everybody is served.

The test is the node: it proves leases ended, and lets a run go some moments after it has its devices. At every look a
run holds its whole gang or nothing, and a project holds no more than its quota, whichever driver grants.
"""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from flexmarl.contracts.events import RunVerb, Verb
from flexmarl.contracts.status import RunStatus
from flexmarl.store import grants, inbox, leases, pool_rules, runs

pytestmark = pytest.mark.services

ROOT = Path(__file__).resolve().parents[2]
SPEC = {"agents": {"speaker": {}, "listener": {}}, "environment": {"type": "reference_game"}}
GANG = 2
QUOTA = 3
"""One gang of the project at a time, and a device to spare that no gang may be split over."""


@pytest.fixture
def drivers(store_url: str, redis_url: str, short_tmp: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    environment = {
        **os.environ,
        "DATABASE_URL": store_url,
        "REDIS_URL": redis_url,
        "FLEXMARL_HOME": str(short_tmp),
        "FLEXMARL_SECRET_KEY": "of-this-test",
        "FLEXMARL_CLUSTER_KEY": "of-this-test",
        "DJANGO_SETTINGS_MODULE": "flexmarl.controlplane.settings.development",
    }
    command = [sys.executable, str(ROOT / "manage.py"), "drive"]
    started = []
    for name in ("one", "two"):
        with (short_tmp / f"{name}.log").open("wb") as out:
            started.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT))
    yield started
    for process in started:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait(10)


@contextmanager
def standing_still(process: subprocess.Popen[bytes]) -> Iterator[None]:
    process.send_signal(signal.SIGSTOP)
    yield
    process.send_signal(signal.SIGCONT)


def test_everybody_gets_a_whole_gang_and_no_quota_is_exceeded(
    drivers: list[subprocess.Popen[bytes]], store_conn: psycopg.Connection, short_tmp: Path
) -> None:
    facts = [leases.DeviceFacts(f"box.cpu{i}", "cpu", i) for i in range(2 * GANG + 1)]
    leases.register_node(store_conn, leases.NodeFacts("box", "127.0.0.1:1", "life-1", "0"), facts)
    pool_rules.set_quota(store_conn, "math", "default", QUOTA)
    first, second = drivers
    _start(store_conn, 1)
    _eventually(lambda: bool(_owners(store_conn)))
    with standing_still(second):
        for run in (2, 3):
            _start(store_conn, run)
        _eventually(lambda: len(_owners(store_conn)) == 3)
    with standing_still(first):
        for run in (4, 5, 6):
            _start(store_conn, run)
        _eventually(lambda: len(_owners(store_conn)) == 6)
    assert len(set(_owners(store_conn).values())) == 2, "both drivers hold runs"
    _serve_all(store_conn)
    for name in ("one", "two"):
        assert b"Traceback" not in (short_tmp / f"{name}.log").read_bytes()


def test_a_grant_that_would_exceed_the_quota_is_refused_by_its_own_transaction(store_conn: psycopg.Connection) -> None:
    """Two drivers that looked at the same moment each find room for one gang."""
    facts = [leases.DeviceFacts(f"box.cpu{i}", "cpu", i) for i in range(2 * GANG)]
    leases.register_node(store_conn, leases.NodeFacts("box", "127.0.0.1:1", "life-1", "0"), facts)
    pool_rules.set_quota(store_conn, "math", "default", QUOTA)
    devices = [f"box.cpu{i}" for i in range(2 * GANG)]
    uses = (grants.DeviceUse.ENGINE, grants.DeviceUse.TRAINER)
    granted = []
    for run, own in ((1, devices[:2]), (2, devices[2:])):
        runs.create_run(store_conn, run, {**SPEC}, RunStatus.QUEUED, project="math")
        [lease] = runs.claim_runs(store_conn, f"driver-{run}", 30.0)
        store_conn.execute(
            "INSERT INTO store.command (run_id, no, seq, epoch, kind, route, body) "
            "VALUES (%s, 1, 1, 1, 'request_devices', 'driver', "
            """'{"kind": "request_devices", "pool": "default", "engines": 1, "trainers": 1}')""",
            [run],
        )
        granted.append(grants.grant(store_conn, lease, 1, list(zip(own, uses, strict=True))) is not None)
    assert granted == [True, False]
    assert [demand.run_id for demand in grants.open_demands(store_conn)] == [2]


def _start(conn: psycopg.Connection, run: int) -> None:
    project = "math" if run % 2 else "game"
    runs.create_run(conn, run, {**SPEC}, RunStatus.DRAFT, project=project)
    inbox.put_verb(conn, run, f"start:{run}", RunVerb(verb=Verb.START, actor="ada"))


def _owners(conn: psycopg.Connection) -> dict[int, str]:
    return dict(conn.execute("SELECT run_id, owner FROM store.run_state WHERE owner <> ''").fetchall())


def _eventually(done: Callable[[], bool], timeout_s: float = 40.0) -> None:
    until = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < until
        time.sleep(0.02)


def _serve_all(conn: psycopg.Connection) -> None:
    """Be the node until every run had its gang and has given it back."""
    had: set[int] = set()

    def look() -> bool:
        leases.heartbeat_node(conn, "box", "life-1")
        held = conn.execute(
            "SELECT l.run_id, r.project, l.state FROM store.lease l JOIN store.run_state r USING (run_id) "
            "WHERE l.state <> 'ended'"
        ).fetchall()
        gangs = Counter(run for run, _, state in held if state == "held")
        assert set(gangs.values()) <= {GANG}, f"a gang is split: {gangs}"
        assert sum(project == "math" for _, project, _ in held) <= QUOTA, f"the quota is exceeded: {held}"
        for run in gangs.keys() - had:
            had.add(run)
            inbox.put_verb(conn, run, f"kill:{run}", RunVerb(verb=Verb.KILL, actor="ada"))
        conn.execute("UPDATE store.lease SET expires_at = clock_timestamp() WHERE state = 'releasing'")
        for orphan in leases.orphans(conn, "box"):
            leases.end_orphan(conn, orphan, "nothing runs")
        return len(had) == 6 and not held

    _eventually(look, 60.0)
