"""Whether a child process hangs, judged by the supervisor from the child's heartbeat and its use of the machine.

A child that beats says which of its loops is slowest and the bound beyond which that loop counts as stuck. A child that
does not beat hangs only when it does nothing either: no processor time, no thread that waits for processor or disk, for
`SILENT_S`. So whatever is slow, starved, swapped out or held in a debugger is left alone, for as long as work can last.

Invariants: only time in which the supervisor itself looked counts, so a machine that slept or a supervisor that stood
still blames nobody. A heartbeat is a line in a pipe: neither disk nor database can hide it.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

VARIABLE = "FLEXMARL_HEARTBEAT_FD"
"""Tells a child the descriptor of its end of the pipe."""
SILENT_S = 6.0
START_S = 60.0
"""The same before the first heartbeat: a start may wait for a database that does not answer yet."""
MUTE_S = 600.0
"""A child that uses the processor and never beats holds the interpreter for ever: it hangs after so long."""
WATCHED_S = 2.0
"""Between two looks no more time than this was watched."""
BUSY_STATES = frozenset("RDt")
"""Runnable, waiting for a disk, held by a debugger."""


@dataclass(frozen=True, slots=True)
class Beat:
    """What a child said last: its slowest loop."""

    still_s: float
    stuck_s: float
    loop: str


@dataclass(frozen=True, slots=True)
class HeartbeatObservation:
    """What was seen of a child at one moment."""

    at: float
    beat: Beat | None
    """None when nothing came since the last look."""
    busy: bool
    """It used the processor since the last look, or waits for processor or disk."""


class HeartbeatWatchdog:
    """Judges the looks at one life. Pure."""

    def __init__(self) -> None:
        self._last: float | None = None
        self._heard = False
        self._idle_s = self._mute_s = 0.0

    def judge(self, look: HeartbeatObservation) -> str:
        """Say why the child hangs; empty while it does not."""
        passed = 0.0 if self._last is None else min(look.at - self._last, WATCHED_S)
        self._last = look.at
        if look.beat is not None:
            self._heard, self._idle_s, self._mute_s = True, 0.0, 0.0
            if look.beat.still_s >= look.beat.stuck_s:
                return f"its {look.beat.loop} has not moved for {look.beat.still_s:.0f} s"
            return ""
        self._mute_s += passed
        self._idle_s = 0.0 if look.busy else self._idle_s + passed
        if self._idle_s >= (SILENT_S if self._heard else START_S):
            return f"no heartbeat and no processor time for {self._idle_s:.0f} s"
        return f"no heartbeat for {self._mute_s:.0f} s" if self._mute_s >= MUTE_S else ""


class Usage:
    """Whether one process does something, from one look to the next."""

    def __init__(self) -> None:
        self._cpu_s = -1.0

    def busy(self, pid: int) -> bool:
        """Tell whether it used the processor since the last look, or waits for processor, disk or a debugger."""
        try:
            used = psutil.Process(pid).cpu_times()
        except psutil.Error:
            return True  # it ended: that is seen elsewhere
        before, self._cpu_s = self._cpu_s, used.user + used.system
        return self._cpu_s > before or not BUSY_STATES.isdisjoint(thread_states(pid))


class Ear:
    """The supervisor's side of one life: the pipe, and what the process uses."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._watch, self._usage = HeartbeatWatchdog(), Usage()

    @property
    def descriptor(self) -> int:
        """The child's end; it is inherited by the child alone."""
        return self._writer

    def started(self) -> None:
        """Close the child's end on this side."""
        os.close(self._writer)
        self._writer = -1

    def judge(self, pid: int, now: float) -> str:
        """Look at the child; say why it hangs, empty while it does not."""
        return self._watch.judge(HeartbeatObservation(now, self._read(), self._usage.busy(pid)))

    def close(self) -> None:
        """Give the pipe back."""
        for descriptor in (self._reader, self._writer):
            if descriptor >= 0:
                os.close(descriptor)
        self._reader = self._writer = -1

    def _read(self) -> Beat | None:
        said = b""
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self._reader, 65536):
                said = (said + piece)[-4096:]
        return parse(said)


def parse(said: bytes) -> Beat | None:
    """Read the newest whole line: `<seconds still> <bound> <loop>`. None when there is none."""
    whole = said.rpartition(b"\n")[0].rpartition(b"\n")[2].decode(errors="replace")
    try:
        still, bound, loop = whole.split(" ", 2)
        return Beat(float(still), float(bound), loop)
    except ValueError:
        return None


def thread_states(pid: int) -> Iterator[str]:
    """Yield the state letters of a process's threads; none where the system does not tell."""
    for status in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError, IndexError):
            yield status.read_text().rpartition(")")[2].split()[0]
