"""What a launch leaves in its home for the next one: its lock, its processes, its address, its environment."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from flexmarl.launcher.errors import AlreadyRunning
from flexmarl.launcher.home import SECRET_NAMES, Home
from flexmarl.launcher.plan import PUBLISHED, Options
from flexmarl.launcher.processes import wait_until
from flexmarl.launcher.publishing import Publisher, supervisor_log
from flexmarl.launcher.state import (
    LAUNCH_VARIABLE,
    HomeLock,
    ProcessRecord,
    adopt,
    end_left_overs,
    marked,
    publish_environment,
    record_of,
    write_state,
)
from flexmarl.launcher.up import Up
from tests.support.system import ROOT

LAUNCH = f"test-home-{os.getpid()}"
SLEEP = "import time; time.sleep(600)"
WITH_DETACHED = (
    "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'],"
    " start_new_session=True); time.sleep(600)"
)


@pytest.fixture
def home(short_tmp: Path) -> Home:
    home = Home(short_tmp / "home")
    home.prepare()
    return home


def test_the_next_start_ends_what_survived_the_supervisor(home: Home) -> None:
    environment = {**os.environ, LAUNCH_VARIABLE: LAUNCH}
    survivors = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, start_new_session=True)
        for code in (SLEEP, WITH_DETACHED)
    ]
    write_state(home, launch=LAUNCH, url="", ready=True, records=[record_of("a", survivors[0].pid)])
    assert wait_until(lambda: len(list(marked(LAUNCH))) == 3, 60)
    try:
        assert end_left_overs(home) == ["a"]
        assert not list(marked(LAUNCH))
    finally:
        for process in survivors:
            process.kill()
            process.wait()


def test_a_reused_pid_is_left_alone(home: Home) -> None:
    stranger = subprocess.Popen([sys.executable, "-c", SLEEP], start_new_session=True)
    try:
        record = ProcessRecord("a", stranger.pid, psutil.Process(stranger.pid).create_time() - 100)
        write_state(home, launch="", url="", ready=True, records=[record])
        assert end_left_overs(home) == []
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_copy_of_a_home_ends_no_process_of_the_original(home: Home, short_tmp: Path) -> None:
    original = subprocess.Popen(
        [sys.executable, "-c", SLEEP], env={**os.environ, LAUNCH_VARIABLE: LAUNCH}, start_new_session=True
    )
    try:
        write_state(home, launch=LAUNCH, url="", ready=True, records=[record_of("a", original.pid)])
        copy = Home(short_tmp / "copy")
        copy.prepare()
        (copy.root / "up.json").write_bytes((home.root / "up.json").read_bytes())
        assert end_left_overs(copy) == []
        assert original.poll() is None
    finally:
        original.kill()
        original.wait()


def test_a_second_supervisor_is_told_where_the_first_is(home: Home) -> None:
    with HomeLock(home):
        write_state(home, launch="x", url="http://127.0.0.1:1234", ready=True, records=[])
        with (
            pytest.raises(AlreadyRunning, match=f"already running at http://127.0.0.1:1234, pid {os.getpid()}"),
            HomeLock(home),
        ):
            pass
    with HomeLock(home):
        pass


def test_a_second_supervisor_is_told_no_dead_process_and_no_zero(home: Home) -> None:
    (home.root / "up.json").write_text(json.dumps({"pid": 99999999, "started": 1.0, "url": "http://127.0.0.1:1"}))
    with HomeLock(home):  # as while it starts: what lies there is of the one before
        with pytest.raises(AlreadyRunning) as met, HomeLock(home):
            pass
        assert str(met.value) == f"already starting or stopping, pid {os.getpid()}; stop it with: kill {os.getpid()}"
        (home.run / "up.lock").write_bytes(b"99999999 1.0".ljust(64))
        with pytest.raises(AlreadyRunning) as met, HomeLock(home):
            pass
        assert "kill" not in str(met.value)
        assert "99999999" not in str(met.value)
        assert f"lslocks | grep {home.run / 'up.lock'}" in str(met.value)


def test_a_full_disk_keeps_state_from_being_written_and_nothing_else(home: Home, monkeypatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    publisher = Publisher(home, LAUNCH, supervisor_log(home))
    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        publisher.publish("http://here", [], {})
        publisher.publish("http://here", [], {})
        publisher.publish_environment({"DATABASE_URL": "here"})
        assert not (home.root / "up.json").exists()
        assert not (home.run / "environment.json").exists()
    publisher.publish("http://here", [], {})
    publisher.publish_environment({"DATABASE_URL": "here"})
    assert json.loads((home.root / "up.json").read_text())["url"] == "http://here"
    assert json.loads((home.run / "environment.json").read_text()) == {"DATABASE_URL": "here"}
    assert (home.logs / "supervisor.log").read_text().count("up.json not written") == 1


def test_addresses_that_changed_on_a_full_disk_are_told_once_there_is_space(home: Home, monkeypatch) -> None:
    """A server comes back at another port while nothing can be written."""
    started = Up(Options(ROOT, home.root, "127.0.0.1", 0, "box"), lambda line: None)
    started.publisher = Publisher(home, LAUNCH, supervisor_log(home))
    started.environment = {**dict.fromkeys(PUBLISHED, "old"), "DATABASE_URL": "postgresql://old"}
    started._publish()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    back = iter([True])
    started.upkeep = SimpleNamespace(round=lambda now: next(back, False))
    started.postgres, started.valkey = SimpleNamespace(url="postgresql://new"), SimpleNamespace(url="redis://new")
    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        patched.setattr(Home, "secrets", lambda self: dict.fromkeys(SECRET_NAMES, "s"))
        started._unfailing_round()
    started._unfailing_round()
    assert json.loads((home.run / "environment.json").read_text())["DATABASE_URL"] == "postgresql://new"


def test_other_commands_join_a_running_installation(home: Home) -> None:
    publish_environment(home, {"DATABASE_URL": "postgresql://here/x"})
    write_state(home, launch="x", url="", ready=True, records=[])
    environment: dict[str, str] = {}
    assert adopt(home, environment)
    assert environment == {"DATABASE_URL": "postgresql://here/x"}
    given = {"DATABASE_URL": "postgresql://mine/y"}
    assert not adopt(home, given)
    assert given == {"DATABASE_URL": "postgresql://mine/y"}


def test_nobody_joins_a_dead_installation(home: Home) -> None:
    publish_environment(home, {"DATABASE_URL": "postgresql://here/x"})
    (home.root / "up.json").write_text(json.dumps({"pid": 99999999, "started": 1.0}))
    environment: dict[str, str] = {}
    assert not adopt(home, environment)
    assert environment == {}
