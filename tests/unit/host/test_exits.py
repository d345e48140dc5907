"""How processes end, and what one that failed said last."""

import os
import subprocess
import sys

import pytest

from flexmarl.host.exits import last_words


@pytest.mark.parametrize(
    ("program", "last"),
    [
        ("raise SystemExit('no such file')", "no such file"),
        ("import warnings; warnings.warn('slow', RuntimeWarning); raise ValueError('seven')", "ValueError: seven"),
        (
            "import sys, warnings; print('out of disk', file=sys.stderr); warnings.warn('slow'); sys.exit(3)",
            "out of disk",
        ),
        ("import sys, warnings; warnings.warn('slow', RuntimeWarning); sys.exit(4)", "exit status 4"),
        ("raise SystemExit(5)", "exit status 5"),
    ],
)
def test_it_is_its_error_and_no_warning(program: str, last: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert last_words(done.stderr, done.returncode) == last
    assert last_words(done.stderr.decode(), done.returncode) == last


def test_who_leaves_has_said_all_and_waits_for_nothing() -> None:
    program = """
import atexit, sys, threading, time
from flexmarl.host.exits import leave

atexit.register(print, "taken apart")
threading.Thread(target=time.sleep, args=[600]).start()
sys.stdout.write("said")
sys.stderr.write("and told")
leave()
"""
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=buffered, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "said", "and told")


@pytest.mark.parametrize(
    ("main", "status", "said"),
    [
        ("pass", 0, ""),
        ("raise SystemExit(78)", 78, ""),
        ("raise SystemExit(None)", 0, ""),
        ("raise SystemExit('no place')", 1, "no place"),
        ("raise KeyboardInterrupt", 0, ""),
        ("raise ValueError('seven')", 1, "ValueError: seven"),
    ],
)
def test_what_a_process_comes_to_waits_for_no_thread(main: str, status: int, said: str) -> None:
    program = f"""
import threading, time
from flexmarl.host.exits import carry_out

def main():
    threading.Thread(target=time.sleep, args=[600]).start()
    {main}

carry_out(main)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr.strip().rpartition("\n")[2]) == (status, said)
