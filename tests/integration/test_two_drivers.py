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
from psycopg.types.json import Jsonb

from flexmarl.contracts.events import RunVerb, Verb
from flexmarl.contracts.status import RunStatus
from flexmarl.orchestrator.pool.recalls import RECALL_AFTER_S
from flexmarl.store.control import grants, inbox, leases, node_beats, pool_rules, runs

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
    logs = [short_tmp / f"{name}.log" for name in ("one", "two")]
    _eventually(lambda: all(b"driver_ready" in log.read_bytes() for log in logs), 120.0)
    yield started
    for process in started:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait(60)


@contextmanager
def standing_still(process: subprocess.Popen[bytes], conn: psycopg.Connection) -> Iterator[None]:
    """Stop a driver; its runs stay its own however long that takes, as if it had renewed them."""
    process.send_signal(signal.SIGSTOP)
    conn.execute("UPDATE store.run_state SET lease_until = clock_timestamp() + interval '2 minutes' WHERE owner <> ''")
    yield
    process.send_signal(signal.SIGCONT)


def test_everybody_gets_a_whole_gang_and_no_quota_is_exceeded(
    drivers: list[subprocess.Popen[bytes]], store_conn: psycopg.Connection, short_tmp: Path
) -> None:
    _register(store_conn, 2 * GANG + 1)
    pool_rules.set_quota(store_conn, "math", "default", QUOTA)
    first, second = drivers
    _start(store_conn, 1)
    _eventually(lambda: bool(_owners(store_conn)))
    with standing_still(second, store_conn):
        for run in (2, 3):
            _start(store_conn, run)
        _eventually(lambda: len(_owners(store_conn)) == 3)
    with standing_still(first, store_conn):
        for run in (4, 5, 6):
            _start(store_conn, run)
        _eventually(lambda: len(_owners(store_conn)) == 6)
    assert len(set(_owners(store_conn).values())) == 2, "both drivers hold runs"
    _serve_all(store_conn)
    for name in ("one", "two"):
        assert b"Traceback" not in (short_tmp / f"{name}.log").read_bytes()


def test_two_runs_of_two_drivers_that_hold_what_the_other_lacks_do_not_wait_for_ever(
    drivers: list[subprocess.Popen[bytes]], store_conn: psycopg.Connection, short_tmp: Path
) -> None:
    """Each lost a device for good; the run of the lower priority gives its other one back."""
    _register(store_conn, 2 * GANG)
    first, second = drivers
    for run, other in ((1, second), (2, first)):
        with standing_still(other, store_conn):
            _start(store_conn, run)
            _eventually(lambda run=run: _alive(store_conn) and _gangs(store_conn)[run] == GANG)
    assert len(set(_owners(store_conn).values())) == 2, "each driver holds a run"
    pool_rules.set_priority(store_conn, 1, 10)
    lost = {run: _lose(store_conn, run, use) for run, use in ((1, "trainer"), (2, "engine"))}
    assert len(set(lost.values())) == 2
    _eventually(lambda: _alive(store_conn) and len(grants.open_demands(store_conn)) == 2)
    assert all(demand.stalled and demand.holds for demand in grants.open_demands(store_conn))
    store_conn.execute(
        "UPDATE store.command SET created_at = created_at - make_interval(secs => %s) "
        "WHERE kind = 'request_devices' AND status = 'open'",
        [RECALL_AFTER_S],
    )

    def complete() -> bool:
        _alive(store_conn)
        _end_released(store_conn)
        return _gangs(store_conn) == {2: GANG}

    _eventually(complete)
    _eventually(lambda: {d.run_id: d.holds for d in grants.open_demands(store_conn)} == {1: None})
    [waiting] = grants.open_demands(store_conn)
    assert (waiting.request.engines, waiting.request.trainers) == (1, 1), "it asks for a whole gang again"
    notes = store_conn.execute("SELECT text FROM store.note WHERE run_id = 1").fetchall()
    assert any("releases all its devices" in text and "run 2 lacks 1 device" in text for (text,) in notes), notes
    for name in ("one", "two"):
        assert b"Traceback" not in (short_tmp / f"{name}.log").read_bytes()


def test_a_part_that_is_lost_or_moves_is_a_seat_of_its_gang(store_conn: psycopg.Connection) -> None:
    """So no other run of the project takes it, and a quota that was lowered does not split the gang."""
    _register(store_conn, 2 * GANG)
    pool_rules.set_quota(store_conn, "math", "default", GANG)
    [gang] = [_ask(store_conn, 1, engines=1, trainers=1)]
    both = [("box.cpu0", grants.DeviceUse.ENGINE), ("box.cpu1", grants.DeviceUse.TRAINER)]
    granted = grants.grant(store_conn, gang, 1, both)
    assert granted is not None
    _lose(store_conn, 1, "trainer")
    _ask(store_conn, 1, no=2, engines=0, trainers=1)
    assert pool_rules.rules(store_conn).held == {("math", "default"): GANG}
    other = _ask(store_conn, 2, engines=1, trainers=0)
    assert grants.grant(store_conn, other, 1, [("box.cpu2", grants.DeviceUse.ENGINE)]) is None
    pool_rules.set_quota(store_conn, "math", "default", 0)
    assert grants.grant(store_conn, gang, 2, [("box.cpu3", grants.DeviceUse.TRAINER)]) is not None
    old = granted[0].lease_id
    _ask(store_conn, 1, no=3, engines=1, trainers=0, replaces=old)
    assert grants.grant(store_conn, gang, 3, [("box.cpu2", grants.DeviceUse.ENGINE)]) is not None
    assert pool_rules.rules(store_conn).held == {("math", "default"): GANG}, "a device on the move is one seat"


