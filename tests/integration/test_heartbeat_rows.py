"""Rows of heartbeats on a real database: written, taken away in order, buried by a successor."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import psycopg
import pytest

from flexmarl.launcher.processes import wait_until
from flexmarl.store import schema
from flexmarl.store.control import process_heartbeats
from flexmarl.store.control.heartbeat import Heartbeat
from flexmarl.store.control.process_heartbeats import FORGOTTEN_S, SILENT_S, ProcessFacts
from tests.conftest import Services

pytestmark = pytest.mark.services


@pytest.fixture
def url(services: Services) -> Iterator[str]:
    name = f"heartbeats_{os.getpid()}"
    yield services.create_database(name)
    services.drop_database(name)


@pytest.fixture
def conn(url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(url, autocommit=True) as conn:
        schema.apply(conn)
        yield conn


def kinds(conn: psycopg.Connection) -> list[tuple[str, int, str]]:
    return [(process.kind, process.pid, process.state) for process in process_heartbeats.processes(conn)]


def later(conn: psycopg.Connection, seconds: float) -> None:
    conn.execute("UPDATE store.process_heartbeat SET heard_at = heard_at - make_interval(secs => %s)", [seconds])


def test_a_process_reports_and_takes_its_row_away(conn: psycopg.Connection, url: str) -> None:
    heartbeat = Heartbeat("driver", node="box")
    heartbeat.start()
    heartbeat.report(url)
    assert wait_until(lambda: kinds(conn) == [("driver", os.getpid(), "running")], 60)
    heartbeat.stop(5.0)
    assert kinds(conn) == []


def test_a_stuck_loop_is_in_the_row(conn: psycopg.Connection, url: str) -> None:
    heartbeat = Heartbeat("driver", node="box")
    heartbeat.watch("loop", 1.0)()
    heartbeat.start()
    heartbeat.report(url)
    assert wait_until(lambda: kinds(conn) == [("driver", os.getpid(), "stuck")], 60)
    heartbeat.stop(5.0)


def test_a_successor_buries_what_a_dead_one_left(conn: psycopg.Connection, url: str) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    lives = os.getppid()
    for kind, node, pid in (("driver", "box", ended.pid), ("driver", "box", lives), ("driver", "other", ended.pid),
                            ("web", "box", ended.pid)):  # fmt: skip
        process_heartbeats.put(conn, ProcessFacts(kind, node, "", pid, time.time()), "", 0.0)
    heartbeat = Heartbeat("driver", node="box")
    heartbeat.report(url)
    expected = {("driver", os.getpid()), ("driver", lives), ("web", ended.pid), ("driver", ended.pid)}
    assert wait_until(lambda: {(kind, pid) for kind, pid, _ in kinds(conn)} == expected and len(kinds(conn)) == 4, 60)
    heartbeat.stop(5.0)


@pytest.mark.parametrize(("age_s", "found"), [
    (0.0, ["running"]), (SILENT_S + 1, ["silent"]), (FORGOTTEN_S + 1, []),
])  # fmt: skip
def test_age_decides(conn: psycopg.Connection, age_s: float, found: list[str]) -> None:
    process_heartbeats.put(conn, ProcessFacts("driver", "box", "", 1, time.time()), "", 0.0)
    later(conn, age_s)
    assert [state for _, _, state in kinds(conn)] == found


def test_a_place_is_cleared_before_its_processes_start(conn: psycopg.Connection) -> None:
    rows = [ProcessFacts("driver", "box", "box@/home", 1, 0.0), ProcessFacts("web", "box", "box@/home", 2, 0.0),
            ProcessFacts("driver", "box", "", 3, 0.0)]  # fmt: skip
    for row in rows:
        process_heartbeats.put(conn, row, "", 0.0)
    process_heartbeats.clear(conn, "box@/home")
    process_heartbeats.clear(conn, "")
    assert kinds(conn) == [("driver", 3, "running")]


def test_the_former_one_of_a_place_does_not_take_the_row_of_its_successor(conn: psycopg.Connection) -> None:
    former = ProcessFacts("driver", "box", "box@/home", 1, 0.0)
    process_heartbeats.put(conn, former, "", 0.0)
    process_heartbeats.put(conn, ProcessFacts("driver", "box", "box@/home", 2, 0.0), "", 0.0)
    process_heartbeats.remove(conn, former)
    assert kinds(conn) == [("driver", 2, "running")]
