"""One life of a child process: start, ready line, end, and the proof that it is dead.

Invariants: a `Child` reports exactly one end. Its process group is killed as a whole. A process is identified by number
and start time, so that a reused number is never mistaken for it. Children get none of the parent's credentials.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec
import psutil
import structlog

from flexmarl.host.output import open_log
from workers.adopted import LEADER, PARENT
from workers.child import ChildConfig, ChildFailed, ReadyLine
from workers.errors import HostingError
from workers.forking import ForkedChild, ForkServerThread, NoForkServer

log = structlog.get_logger(__name__)

CREDENTIALS = ("DATABASE_URL", "REDIS_URL", "FLEXMARL_CLUSTER_KEY", "FLEXMARL_SECRET_KEY", "FLEXMARL_NODE_TOKEN")
OF_BUILDS = ("PATH", "LANG", "LC_ALL", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "XDG_CONFIG_DIRS")
OF_BUILDS_BEGINNINGS = ("PIP_", "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
TERM_S = 2.0
"""How long a child may take to leave after it was asked to."""
KILL_S = 30.0
"""How long the kernel may take to end what was killed: on a busy machine it gives gigabytes back in seconds."""
ABORT_S = 1.0
"""How long a child that hangs may take to write its stacks to its log."""
_SAME_START_S = 0.05
_REPLACED_S = 1.0
"""Longer than the system takes to replace a process by another program."""


@dataclass(frozen=True, slots=True)
class Ready:
    port: int
    rendezvous: int = 0


@dataclass(frozen=True, slots=True)
class Failed:
    """The child says that none of its lives can work. Its end follows."""

    reason: str


@dataclass(frozen=True, slots=True)
class Ended:
    code: int


Report = Callable[[Ready | Failed | Ended], None]


class Child:
    """A started process. Its own thread calls `report`: with Ready or Failed at most once, with Ended exactly once."""

    def __init__(
        self,
        module: str,
        config: ChildConfig,
        environment: Mapping[str, str],
        log_file: Path | None,
        python: str = sys.executable,
        forks: ForkServerThread | None = None,
    ) -> None:
        """`forks`: starts it, if it can and the child needs no other interpreter."""
        self.incarnation = config.incarnation
        self.log_file = log_file
        self._log = open_log(log_file) if log_file else None
        """Closed when the child ended."""
        own = child_environment(environment)
        forked = _forked(forks, module, own, self._log) if forks is not None and python == sys.executable else None
        self._process = forked or _started(python, module, own, self._log)
        self.pid = self._process.pid
        with contextlib.suppress(BrokenPipeError):  # it died at once; the watcher reports that
            stdin = self._stdin()
            stdin.write(msgspec.json.encode(config) + b"\n")
            stdin.flush()

    def started(self) -> float:
        """Return the process's start time as the operating system knows it, 0 when it is gone already."""
        return _start_time(self.pid)

    def watch(self, report: Report) -> None:
        """Report readiness and end from a thread of its own."""
        threading.Thread(target=self._watch, args=(report,), name=f"child-{self.incarnation}", daemon=True).start()

    def stop(self, grace_s: float = TERM_S) -> None:
        """Ask the child to leave, then kill its whole group. Returns when it is dead."""
        with contextlib.suppress(BrokenPipeError):
            self._stdin().close()
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            log.warning("child did not leave, killing it", pid=self.pid, incarnation=self.incarnation)
        self._signal(signal.SIGKILL)  # whatever it started goes with it
        self._process.wait(KILL_S)

    def abort(self) -> None:
        """Kill a child that hangs; its stacks go to its log. Returns when it is dead."""
        self._signal(signal.SIGABRT)
        self._signal(signal.SIGCONT)  # one that was stopped wakes up to that signal and nothing else
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(ABORT_S)
        self.stop(0.0)

    def _watch(self, report: Report) -> None:
        stdout = self._process.stdout
        assert stdout is not None
        first = stdout.readline()
        said = _said(first)
        if said is None:
            text = first[:200].decode("utf-8", "replace")
            log.warning("child said no ready line", incarnation=self.incarnation, said=text)
        else:
            report(said)
        for _ in stdout:  # anything after the ready line is not part of the contract
            pass
        code = self._process.wait()
        self._signal(signal.SIGKILL)
        if self._log is not None:
            os.close(self._log)
        report(Ended(code))

    def _stdin(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


def _forked(
    forks: ForkServerThread, module: str, environment: Mapping[str, str], log_file: int | None
) -> ForkedChild | None:
    try:
        return forks.fork(module, environment, sys.stderr.fileno() if log_file is None else log_file)
    except NoForkServer as missing:
        log.warning("child starts as an ordinary process", reason=str(missing))
        return None


def _started(
    python: str, module: str, environment: Mapping[str, str], log_file: int | None
) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [python, "-m", "workers.adopted", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log_file,
        env=environment,
        start_new_session=True,
    )


def _said(line: bytes) -> Ready | Failed | None:
    """Understand a child's line; None when it is neither of the two."""
    with contextlib.suppress(msgspec.DecodeError):
        ready = msgspec.json.decode(line, type=ReadyLine)
        return Ready(ready.port, ready.rendezvous)
    with contextlib.suppress(msgspec.DecodeError):
        failed = msgspec.json.decode(line, type=ChildFailed)
        return Failed(f"{failed.code}: {failed.detail}; {failed.hint}")
    return None


def child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment without credentials, with the given additions."""
    kept = {name: value for name, value in os.environ.items() if name not in CREDENTIALS}
    return {**kept, **environment, PARENT: str(os.getpid())}


def build_environment() -> dict[str, str]:
    """Return what builds of packages may know of this process's environment: how the package index is reached."""
    return {
        name: value for name, value in os.environ.items() if name in OF_BUILDS or name.startswith(OF_BUILDS_BEGINNINGS)
    }


def prove_dead(pid: int | None, started: float) -> None:
    """Make sure that a former child's process group is gone, ranks that outlived it included.

    Raises HostingError when it cannot be killed.
    """
    if not pid or not started:
        return  # never started
    deadline, known = time.monotonic() + KILL_S, set[psutil.Process]()
    while known := {process for process in known | _left_of(pid, started) if _lives(process)}:
        for process in known:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        if time.monotonic() > deadline:
            raise HostingError(f"process {min(one.pid for one in known)} of a former child cannot be killed")
        time.sleep(0.02)


def _left_of(pid: int, started: float) -> set[psutil.Process]:
    """List what lives of a child's process group. Where its number belongs to another process by now, that is nothing:
    the system gives out no number that a group still has."""
    now = _start_time(pid)
    if now and abs(now - started) > _SAME_START_S:
        return set()
    psutil.process_iter.cache_clear()  # else a number may stand for a process that had it before, which cannot be ended
    return {one for one in psutil.process_iter() if (one.pid == pid and now) or _belongs(one, pid)}


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _belongs(process: psutil.Process, leader: int) -> bool:
    """Tell whether a process was started by a child."""
    try:
        return os.getpgid(process.pid) == leader and _environment(process).get(LEADER) == str(leader)
    except (psutil.Error, ProcessLookupError, PermissionError):
        return False


def _environment(process: psutil.Process) -> dict[str, str]:
    """Read a process's environment. One that is just being replaced by another program shows none for a moment."""
    deadline = time.monotonic() + _REPLACED_S
    found: dict[str, str] = process.environ()
    while not found and time.monotonic() < deadline:
        time.sleep(0.01)
        found = process.environ()
    return found


def _start_time(pid: int) -> float:
    try:
        process = psutil.Process(pid)
        return 0.0 if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.NoSuchProcess:
        return 0.0
