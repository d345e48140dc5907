"""What a supervisor leaves on disk for others: that it runs, where, and which processes are its own.

Invariants: one supervisor per home, by a lock the kernel frees at its death, so a stale file never blocks a start.
A process is recognised by pid and start time, or by the launch id in its environment; never by its name. `up.json`
holds no secret; the addresses with passwords are in `run/environment.json`, readable by the owner only.
"""

import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import psutil

from flexmarl.host.files import UnreadableFileError, read_json, write_json
from flexmarl.launcher.errors import AlreadyRunning
from flexmarl.launcher.home import Home
from flexmarl.launcher.processes import POLL_S, signal_group

LAUNCH_VARIABLE = "FLEXMARL_LAUNCH"
SAME_START_S = 0.1
HOLDER_BYTES = 64
"""Length of what the lock's file says, always the same: writing over it needs no space on a full disk."""
HOLDER_S = 2.0
"""The lock's holder has said who it is within this time."""
GRACE_S = 3.0
"""Left-over processes get this long after SIGTERM."""


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """One life of a process."""

    name: str
    pid: int
    started: float

    def live(self) -> psutil.Process | None:
        """Return the process when this very life still runs."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started) < SAME_START_S
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.NoSuchProcess:
            return None


def record_of(name: str, pid: int) -> ProcessRecord:
    """Describe a process that runs now."""
    try:
        return ProcessRecord(name, pid, psutil.Process(pid).create_time())
    except psutil.NoSuchProcess:
        return ProcessRecord(name, pid, 0.0)


class HomeLock:
    """Held by the supervisor for its whole life."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self._file = -1

    def __enter__(self) -> "HomeLock":
        self._file = os.open(self.home.run / "up.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = self._holder()
            os.close(self._file)
            state = read_state(self.home)
            url = str(state.get("url", "")) if holder and state.get("pid") == holder.pid else ""
            raise AlreadyRunning(url, holder.pid if holder else 0, str(self.home.run / "up.lock")) from None
        me = record_of("supervisor", os.getpid())
        with contextlib.suppress(OSError):  # a full disk: then a second start cannot say whom it met
            os.pwrite(self._file, f"{me.pid} {me.started!r}".ljust(HOLDER_BYTES).encode(), 0)
        return self

    def _holder(self) -> ProcessRecord | None:
        """Return the supervisor that holds the lock; None when its file names no live process of this machine."""
        deadline = time.monotonic() + HOLDER_S
        while True:
            with contextlib.suppress(ValueError, OSError):
                pid, started = os.pread(self._file, HOLDER_BYTES, 0).decode().split()
                holder = ProcessRecord("supervisor", int(pid), float(started))
                if holder.live() is not None:
                    return holder
            if time.monotonic() > deadline:
                return None
            time.sleep(POLL_S)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._file)


def read_state(home: Home) -> dict[str, Any]:
    """Return `up.json`, empty when there is none."""
    with contextlib.suppress(UnreadableFileError):  # a power loss while it ran: what it spoke of is gone, too
        return read_json(home.root / "up.json") or {}
    return {}


def write_state(
    home: Home,
    *,
    launch: str,
    url: str,
    ready: bool,
    records: list[ProcessRecord],
    refused: Mapping[str, str] | None = None,
) -> None:
    """Publish the supervisor's state. `refused`: processes that ended for a setting, each with its reason."""
    me = record_of("supervisor", os.getpid())
    processes = [{"name": r.name, "pid": r.pid, "started": r.started} for r in records]
    state = {
        "home": str(home.root),
        "pid": me.pid,
        "started": me.started,
        "launch": launch,
        "url": url,
        "ready": ready,
        "processes": processes,
        "refused": dict(refused or {}),
    }
    write_json(home.root / "up.json", state)


def clear_state(home: Home) -> None:
    """Remove what only a running supervisor leaves."""
    (home.root / "up.json").unlink(missing_ok=True)
    (home.run / "environment.json").unlink(missing_ok=True)


def publish_environment(home: Home, environment: Mapping[str, str]) -> None:
    """Leave the addresses of a running installation for other commands of the same owner."""
    write_json(home.run / "environment.json", dict(environment))


def adopt(home: Home, environment: MutableMapping[str, str]) -> bool:
    """Give a command the addresses of the running installation, where it has none of its own."""
    if environment.get("DATABASE_URL"):
        return False
    state = read_state(home)
    supervisor = ProcessRecord("supervisor", int(state.get("pid", 0)), float(state.get("started", 0.0)))
    if not state or supervisor.live() is None:
        return False
    try:
        published = read_json(home.run / "environment.json") or {}
    except UnreadableFileError:
        return False
    for name, value in published.items():
        environment.setdefault(name, value)
    return True


def marked(launch: str) -> Iterator[psutil.Process]:
    """Yield every other live process whose environment carries the launch id."""
    if not launch:
        return
    psutil.process_iter.cache_clear()  # else a number may stand for a process that had it before, which cannot be ended
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(LAUNCH_VARIABLE) == launch:
                yield process


def end_left_overs(home: Home) -> list[str]:
    """End what a killed supervisor left running; return the names. The caller holds the lock."""
    state = read_state(home)
    if state.get("home", str(home.root)) != str(home.root):
        return []  # a copy of another home, whose processes are not ours
    ended: list[str] = []
    for entry in state.get("processes", []):
        process = ProcessRecord(entry["name"], entry["pid"], entry["started"]).live()
        if process is not None:
            ended.append(entry["name"])
            signal_group(process.pid, signal.SIGTERM)
    rest = list(marked(str(state.get("launch", ""))))
    _, alive = psutil.wait_procs(rest, timeout=GRACE_S)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=1.0)
    return ended
