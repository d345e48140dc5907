"""Processes of tests, forked from one of this session that has imported what they import.

Engines and trainers, as a device worker forks them, and workers themselves: one that is started takes seconds of a
processor to import, and tests start many.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO

from workers.children import child_environment
from workers.forking import ForkedChild, ForkServerThread
from workers.programs import IMPORTED, QUIET, confined

ROOT = Path(__file__).resolve().parents[2]
PATHS = [str(ROOT), str(ROOT / "platform"), str(ROOT / "tests" / "integration" / "children")]
PATIENCE_S = 240.0
WORKERS = ("workers.run", "workers.node")
"""What the server of workers imports."""


class ForkedProcess:
    """A forked child that can be asked and signalled as `subprocess.Popen` can."""

    def __init__(self, child: ForkedChild) -> None:
        self._child = child
        self.pid = child.pid
        self.stdin: IO[bytes] | None = child.stdin
        self.stdout: IO[bytes] | None = child.stdout

    def poll(self) -> int | None:
        try:
            return self._child.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        return self._child.wait(timeout)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


Process = ForkedProcess | subprocess.Popen[bytes]


@cache
def _server(modules: tuple[str, ...]) -> ForkServerThread:
    """Return the server of this session that has imported these modules; it ends with this process."""
    environment = child_environment({**confined(1), **QUIET, "PYTHONPATH": os.pathsep.join(PATHS)})
    thread = ForkServerThread(modules, environment, answer_s=PATIENCE_S)
    thread.start()
    return thread


def started(
    module: str,
    environment: Mapping[str, str],
    stderr: int = 2,
    inside: Sequence[str] = (),
    imported: Sequence[str] = IMPORTED,
) -> Process:
    """Start a module as a child that finds `imported` there. `inside`: a command that starts it elsewhere, newly."""
    own = {**os.environ, **environment, "PYTHONPATH": os.pathsep.join(PATHS)}
    if inside or not hasattr(os, "pidfd_open"):
        command = [*inside, sys.executable, "-m", module]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=stderr, cwd=ROOT, env=own)
    server = _server(tuple(imported))
    assert server.settled(PATIENCE_S)
    return ForkedProcess(server.fork(module, own, stderr))
