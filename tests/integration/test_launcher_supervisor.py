"""The supervisor with small processes of our own: restart, back-off, stop order, and the death of the supervisor."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from flexmarl.launcher.children import FIRST_WAIT_S, ChildState, ProcessLife, ProcessSpec
from flexmarl.launcher.heartbeats import SILENT_S, WATCHED_S, Beat, HeartbeatObservation, HeartbeatWatchdog, parse
from flexmarl.launcher.home import Home
from flexmarl.launcher.processes import wait_until
from flexmarl.launcher.publishing import Publisher, supervisor_log
from flexmarl.launcher.rotation import rotate
from flexmarl.launcher.state import (
    LAUNCH_VARIABLE,
    marked,
)
from flexmarl.launcher.supervisor import ROUND_S, Signals, StopRequested, Supervisor
from tests.support.ended import ended
from tests.support.forms import form
from tests.support.system import ROOT

pytestmark = pytest.mark.slow

LAUNCH = f"test-{os.getpid()}"
SLEEP = "import time; time.sleep(600)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
)
WITH_CHILD = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
WITH_DETACHED = (
    "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'],"
    " start_new_session=True); time.sleep(600)"
)


def spec(name: str, code: str, stage: int = 0, stop_s: float = 2.0) -> ProcessSpec:
    return ProcessSpec(name, (sys.executable, "-c", code), stage, stop_s)


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
    assert supervisor.children[0].state is ChildState.RUNNING


def test_the_supervisor_sleeps_no_longer_than_until_the_next_start(make: object) -> None:
    supervisor = make(spec("a", SLEEP))
    assert supervisor.rest_s() == ROUND_S
    os.kill(supervisor.children[0].record.pid, signal.SIGKILL)
    assert wait_until(lambda: supervisor.round() or supervisor.children[0].state is ChildState.WAITING, 60)
    assert supervisor.rest_s() <= FIRST_WAIT_S < ROUND_S


def test_back_off_doubles_and_is_forgotten_after_a_long_life(home: Home) -> None:
    child = ProcessLife(spec("a", "raise SystemExit(1)"), home)
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
    assert wait_until(lambda: len(psutil.Process(child.record.pid).children()) == 1, 60)
    grandchild = psutil.Process(child.record.pid).children()[0]
    os.kill(child.record.pid, signal.SIGKILL)
    wait_until(lambda: child.observe(time.monotonic()) is not None, 60)
    assert wait_until(lambda: ended(grandchild), 60)


def test_stages_stop_in_order_and_the_stubborn_is_killed(make: object, home: Home) -> None:
    supervisor = make(
        spec("late", SLEEP, stage=2), spec("stubborn", STUBBORN, stage=1, stop_s=0.5), spec("first", SLEEP)
    )
    assert wait_until(lambda: "up" in (home.logs / "stubborn.log").read_text(), 60)
    began = time.monotonic()
    supervisor.stop()
    assert time.monotonic() - began < 30.0
    assert all(child.process.poll() is not None for child in supervisor.children)
    lines = [json.loads(line) for line in (home.logs / "supervisor.log").read_text().splitlines()]
    assert [line["process"] for line in lines if line["event"] == "killed"] == ["stubborn"]


def test_stop_finds_processes_that_left_their_group(make: object) -> None:
    supervisor = make(spec("a", WITH_DETACHED))
    pid = supervisor.children[0].record.pid
    assert wait_until(lambda: len(psutil.Process(pid).children()) == 1, 60)
    detached = psutil.Process(pid).children()[0]
    supervisor.stop()
    assert wait_until(lambda: ended(detached), 60)


def beats_on(loop: str) -> str:
    """Code of a process that beats, and whose loop does what `loop` says."""
    return f"""
