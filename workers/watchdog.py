"""Whether a child still works, judged from outside by its answers, its beats and the processor time it uses.

A child that ended says so by itself; this is about one that lives and does nothing. It hangs when it neither answers
nor uses the processor, probe after probe (it was stopped, or all its threads wait for each other), or when work is
open and no piece of it was done for `stuck_s`, whatever it answers and computes. Long steps are not that: a child
beats after each piece of its work, and one that computes without answering still uses the processor.

Invariants: only time in which the child was watched counts, so a host that stood still itself blames nobody; a verdict
is spoken once per life, by the thread that watches it; it carries the life's name, so that it never hits the next one.
"""

import contextlib
import http.client
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

import msgspec
import psutil

from workers.child import ChildHealth

PROBE_S = 1.0
ANSWER_S = 1.0
SILENT_PROBES = 5
"""So many probes in a row without an answer and without processor time: about ten seconds."""
QUIET_CPU_S = 0.005
"""Less than the clock of the operating system counts in."""
IDLE_SHARE = 0.05
"""Of one processor: to answer probes takes less, to compute takes more."""
WATCHED_S = 2 * (PROBE_S + ANSWER_S)
"""Between two looks no more time than this was watched."""


@dataclass(frozen=True, slots=True)
class Hangs:
    """A life that does nothing any more."""

    incarnation: str
    reason: str


@dataclass(frozen=True, slots=True)
class ChildObservation:
    """Health and processor time of a child at one moment."""

    at: float
    health: ChildHealth | None
    """None when it did not answer in time."""
    cpu_s: float
    """Processor time of all its threads since it began."""


class Watchdog:
    """Decides from successive observations of one incarnation whether it hangs. Pure."""

    def __init__(self, stuck_s: float) -> None:
        self._stuck_s = stuck_s
        self._last: ChildObservation | None = None
        self._beats = -1
        self._silent = 0
        self._without_s = 0.0
        self._without_cpu_s = 0.0

    def judge(self, look: ChildObservation) -> str:
        """Say why the child counts as hanging; empty while it does not."""
        last, self._last = self._last, look
        if last is None:
            return ""
        self._silent = self._silent + 1 if _idle(last, look) and look.health is None else 0
        if look.health is not None and (not look.health.working or look.health.beats != self._beats):
            self._beats, self._without_s, self._without_cpu_s = look.health.beats, 0.0, 0.0
            return ""
        self._without_s += min(look.at - last.at, WATCHED_S)
        self._without_cpu_s += look.cpu_s - last.cpu_s
        if self._silent >= SILENT_PROBES:
            return f"it hung: {SILENT_PROBES} probes without an answer and without processor time"
        if self._without_s >= self._stuck_s:
            computed = self._without_cpu_s >= IDLE_SHARE * self._without_s
            how = "computing throughout" if computed else "waiting throughout"
            return f"it hung: no progress for {self._stuck_s:.0f} s, {how}"
        return ""


def _idle(last: ChildObservation, look: ChildObservation) -> bool:
    return look.cpu_s - last.cpu_s < QUIET_CPU_S


class WatchdogThread:
    """Looks at one child every second from a thread of its own, until it hangs or the watch ends."""

    def __init__(
        self, incarnation: str, pid: int, url: str, secret: str, stuck_s: float, report: Callable[[Hangs], None],
        ranks: bool = False,
    ) -> None:  # fmt: skip
        """`ranks`: the child has processes of its own that compute with it."""
        self._incarnation, self._url, self._secret, self._report = incarnation, url, secret, report
        self._pid, self._ranks, self._watchdog = pid, ranks, Watchdog(stuck_s)
        self.held = 0
        """Bytes of memory it held at the last look."""
        self._over = threading.Event()
        threading.Thread(target=self._watch, name=f"watchdog-{incarnation}", daemon=True).start()

    def stop(self) -> None:
        """End the watch; a verdict that is being spoken may still come."""
        self._over.set()

    def _watch(self) -> None:
        try:
            process = psutil.Process(self._pid)
            while not self._over.wait(PROBE_S):
                health = ask(self._url, self._secret)
                used, self.held = together(process, *(process.children(recursive=True) if self._ranks else ()))
                reason = self._watchdog.judge(ChildObservation(time.monotonic(), health, used))
                if reason:
                    self._report(Hangs(self._incarnation, reason))
                    return
        except psutil.NoSuchProcess:
            return  # it ended: whoever started it is told so


def together(child: psutil.Process, *ranks: psutil.Process) -> tuple[float, int]:
    """Return processor time and memory of a child and its ranks. Raises NoSuchProcess when the child is gone."""
    used, held = child.cpu_times(), child.memory_info().rss
    seconds = used.user + used.system
    for rank in ranks:
        with contextlib.suppress(psutil.NoSuchProcess):
            used = rank.cpu_times()
            seconds, held = seconds + used.user + used.system, held + rank.memory_info().rss
    return seconds, held


def ask(url: str, secret: str) -> ChildHealth | None:
    """Ask a child for its health; None when it does not answer in time or answers something else."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=ANSWER_S)
    try:
        connection.request("GET", "/health", headers={"Authorization": f"Bearer {secret}"})
        answer = connection.getresponse()
        return msgspec.json.decode(answer.read(), type=ChildHealth) if answer.status == 200 else None
    except (OSError, http.client.HTTPException, msgspec.DecodeError):
        return None
    finally:
        connection.close()
