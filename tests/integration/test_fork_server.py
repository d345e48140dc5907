"""Children are forked from a process that has imported torch: like any other child, seconds sooner."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from flexmarl.launcher.processes import wait_until
from tests.support.ended import ended
from workers.child import ChildConfig
from workers.children import Child, Ended, Failed, Ready, child_environment
from workers.forking import ForkedChild, ForkServerThread
from workers.programs import IMPORTED, confined

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent / "children"
OWNER = """
import sys, time
from workers.forking import ForkServerThread
from tests.integration.test_fork_server import environment, started

forks = ForkServerThread([], environment())
forks.start()
print(started(forks, STUBBORN="1")[0].pid, flush=True)
time.sleep(600)
"""


def environment(**more: str) -> dict[str, str]:
    paths = os.pathsep.join([str(HERE), *filter(None, sys.path)])
    return child_environment({**confined(1), "PYTHONPATH": paths, **more})


@pytest.fixture(scope="module")
def forks() -> ForkServerThread:
    thread = ForkServerThread(IMPORTED, environment(OF_THE_SERVER="1"))
    thread.start()
    return thread


def started(forks: ForkServerThread, stderr: int = 2, **more: str) -> tuple[ForkedChild, dict[str, Any]]:
    assert forks.settled(120)
    process = forks.fork("told", environment(**more), stderr)
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())


def server_of(process: ForkedChild) -> psutil.Process:
    parent = psutil.Process(process.pid).parent()
    assert parent is not None
    return parent


def leave(process: ForkedChild, line: bytes = b"") -> int:
    assert process.stdin is not None
    process.stdin.write(line)
    process.stdin.close()
    return process.wait(60)


def test_a_fork_is_what_a_new_process_would_be(forks: ForkServerThread, tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        process, said = started(forks, log.fileno(), OWN="yes")
    assert said["has torch"]
    assert said["argv"][1:] == []
    assert said["threads"] == 1
    assert said["environment"]["OWN"] == "yes"
    assert said["environment"]["FLEXMARL_LEADER_PID"] == str(process.pid)
    assert "OF_THE_SERVER" not in said["environment"]
    assert said["session"] == said["pid"] == process.pid
    assert said["open"] == [0, 1, 2], "nothing of its siblings"
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.05)
    assert leave(process, b"7\n") == 7
    assert (tmp_path / "log").read_text() == "to the log\n"


def test_siblings_share_nothing_that_keeps_one_alive(forks: ForkServerThread) -> None:
    first, _ = started(forks)
    second, said = started(forks)
    assert said["open"] == [0, 1, 2]
    assert leave(first) == 0, "its standard input ends though its sibling lives"
    os.kill(second.pid, signal.SIGTERM)
    assert second.wait(60) == -signal.SIGTERM


def test_a_killed_server_takes_its_children_along_and_another_follows(forks: ForkServerThread) -> None:
    process, _ = started(forks)
    former = server_of(process)
    former.kill()
    assert process.wait(60) == -signal.SIGKILL
    assert ended(process.pid)
    process, _ = started(forks)
    assert server_of(process).pid != former.pid
    assert leave(process) == 0


def test_a_killed_owner_takes_server_and_children_along(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER], stdout=subprocess.PIPE, env=environment(), text=True, cwd=tmp_path
    )
    assert owner.stdout is not None
    child = psutil.Process(int(owner.stdout.readline()))
    family = [child, *child.parents()[:1]]
    owner.kill()
    owner.wait()
    assert wait_until(lambda: all(map(ended, family)), 60)


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Iterator[ForkServerThread]:
    """A server that ends as it begins, each time."""
    monkeypatch.setattr("workers.forking.PAUSE_S", 0.01)
    thread = ForkServerThread([], {"PYTHONPATH": "/nowhere", "PYTHONHOME": "/nowhere"})
    thread.start()
    yield thread
    thread.join(60)
    assert not thread.is_alive(), "it gives up"


def test_where_no_server_can_run_a_child_starts_as_an_ordinary_process(
    broken: ForkServerThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert broken.settled(60)
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    config = ChildConfig("engine", 1, 1, 1, "e1", "cpu", 1, "127.0.0.1", "s", str(tmp_path), {})
    child = Child("told", config, {"PYTHONPATH": os.environ["PYTHONPATH"]}, tmp_path / "log", forks=broken)
    told: list[Ready | Failed | Ended] = []
    child.watch(told.append)
    assert wait_until(lambda: any(isinstance(one, Ended) for one in told), 60)
    assert told[-1] == Ended(1), "what it was sent is no status"
    assert "to the log" in (tmp_path / "log").read_text()
