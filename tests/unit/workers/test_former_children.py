"""What a child left running ends before its device has another child; what is not its own is left alone."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from tests.support.ended import ended
from workers.adopted import LEADER
from workers.children import prove_dead

LEADS = f"""
import os, subprocess, sys
marked = {{**os.environ, "{LEADER}": str(os.getpid())}} if sys.argv[1] == "marked" else None
print(subprocess.Popen(["sleep", "60"], env=marked).pid, flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def family(mark: str) -> Iterator[tuple["subprocess.Popen[str]", float, psutil.Process]]:
    """Start a child that starts a rank; yields the child, when it began, and the rank."""
    command = [sys.executable, "-c", LEADS, mark]
    pipe = subprocess.PIPE
    child = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True)
    assert child.stdout is not None
    rank = psutil.Process(int(child.stdout.readline()))
    try:
        yield child, psutil.Process(child.pid).create_time(), rank
    finally:
        child.kill()
        child.wait()
        with contextlib.suppress(psutil.NoSuchProcess):
            rank.kill()


def test_a_child_that_lives_is_ended_with_its_ranks() -> None:
    with family("marked") as (child, began, rank):
        prove_dead(child.pid, began)
        assert child.wait(60) == -signal.SIGKILL
        assert ended(rank)


def test_a_rank_that_outlived_its_child_is_ended_even_one_that_stands_still() -> None:
    with family("marked") as (child, began, rank):
        rank.suspend()
        child.kill()
        child.wait()
        assert not ended(rank)
        prove_dead(child.pid, began)
        assert ended(rank)


def test_a_rank_whose_number_another_process_had_before_is_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with family("marked") as (child, began, rank):
        before = psutil.Process(rank.pid)
        monkeypatch.setattr(before, "_ident", (rank.pid, 1.0))
        monkeypatch.setitem(psutil._pmap, rank.pid, before)
        child.kill()
        child.wait()
        prove_dead(child.pid, began)
        assert ended(rank)


def test_a_rank_that_has_just_begun_its_program_is_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system shows no environment of it for a moment."""
    read, seen = psutil.Process.environ, []

    def empty_at_first(process: psutil.Process) -> dict[str, str]:
        seen.append(process.pid)
        return {} if seen.count(process.pid) <= 3 else read(process)

    with family("marked") as (child, began, rank):
        child.kill()
        child.wait()
        monkeypatch.setattr(psutil.Process, "environ", empty_at_first)
        prove_dead(child.pid, began)
        assert ended(rank)


@pytest.mark.parametrize("mark", ["marked", "strange"])
def test_processes_of_somebody_else_are_left_alone(mark: str) -> None:
    """The number belongs to a process that began at another time, or what is left bears no mark of a child."""
    with family(mark) as (child, began, rank):
        if mark == "strange":
            child.kill()
            child.wait()
        prove_dead(child.pid, began if mark == "strange" else began - 100.0)
        assert not ended(rank)
        os.kill(rank.pid, 0)