def test_a_grant_that_would_exceed_the_quota_is_refused_by_its_own_transaction(store_conn: psycopg.Connection) -> None:
    """Two drivers that looked at the same moment each find room for one gang."""
    _register(store_conn, 2 * GANG)
    pool_rules.set_quota(store_conn, "math", "default", QUOTA)
    devices = [f"box.cpu{i}" for i in range(2 * GANG)]
    uses = (grants.DeviceUse.ENGINE, grants.DeviceUse.TRAINER)
    granted = []
    for run, own in ((1, devices[:2]), (2, devices[2:])):
        lease = _ask(store_conn, run, engines=1, trainers=1)
        granted.append(grants.grant(store_conn, lease, 1, list(zip(own, uses, strict=True))) is not None)
    assert granted == [True, False]
    assert [demand.run_id for demand in grants.open_demands(store_conn)] == [2]


def _register(conn: psycopg.Connection, count: int) -> None:
    facts = [leases.DeviceFacts(f"box.cpu{i}", "cpu", i) for i in range(count)]
    leases.register_node(conn, leases.NodeFacts("box", "127.0.0.1:1", "life-1", "0"), facts)


def _ask(conn: psycopg.Connection, run: int, no: int = 1, **wanted: int) -> runs.RunLease:
    """Put a request for devices where a driver puts it, and hold the run."""
    if no == 1:
        runs.create_run(conn, run, {**SPEC}, RunStatus.QUEUED, project="math")
        [lease] = runs.claim_runs(conn, f"driver-{run}", 30.0)
    else:
        lease = runs.RunLease(run, f"driver-{run}", runs.load_run(conn, run).fence)
    conn.execute(
        "INSERT INTO store.command (run_id, no, seq, epoch, kind, route, body) "
        "VALUES (%s, %s, 1, 1, 'request_devices', 'driver', %s)",
        [run, no, Jsonb({"kind": "request_devices", "pool": "default", **wanted})],
    )
    return lease


def _gangs(conn: psycopg.Connection) -> Counter[int]:
    held = conn.execute("SELECT run_id, count(*) FROM store.lease WHERE state = 'held' GROUP BY run_id")
    return Counter(dict(held.fetchall()))


def _alive(conn: psycopg.Connection) -> bool:
    return node_beats.beat(conn, "box", "life-1").alive


def _lose(conn: psycopg.Connection, run: int, use: str) -> str:
    """A device breaks: its lease is over, and nobody gets it again."""
    row = conn.execute(
        "SELECT id, device_id FROM store.lease WHERE run_id = %s AND use = %s AND state = 'held'", [run, use]
    ).fetchone()
    assert row is not None
    conn.execute("UPDATE store.device SET state = 'lost' WHERE id = %s", [row[1]])
    conn.execute("UPDATE store.lease SET expires_at = clock_timestamp() WHERE id = %s", [row[0]])
    assert leases.end_orphan(conn, leases.Orphan(row[0], run, None, 0.0), "the device is gone")
    return str(row[1])


def _end_released(conn: psycopg.Connection) -> None:
    """Be the node: prove that what is to end has ended."""
    conn.execute("UPDATE store.lease SET expires_at = clock_timestamp() WHERE state = 'releasing'")
    for orphan in node_beats.beat(conn, "box", "life-1").orphans:
        leases.end_orphan(conn, orphan, "nothing runs")


def _start(conn: psycopg.Connection, run: int) -> None:
    project = "math" if run % 2 else "game"
    runs.create_run(conn, run, {**SPEC}, RunStatus.DRAFT, project=project)
    inbox.put_verb(conn, run, f"start:{run}", RunVerb(verb=Verb.START, actor="ada"))


def _owners(conn: psycopg.Connection) -> dict[int, str]:
    return dict(conn.execute("SELECT run_id, owner FROM store.run_state WHERE owner <> ''").fetchall())


def _eventually(done: Callable[[], bool], timeout_s: float = 90.0) -> None:
    until = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < until
        time.sleep(0.02)


def _serve_all(conn: psycopg.Connection) -> None:
    """Be the node until every run had its gang and has given it back."""
    had: set[int] = set()

    def look() -> bool:
        _alive(conn)
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
        _end_released(conn)
        return len(had) == 6 and not held

    _eventually(look, 60.0)
