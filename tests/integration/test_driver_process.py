"""`manage.py drive` as a process: drives a run from its verb on, and leaves within the time its supervisor gives it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from flexmarl.contracts.events import RunVerb, Verb
from flexmarl.contracts.status import RunStatus
from flexmarl.store.control import inbox, runs

pytestmark = pytest.mark.services

ROOT = Path(__file__).resolve().parents[2]
SPEC = {"agents": {"speaker": {}, "listener": {}}, "environment": {"type": "reference_game"}}


def eventually(done: Callable[[], bool], timeout_s: float = 90.0) -> None:
    until = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.fixture
def environment(store_url: str, redis_url: str, short_tmp: Path) -> dict[str, str]:
    return {
        **os.environ,
        "DATABASE_URL": store_url,
        "REDIS_URL": redis_url,
        "FLEXMARL_HOME": str(short_tmp),
        "FLEXMARL_SECRET_KEY": "of-this-test",
        "FLEXMARL_CLUSTER_KEY": "of-this-test",
        "DJANGO_SETTINGS_MODULE": "flexmarl.controlplane.settings.development",
    }


def drive(environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(ROOT / "manage.py"), "drive"]
    with log.open("wb") as out:
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT)


@pytest.fixture
def driver(environment: dict[str, str], short_tmp: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = drive(environment, short_tmp / "driver.log")
    yield process
    if process.poll() is None:
        process.kill()
    process.wait(60)


def test_it_claims_a_started_run_and_gives_it_back_on_sigterm(
    driver: subprocess.Popen[bytes], store_conn: psycopg.Connection, short_tmp: Path
) -> None:
    runs.create_run(store_conn, 1, {**SPEC}, RunStatus.DRAFT)
    inbox.put_verb(store_conn, 1, "verb:1", RunVerb(verb=Verb.START, actor="ada"))
    eventually(lambda: runs.load_run(store_conn, 1).reason_text.startswith("Needs 2 devices in default, 0 are healthy"))
    run = runs.load_run(store_conn, 1)
    assert (run.status, run.pending_verb) == (RunStatus.QUEUED, "")
    driver.send_signal(signal.SIGTERM)
    assert driver.wait(60) == 0
    assert runs.load_run(store_conn, 1).owner == ""
    assert b"Traceback" not in (short_tmp / "driver.log").read_bytes()


def test_it_says_in_one_line_that_the_database_is_not_prepared(
    environment: dict[str, str], database_url: str, short_tmp: Path
) -> None:
    log = short_tmp / "driver.log"
    process = drive({**environment, "DATABASE_URL": database_url}, log)
    assert process.wait(90) == 1
    lines = log.read_text().strip().splitlines()
    assert len(lines) == 1
    assert lines[0].endswith("run: manage.py prepare")
