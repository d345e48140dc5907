"""Lines of a real device worker and its child reach the store; a log that cannot be written stops nothing."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from flexmarl.store.telemetry import logs
from flexmarl.store.telemetry.logs import LogFilter
from tests.support.machine import Machine, wait_for
from tests.support.store_story import Story

pytestmark = pytest.mark.services


@pytest.fixture
def workers(store_conn: psycopg.Connection, store_url: str, redis_url: str, tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(Story(store_conn).start(), store_url, redis_url, tmp_path)
    (tmp_path / "logs").mkdir()
    machine.environment["FLEXMARL_LOG_DIR"] = str(tmp_path / "logs")
    yield machine
    machine.stop()


def said(conn: psycopg.Connection, run_id: int, component: str) -> list[str]:
    return [row.text for row in logs.page(conn, run_id, LogFilter(components=[component]), 1000)]


def test_lines_of_a_worker_and_of_its_child_reach_the_store(workers, store_conn, tmp_path):
    run_id = workers.story.run_id
    workers.start()
    workers.host()
    workers.serving()
    wait_for(lambda: "child ready" in said(store_conn, run_id, "device"), 60)
    [file] = (tmp_path / "logs").glob("engine-*.log")
    with file.open("a") as child:
        child.write('{"event": "a line of the child", "level": "warning"}\n')
    wait_for(lambda: "a line of the child" in said(store_conn, run_id, "engine"), 60)


def test_a_log_that_cannot_be_written_stops_nothing(workers, store_conn, store_url):
    run_id = workers.story.run_id
    workers.start()
    workers.host()
    first = workers.serving()
    wait_for(lambda: "child ready" in said(store_conn, run_id, "device"), 60)
    with psycopg.connect(store_url) as holder:
        holder.execute("LOCK TABLE store.log IN ACCESS EXCLUSIVE MODE")
        pid = workers.lease()[1]
        os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        second = workers.serving(first.incarnation)
        assert time.monotonic() - began < 60, "a child is replaced while no line can be written"
        ends = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'flexmarl logs'"
        store_conn.execute(ends)
        os.kill(workers.lease()[1], signal.SIGKILL)
        workers.serving(second.incarnation)
        holder.rollback()
    wait_for(lambda: said(store_conn, run_id, "device").count("child lost") == 2, 60)
