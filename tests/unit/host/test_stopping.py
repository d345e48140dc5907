"""A process stops when it is told to, whichever thread the signal reaches and whatever its main thread holds."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
BEGINS = """
import os, signal, threading, time
from flexmarl.host.stopping import when_told_to_stop
stopping = threading.Event()
when_told_to_stop(stopping.set)
"""
ANOTHER_THREAD = """
other = threading.Thread(target=time.sleep, args=(60,), daemon=True)
other.start()
threading.Timer(0.5, lambda: signal.pthread_kill(other.ident, signal.{name})).start()
stopping.wait()
print("stopped", flush=True)
"""
HELD = """
with stopping._cond:  # as while it begins to wait
    os.kill(os.getpid(), signal.{name})
    time.sleep(0.5)
stopping.wait()
print("stopped", flush=True)
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
@pytest.mark.parametrize("program", [ANOTHER_THREAD, HELD], ids=["another-thread", "held"])
def test_a_signal_stops(name: str, program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BEGINS + program.format(name=name)],
        env={"PYTHONPATH": str(ROOT / "platform")},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "stopped\n"), done.stderr


def test_other_signals_do_not() -> None:
    program = BEGINS + "signal.signal(signal.SIGUSR1, lambda *_: None)\nos.kill(os.getpid(), signal.SIGUSR1)\n"
    program += "print(stopping.wait(0.5), flush=True)\nos.kill(os.getpid(), signal.SIGUSR1)\n"
    program += f"os.kill(os.getpid(), {int(signal.SIGTERM)})\nprint(stopping.wait(30))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(ROOT / "platform")},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout.split() == ["False", "True"], done.stderr
