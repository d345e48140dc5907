"""PostgreSQL's primary is killed and its replica takes its place: every process goes on, and nothing is lost.

One address names both servers. The replica is synchronous, so what was acknowledged is there.
"""

import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from flexmarl.contracts.events import RunVerb, Verb
from flexmarl.contracts.status import RunStatus
from flexmarl.launcher.processes import free_port, wait_until
from flexmarl.store import schema
from flexmarl.store.control import inbox, runs
from tests.support.counting import assert_accounted
from tests.support.infrastructure import remark
from tests.support.replicated import ReplicatedPostgres, replicated
from tests.support.system import ROOT, System

pytestmark = [pytest.mark.services, pytest.mark.slow]

SPEC = {"agents": {"speaker": {}, "listener": {}}, "environment": {"type": "reference_game"}}


class Writer(threading.Thread):
    """Inserts numbers through the address of the installation and notes those that were acknowledged."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.acknowledged: list[int] = []
        self._url, self._stopping = url, threading.Event()

    def run(self) -> None:
        number = 0
        while not self._stopping.is_set():
            try:
                with psycopg.connect(self._url, autocommit=True, connect_timeout=2) as conn:
                    conn.execute("CREATE TABLE IF NOT EXISTS written (number int)")
                    while not self._stopping.is_set():
                        number += 1
                        conn.execute("INSERT INTO written VALUES (%s)", [number])
                        self.acknowledged.append(number)
            except psycopg.OperationalError:
                self._stopping.wait(0.05)

    def stop(self) -> None:
        self._stopping.set()
        self.join(60)

    def lost(self) -> set[int]:
        with psycopg.connect(self._url) as conn:
            return set(self.acknowledged) - {row[0] for row in conn.execute("SELECT number FROM written")}


@pytest.fixture
def servers(short_tmp: Path) -> Iterator[ReplicatedPostgres]:
    with replicated(short_tmp / "servers") as servers:
        yield servers


@contextmanager
def started(environment: dict[str, str], home: Path, *commands: list[str]) -> Iterator[list[subprocess.Popen[bytes]]]:
    processes = []
    for number, command in enumerate(commands):
        with (home / f"{number}.out").open("wb") as out:
            processes.append(
                subprocess.Popen([sys.executable, *command], cwd=ROOT, env=environment, stdout=out, stderr=out)
            )
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait(60)


def test_driver_web_and_node_go_on_at_the_new_primary(
    servers: ReplicatedPostgres, redis_url: str, short_tmp: Path
) -> None:
    home, port = short_tmp / "home", free_port()
    home.mkdir()
    environment = {
        **os.environ,
        "DATABASE_URL": servers.url,
        "REDIS_URL": redis_url,
        "FLEXMARL_HOME": str(home),
        "FLEXMARL_NODE": "box",
        "FLEXMARL_SECRET_KEY": "of-this-test",
        "FLEXMARL_CLUSTER_KEY": "of-this-test",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'platform'}",
        "DJANGO_SETTINGS_MODULE": "flexmarl.controlplane.settings.development",
    }
    with psycopg.connect(servers.url, autocommit=True) as conn:
        schema.apply(conn)
        start(conn, 1)
    commands = (
        ["manage.py", "drive"], ["manage.py", "serve", "--port", str(port)], ["-m", "workers.node"],
    )  # fmt: skip
    writer = Writer(servers.url)
    with started(environment, home, *commands) as processes:
        with psycopg.connect(servers.url, autocommit=True) as conn:
            eventually(lambda: bool(runs.load_run(conn, 1).owner) and seen_node(conn) < 5)
        eventually(lambda: checks(port).get("database") == "ok")
        writer.start()
        eventually(lambda: len(writer.acknowledged) > 100)
        servers.switch()
        began = time.monotonic()
        with psycopg.connect(servers.url, autocommit=True) as conn:
            start(conn, 2)
            eventually(lambda: bool(runs.load_run(conn, 2).owner) and runs.load_run(conn, 2).status == "queued")
            taken = time.monotonic() - began
            eventually(lambda: seen_node(conn) < 5)
            eventually(lambda: checks(port).get("database") == "ok")
            remark("after a switch of the primary", f"driver {taken:.1f} s, all {time.monotonic() - began:.1f} s")
        assert [process.poll() for process in processes] == [None] * 3, "nobody was started again"
        writer.stop()
        assert writer.lost() == set()


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_run_goes_on_and_ends_with_every_row(servers: ReplicatedPostgres, short_tmp: Path) -> None:
    spec = {"budget": {"train_steps": 12, "target": None}, "evaluation": {"tasks": 8}}
    with System(short_tmp / "home", environment={"DATABASE_URL": servers.url}) as system:
        api, writer = system.api(), Writer(servers.url)
        before = system.processes()
        run = api.create_run(name="switched", template="reference_game", spec=spec)
        writer.start()
        step = api.wait(run["id"], lambda found: found["step"] >= 3, 240)["step"]
        servers.switch()
        began = time.monotonic()
        eventually(lambda: answered(lambda: api.run(run["id"])["step"] > step))
        remark("after a switch of the primary", f"the next step {time.monotonic() - began:.1f} s")
        ended = api.finish(run["id"], 400)
        assert ended["status"] == "completed", ended["reason_text"]
        assert system.processes() == before, "no process was started again"
        writer.stop()
        assert writer.lost() == set()
        assert api.consistency(run["id"])["ok"]
        with psycopg.connect(servers.url, autocommit=True) as conn:
            assert_accounted(conn, ended["no"])


def start(conn: psycopg.Connection, run: int) -> None:
    runs.create_run(conn, run, {**SPEC}, RunStatus.DRAFT)
    inbox.put_verb(conn, run, f"start:{run}", RunVerb(verb=Verb.START, actor="ada"))


def seen_node(conn: psycopg.Connection) -> float:
    """Return the seconds since the node's last heartbeat."""
    row = conn.execute(
        "SELECT extract(epoch FROM clock_timestamp() - max(heartbeat_at))::float8 FROM store.node"
    ).fetchone()
    return float("inf") if row is None or row[0] is None else float(row[0])


def checks(port: int) -> dict[str, str]:
    """Return what the web process says of each thing that it needs."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=30) as answer:
            return dict(json.loads(answer.read())["checks"])
    except urllib.error.HTTPError as error:
        return dict(json.loads(error.read()).get("checks", {}))
    except OSError:
        return {}


def answered(look: Callable[[], bool]) -> bool:
    """Look, and take an answer that the database is away for no."""
    try:
        return look()
    except (RuntimeError, OSError):
        return False


def eventually(done: Callable[[], bool], timeout_s: float = 120.0) -> None:
    assert wait_until(done, timeout_s)
