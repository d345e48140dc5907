"""Keeps a set of processes running until it is told to stop.

A round is three verbs: observe what ended, decide what is due, start it. Between rounds the supervisor sleeps on a
descriptor that SIGCHLD, SIGTERM and SIGINT wake. Invariants: after `stop` returns no process of this launch is alive;
stopping takes at most the sum of the stages' `stop_s`.
"""

import select
import signal
import socket
import time
from collections.abc import Callable, Mapping
from types import FrameType

import structlog

from flexmarl.launcher.children import ChildState, ProcessLife, ProcessSpec
from flexmarl.launcher.home import Home
from flexmarl.launcher.processes import POLL_S
from flexmarl.launcher.state import ProcessRecord, marked

ROUND_S = 1.0
"""Longest sleep between rounds: back-off and heartbeats need no better clock."""
AGAIN_S = 0.05
Log = structlog.typing.FilteringBoundLogger
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class StopRequested(BaseException):
    """A stop signal came while something else was being waited for.

    Python swallows what is raised in a hook of `fork` or in `__del__`: whoever raises is told when it is gone.
    """

    def __init__(self, gone: Callable[[], None]) -> None:
        super().__init__()
        self._gone = gone

    def __del__(self) -> None:
        self._gone()


class Signals:
    """Turns stop signals into a flag and a wake-up, or into `StopRequested` while the start is in progress."""

    def __init__(self) -> None:
        self.stop = False
        self.interrupting = False
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._old: dict[int, object] = {}

    def __enter__(self) -> "Signals":
        self._old_wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        ignored = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()  # nohup
        for number in sorted(set(STOP_SIGNALS) - ignored):
            self._old[number] = signal.signal(number, self._on_stop)
        self._old[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._on_stop_again)
        self._old[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        return self

    def __exit__(self, *_: object) -> None:
        self.interrupting = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.set_wakeup_fd(self._old_wakeup)
        for number, handler in self._old.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._reader.close()
        self._writer.close()

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        first, self.stop = not self.stop, True
        if first and self.interrupting:
            raise StopRequested(self._gone)

    def _on_stop_again(self, number: int, frame: FrameType | None) -> None:
        if self.stop and self.interrupting:
            raise StopRequested(self._gone)

    def _gone(self) -> None:
        if self.interrupting:  # nobody caught it: the start goes on as if nothing had been asked
            signal.setitimer(signal.ITIMER_REAL, AGAIN_S)

    def sleep(self, seconds: float) -> None:
        """Sleep until the time is over or a signal comes."""
        ready, _, _ = select.select([self._reader], [], [], seconds)
        if ready:
            self._reader.recv(4096)


class Supervisor:
    """Runs the children of one launch."""

    def __init__(
        self, home: Home, launch: str, specs: list[ProcessSpec], log: structlog.typing.FilteringBoundLogger
    ) -> None:
        self.home = home
        self.launch = launch
        self.children = [ProcessLife(spec, home) for spec in specs]
        self.environment: dict[str, str] = {}
        self.log = log

    def records(self) -> list[ProcessRecord]:
        """Return the lives running now."""
        return [child.record for child in self.children if child.state is ChildState.RUNNING]

    def refused(self) -> dict[str, str]:
        """Return the processes that ended for a wrong setting, each with what it said."""
        return {child.spec.name: child.refusal for child in self.children if child.state is ChildState.REFUSED}

    def rest_s(self) -> float:
        """Return how long to sleep at most: until the next process is due, or a round."""
        now = time.monotonic()
        waits = [child.due - now for child in self.children if child.state is ChildState.WAITING]
        return max(0.0, min([ROUND_S, *waits]))

    def round(self) -> bool:
        """Observe, decide, start. Return whether a process was started."""
        now = time.monotonic()
        for child in self.children:
            self._observe(child, now)
        due = [child for child in self.children if child.should_start(now)]
        for child in due:
            child.start(self.environment, now)
            self.log.info("started", process=child.spec.name, pid=child.record.pid)
        return bool(due)

    def replace_all(self, environment: Mapping[str, str]) -> None:
        """Give every process a new environment: it is killed here and started by the next round."""
        self.environment = dict(environment)
        for child in self.children:
            child.kill()

    def _observe(self, child: ProcessLife, now: float) -> None:
        code = child.observe(now)
        if code is not None:
            self.log.warning("ended", process=child.spec.name, code=code, again_in_s=child.wait_s)
        elif reason := child.hangs(now):
            self.log.warning("hung", process=child.spec.name, pid=child.record.pid, reason=reason)
            child.kill()

    def stop(self) -> None:
        """End all children stage by stage, then whatever else carries this launch's id."""
        for stage in sorted({child.spec.stage for child in self.children}):
            members = [child for child in self.children if child.spec.stage == stage]
            self._stop_stage(members)
        for process in marked(self.launch):
            self.log.warning("left over", pid=process.pid)
            process.kill()

    def _stop_stage(self, members: list[ProcessLife]) -> None:
        for child in members:
            child.ask_to_stop()
        deadline = time.monotonic() + max(child.spec.stop_s for child in members)
        while time.monotonic() < deadline and any(c.process and c.process.poll() is None for c in members):
            time.sleep(POLL_S)
        for child in members:
            code = child.process.poll() if child.process else 0
            if code is None:
                self.log.warning("killed", process=child.spec.name, after_s=child.spec.stop_s)
            child.reap()


def wait_for(condition: Callable[[], bool], seconds: float, each_round: Callable[[], object]) -> bool:
    """Run rounds until the condition holds or the time is over."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        each_round()
        if condition():
            return True
        time.sleep(POLL_S * 3)
    return False