import os, sys, threading, time
sys.path[:0] = {[str(ROOT / "platform")]!r}
from flexmarl.store.control.heartbeat import Heartbeat
heartbeat = Heartbeat("test", descriptor=int(os.environ["FLEXMARL_HEARTBEAT_FD"]))
heartbeat.start()
turned = heartbeat.watch("loop", 3.0)
turned()
print("up", flush=True)
{loop}
"""


STEADY = "while True: turned(); time.sleep(0.1)"
GREEDY = "time.sleep(1.5)\nwhile True: turned(); sum(range(1_000_000_000)); time.sleep(0.7)"
"""Beats, then holds the interpreter for many seconds at a time: no other thread of the process runs in between."""
STUCK = "threading.Event().wait()"


def beating(name: str, code: str) -> ProcessSpec:
    return ProcessSpec(name, (sys.executable, "-c", code), 0, 2.0, beats=True)


def hung(home: Home) -> list[str]:
    lines = [json.loads(line) for line in (home.logs / "supervisor.log").read_text().splitlines()]
    return [f"{line['process']}: {line['reason']}" for line in lines if line["event"] == "hung"]


def test_a_stopped_process_is_replaced_within_its_bound(make: object, home: Home) -> None:
    supervisor = make(beating("a", beats_on(STEADY)))
    assert wait_until(lambda: "up" in (home.logs / "a.log").read_text(), 60)
    assert not wait_until(supervisor.round, 2.0)
    first = supervisor.children[0].record
    os.kill(first.pid, signal.SIGSTOP)
    began = time.monotonic()
    assert wait_until(lambda: supervisor.round() and supervisor.children[0].record != first, 3 * SILENT_S)
    assert SILENT_S - 1 < time.monotonic() - began < SILENT_S + 6
    assert [text.partition(" for")[0] for text in hung(home)] == ["a: no heartbeat and no processor time"]


def test_a_process_whose_loop_stands_still_is_replaced(make: object, home: Home) -> None:
    supervisor = make(beating("a", beats_on(STUCK)))
    first = supervisor.children[0].record
    assert wait_until(lambda: supervisor.round() and supervisor.children[0].record != first, 60)
    assert [text.partition(" for")[0] for text in hung(home)] == ["a: its loop has not moved"]


SLOW_S = form(short=2.0, full=3.0) * SILENT_S


@pytest.mark.parametrize("niceness", [19, pytest.param(0, marks=pytest.mark.full)])
def test_a_slow_process_is_left_alone(make: object, home: Home, niceness: int) -> None:
    supervisor = make(beating("a", f"import os; os.nice({niceness})" + beats_on(GREEDY)))
    first = supervisor.children[0].record
    wait_until(lambda: supervisor.round() and False, SLOW_S)
    assert supervisor.children[0].record == first
    assert hung(home) == []


def test_a_supervisor_that_stood_still_blames_nobody(home: Home) -> None:
    watch = HeartbeatWatchdog()
    idle = HeartbeatObservation(0.0, None, busy=False)
    assert watch.judge(replace(idle, beat=Beat(0.0, 60.0, "loop"))) == ""
    assert watch.judge(replace(idle, at=3600.0)) == ""
    assert watch.judge(replace(idle, at=3600.0 + WATCHED_S)) == ""
    assert watch.judge(replace(idle, at=3600.0 + 2 * WATCHED_S)) != ""


def test_before_the_first_heartbeat_there_is_more_time(home: Home) -> None:
    watch = HeartbeatWatchdog()
    verdicts = [watch.judge(HeartbeatObservation(float(at), None, busy=False)) for at in range(62)]
    assert [bool(verdict) for verdict in verdicts[:60]] == [False] * 60
    assert verdicts[61]


def test_one_that_computes_and_never_beats_hangs_at_last() -> None:
    watch = HeartbeatWatchdog()
    watch.judge(HeartbeatObservation(0.0, Beat(0.0, 60.0, "loop"), busy=True))
    verdicts = [watch.judge(HeartbeatObservation(float(at), None, busy=True)) for at in range(1, 602)]
    assert [bool(verdict) for verdict in verdicts[:599]] == [False] * 599
    assert verdicts[-1]


def test_a_process_that_sends_no_heartbeat_is_only_watched_for_its_end(make: object, home: Home) -> None:
    supervisor = make(spec("a", SLEEP))
    assert all(supervisor.children[0].hangs(float(at)) == "" for at in range(1000))


@pytest.mark.parametrize(("said", "beat"), [
    (b"", None), (b"no numbers here\n", None), (b"1.5 60.0 event loop\n2.0 60.0 eve", Beat(1.5, 60.0, "event loop")),
    (b"oop\n2.5 60.0 event loop\n", Beat(2.5, 60.0, "event loop")),
])  # fmt: skip
def test_the_newest_whole_line_counts(said: bytes, beat: Beat | None) -> None:
    assert parse(said) == beat


def test_a_log_stays_below_its_size_while_its_writer_goes_on(home: Home) -> None:
    child = ProcessLife(spec("a", "import time\nfor n in range(10**6): print(n, flush=True); time.sleep(0.001)"), home)
    child.start(os.environ, 0.0)
    log, former = home.logs / "a.log", home.logs / "a.log.1"
    try:
        assert wait_until(lambda: log.exists() and log.stat().st_size > 400, 60)
        assert rotate(home.logs, 300) == ["a.log"]
        assert wait_until(lambda: log.stat().st_size > 0, 60), "its writer goes on"
        assert rotate(home.logs, 10**6) == [], "it is short enough"
    finally:
        child.kill()
        child.reap()
    lines = [*former.read_text().splitlines(), *log.read_text().splitlines()]
    assert lines[0] == "0"
    assert "\x00" not in log.read_text(), "it goes on at the beginning"


def test_children_die_with_a_killed_supervisor(home: Home) -> None:
    script = f"""
import os, signal
from pathlib import Path
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
    assert wait_until(lambda: ended(pid), 60)


def with_path() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2] / "platform")}


def test_a_process_that_ends_for_a_setting_is_not_started_again_and_says_why(make, home: Home) -> None:
    supervisor = make(spec("a", "import sys; print('A_SETTING is wrong; use 1', flush=True); sys.exit(78)"))
    assert wait_until(lambda: supervisor.round() or bool(supervisor.refused()), 60)
    pid = supervisor.children[0].record.pid
    for _ in range(5):
        supervisor.round()
        time.sleep(0.2)
    assert supervisor.children[0].record.pid == pid
    assert supervisor.refused() == {"a": "A_SETTING is wrong; use 1"}
    publisher = Publisher(home, LAUNCH, supervisor.log)
    publisher.publish("", supervisor.records(), supervisor.refused())
    assert json.loads((home.root / "up.json").read_text())["refused"] == supervisor.refused()


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


def test_a_stop_signal_that_comes_where_python_swallows_it_interrupts_all_the_same() -> None:
    script = """
import signal, time
from flexmarl.launcher.supervisor import Signals, StopRequested
class Hook:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)
with Signals() as signals:
    signals.interrupting = True
    began = time.monotonic()
    try:
        Hook()
        time.sleep(20)
    except StopRequested:
        signals.interrupting = False
        print("interrupted", time.monotonic() - began < 10)
    time.sleep(0.3)
"""
    done = subprocess.run([sys.executable, "-c", script], env=with_path(), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "interrupted True"


def test_a_stop_signal_interrupts_the_start_once() -> None:
    with Signals() as signals:
        signals.interrupting = True
        with pytest.raises(StopRequested):
            signal.raise_signal(signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        signals.sleep(0.2)
        assert signals.stop
