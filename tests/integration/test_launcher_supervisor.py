"""The supervisor with small processes of our own: restart, back-off, stop order, and the death of the supervisor."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from flexmarl.launcher.children import FIRST_WAIT_S, LOG_LIMIT_BYTES, Child, ProcessSpec, State
from flexmarl.launcher.errors import AlreadyRunning
from flexmarl.launcher.home import Home
from flexmarl.launcher.processes import wait_until
from flexmarl.launcher.state import (
    LAUNCH_VARIABLE,
    HomeLock,
    Record,
    adopt,
    end_left_overs,
    marked,
    publish_environment,
    record_of,
    write_state,
)
from flexmarl.launcher.supervisor import ROUND_S, Signals, StopAsked, Supervisor
from flexmarl.launcher.up import supervisor_log
from tests.support.ended import ended

LAUNCH = f"test-{os.getpid()}"
SLEEP = "import time; time.sleep(60)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
WITH_CHILD = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
WITH_DETACHED = (
    "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'],"
    " start_new_session=True); time.sleep(60)"
)


def spec(name: str, code: str, stage: int = 0, stop_s: float = 2.0, health_url: str = "") -> ProcessSpec:
    return ProcessSpec(name, (sys.executable, "-c", code), stage, stop_s, health_url)


@pytest.fixture
def home(short_tmp: Path) -> Home:
    home = Home(short_tmp / "home")
    home.prepare()
    return home


@pytest.fixture
def make(home: Home) -> Iterator[object]:
    made: list[Supervisor] = []

    def build(*specs: ProcessSpec) -> Supervisor:
        supervisor = Supervisor(home, LAUNCH, list(specs), supervisor_log(home))
        supervisor.environment = {**os.environ, LAUNCH_VARIABLE: LAUNCH}
        made.append(supervisor)
        supervisor.round()
        return supervisor

    yield build
    for supervisor in made:
        supervisor.stop()
    assert not list(marked(LAUNCH))


def test_an_ended_process_is_started_again_after_its_back_off(make: object) -> None:
    supervisor = make(spec("a", SLEEP))
    first = supervisor.children[0].record
    os.kill(first.pid, signal.SIGKILL)
    assert wait_until(lambda: supervisor.round() and supervisor.children[0].record != first, FIRST_WAIT_S + 3)
    assert supervisor.children[0].state is State.RUNNING


def test_the_supervisor_sleeps_no_longer_than_until_the_next_start(make: object) -> None:
    supervisor = make(spec("a", SLEEP))
    assert supervisor.rest_s() == ROUND_S
    os.kill(supervisor.children[0].record.pid, signal.SIGKILL)
    assert wait_until(lambda: supervisor.round() or supervisor.children[0].state is State.WAITING, 3)
    assert supervisor.rest_s() <= FIRST_WAIT_S < ROUND_S


def test_back_off_doubles_and_is_forgotten_after_a_long_life(home: Home) -> None:
    child = Child(spec("a", "raise SystemExit(1)"), home)
    waits = []
    now = 0.0
    for _ in range(3):
        child.start(os.environ, now)
        child.process.wait()
        assert child.observe(now) == 1
        assert not child.should_start(now)
        assert child.should_start(now + child.wait_s)
        waits.append(child.wait_s)
    child.start(os.environ, 0.0)
    child.process.wait()
    child.observe(1000.0)
    assert waits == [FIRST_WAIT_S, 2 * FIRST_WAIT_S, 4 * FIRST_WAIT_S]
    assert child.wait_s == FIRST_WAIT_S


def test_what_a_dead_process_started_dies_with_it(make: object) -> None:
    supervisor = make(spec("a", WITH_CHILD))
    child = supervisor.children[0]
    assert wait_until(lambda: len(psutil.Process(child.record.pid).children()) == 1, 5)
    grandchild = psutil.Process(child.record.pid).children()[0]
    os.kill(child.record.pid, signal.SIGKILL)
    wait_until(lambda: child.observe(time.monotonic()) is not None, 3)
    assert wait_until(lambda: ended(grandchild), 3)


def test_stages_stop_in_order_and_the_stubborn_is_killed(make: object, home: Home) -> None:
    supervisor = make(
        spec("late", SLEEP, stage=2), spec("stubborn", STUBBORN, stage=1, stop_s=0.5), spec("first", SLEEP)
    )
    assert wait_until(lambda: "up" in (home.logs / "stubborn.log").read_text(), 5)
    began = time.monotonic()
    supervisor.stop()
    assert time.monotonic() - began < 3.0
    assert all(child.process.poll() is not None for child in supervisor.children)
    lines = [json.loads(line) for line in (home.logs / "supervisor.log").read_text().splitlines()]
    assert [line["process"] for line in lines if line["event"] == "killed"] == ["stubborn"]


def test_stop_finds_processes_that_left_their_group(make: object) -> None:
    supervisor = make(spec("a", WITH_DETACHED))
    pid = supervisor.children[0].record.pid
    assert wait_until(lambda: len(psutil.Process(pid).children()) == 1, 5)
    detached = psutil.Process(pid).children()[0]
    supervisor.stop()
    assert wait_until(lambda: ended(detached), 2)


def test_a_process_that_stops_answering_is_replaced(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = iter([True, False, False, False, False])
    monkeypatch.setattr("flexmarl.launcher.children.answers", lambda url: next(answer))
    child = Child(spec("a", SLEEP, health_url="http://127.0.0.1:1/healthz"), home)
    child.start(os.environ, 0.0)
    try:
        verdicts = [child.check_health(now) for now in (5.0, 10.0, 20.0, 30.0, 40.0, 50.0)]
    finally:
        child.kill()
        child.reap()
    assert verdicts == [True, True, True, True, True, False]


def test_a_process_that_never_answered_is_given_time(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flexmarl.launcher.children.answers", lambda url: False)
    child = Child(spec("a", SLEEP, health_url="http://127.0.0.1:1/healthz"), home)
    child.start(os.environ, 0.0)
    try:
        assert all(child.check_health(now * 10.0) for now in range(1, 10))
    finally:
        child.kill()
        child.reap()


def test_a_large_log_is_put_aside_at_the_next_start(home: Home) -> None:
    with (home.logs / "a.log").open("wb") as file:
        file.truncate(LOG_LIMIT_BYTES + 1)
    child = Child(spec("a", "print('hello')"), home)
    child.start(os.environ, 0.0)
    child.process.wait()
    assert (home.logs / "a.log").read_text() == "hello\n"
    assert (home.logs / "a.log.1").exists()


def test_children_die_with_a_killed_supervisor(home: Home) -> None:
    script = f"""
