"""One supervised process: started, restarted with back-off, listened to for its heartbeat, stopped.

Invariant: a child is in exactly one state (`ChildState`), changed by `ProcessLife` alone. Back-off doubles from
FIRST_WAIT_S and is reset after a life of STABLE_S, so that a crash loop costs little and a single crash is repaired
at once.
"""

import contextlib
import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from flexmarl.host.exits import CONFIGURATION
from flexmarl.launcher import heartbeats
from flexmarl.launcher.heartbeats import Ear
from flexmarl.launcher.home import Home
from flexmarl.launcher.processes import signal_group, spawn
from flexmarl.launcher.state import ProcessRecord, record_of

FIRST_WAIT_S = 0.1
LONGEST_WAIT_S = 30.0
STABLE_S = 6.0
"""Longer than a broken configuration lets any process live: one that fails at its start keeps its back-off."""
ANSWER_S = 3.0


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """What to run and how to end it."""

    name: str
    args: tuple[str, ...]
    stage: int
    """Stop order: all of a lower stage end before the next begins."""
    stop_s: float
    """Time to end by itself after SIGTERM."""
    beats: bool = False
    """Whether it sends heartbeats: one that hangs is then killed and started anew."""


class ChildState(StrEnum):
    NEW = "new"
    RUNNING = "running"
    WAITING = "waiting"
    """Ended; the next start is at `due`."""
    REFUSED = "refused"
    """Ended because a setting is wrong: another start would end the same way."""
    STOPPED = "stopped"


class ProcessLife:
    """The life of one process spec."""

    def __init__(self, spec: ProcessSpec, home: Home) -> None:
        self.spec = spec
        self.home = home
        self.state = ChildState.NEW
        self.process: subprocess.Popen[bytes] | None = None
        self.record = ProcessRecord(spec.name, 0, 0.0)
        self.due = 0.0
        self.wait_s = 0.0
        self.started = 0.0
        self.refusal = ""
        """Which setting is wrong, of a process that was refused."""
        self.ear: Ear | None = None
        """Hears the heartbeat of this life; None for a process that sends none."""

    def start(self, environment: Mapping[str, str], now: float) -> None:
        """Start the process; its output goes to its own log."""
        log = self.home.open_log(self.spec.name)
        ear = self._listen()
        given = {heartbeats.VARIABLE: str(ear.descriptor)} if ear else {}
        try:
            # A supervisor that dies takes the database along: who would say good-bye to it only waits, up to minutes.
            self.process = spawn(
                self.spec.args,
                cwd=self.home.root,
                env={**environment, **given},
                output=log,
                death_signal=signal.SIGKILL,
                inherited=(ear.descriptor,) if ear else (),
            )
        finally:
            os.close(log)
        if ear:
            ear.started()
        self.record = record_of(self.spec.name, self.process.pid)
        self.state, self.started = ChildState.RUNNING, now

    def observe(self, now: float) -> int | None:
        """Notice the end of the process; return its exit code once and plan the next start."""
        if self.state is not ChildState.RUNNING or self.process is None:
            return None
        code = self.process.poll()
        if code is None:
            return None
        signal_group(self.process.pid, signal.SIGKILL)  # what it started dies with it
        if code == CONFIGURATION:
            self.state, self.refusal = ChildState.REFUSED, self.log_tail(1)
            return code
        stable = now - self.started >= STABLE_S
        self.wait_s = FIRST_WAIT_S if stable or not self.wait_s else min(self.wait_s * 2, LONGEST_WAIT_S)
        self.state, self.due = ChildState.WAITING, now + self.wait_s
        return code

    def should_start(self, now: float) -> bool:
        """Tell whether the back-off is over."""
        return self.state is ChildState.NEW or (self.state is ChildState.WAITING and now >= self.due)

    def hangs(self, now: float) -> str:
        """Say why the process has to be replaced; empty while it works, however slowly."""
        if self.state is not ChildState.RUNNING or self.ear is None:
            return ""
        return self.ear.judge(self.record.pid, now)

    def _listen(self) -> Ear | None:
        """Open the heartbeat of the next life and close that of the last one."""
        if self.ear is not None:
            self.ear.close()
        self.ear = Ear() if self.spec.beats else None
        return self.ear

    def kill(self) -> None:
        """End the process group at once; `observe` sees it."""
        if self.process is not None:
            signal_group(self.process.pid, signal.SIGKILL)

    def ask_to_stop(self) -> None:
        """Send SIGTERM to the process; it ends what it started."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
        self.state = ChildState.STOPPED

    def reap(self) -> None:
        """Kill what is left of the group and collect the exit code."""
        if self.process is not None:
            signal_group(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def log_tail(self, lines: int = 4) -> str:
        """Return the last lines of the log, for an error text."""
        path = self.home.logs / f"{self.spec.name}.log"
        with contextlib.suppress(OSError), path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 4000))
            return " | ".join(file.read().decode(errors="replace").strip().splitlines()[-lines:])
        return ""


def answers(url: str) -> bool:
    """Tell whether an address answers with success."""
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_S) as reply:
            return bool(200 <= reply.status < 300)
    except (urllib.error.URLError, OSError, ValueError):
        return False