import os, signal
from pathlib import Path
from flexmarl.launcher.home import Home
from flexmarl.launcher.processes import spawn
import sys
child = spawn([sys.executable, "-c", {SLEEP!r}], cwd=Path("/"), env=dict(os.environ), output=2)
print(child.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    out = subprocess.run(
        [sys.executable, "-c", script], env=with_path(), stdout=subprocess.PIPE, check=False, timeout=30
    )
    pid = int(out.stdout)
    assert wait_until(lambda: ended(pid), 5)


def with_path() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2] / "platform")}


def test_the_next_start_ends_what_survived_the_supervisor(home: Home) -> None:
    environment = {**os.environ, LAUNCH_VARIABLE: LAUNCH}
    survivors = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, start_new_session=True)
        for code in (SLEEP, WITH_DETACHED)
    ]
    write_state(home, launch=LAUNCH, url="", ready=True, records=[record_of("a", survivors[0].pid)])
    assert wait_until(lambda: len(list(marked(LAUNCH))) == 3, 5)
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
        record = Record("a", stranger.pid, psutil.Process(stranger.pid).create_time() - 100)
        write_state(home, launch="", url="", ready=True, records=[record])
        assert end_left_overs(home) == []
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


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


@pytest.mark.parametrize("ignored", [True, False])
def test_hang_up_stops_unless_it_was_told_to_be_ignored(ignored: bool) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        with Signals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            signals.sleep(0.2)
            assert signals.stop is not ignored
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_stop_signal_interrupts_the_start_once() -> None:
    with Signals() as signals:
        signals.interrupting = True
        with pytest.raises(StopAsked):
            signal.raise_signal(signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        signals.sleep(0.2)
        assert signals.stop
