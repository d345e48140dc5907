"""Hints to open pages, at most a few per second and topic, from a thread of their own.

A hint names a topic and its newest sequence; pages re-read. Nothing here can stop or slow the driver's loop.
"""

import threading
import time
from collections.abc import Callable
from typing import Protocol

import structlog

log = structlog.get_logger(__name__)

EVERY_S = 0.3
"""Between two hints of one topic; the first goes out at once. Pages choose how often they re-read."""


class Announcer(Protocol):
    """Hears that runs changed."""

    def changed(self, run_id: int, seq: int, *, moved: bool = False) -> None:
        """Note a run's newest sequence; `moved` when its status is another."""


class Silence:
    """An announcer for drivers without pages."""

    def changed(self, run_id: int, seq: int, *, moved: bool = False) -> None:
        """Say nothing."""


class AnnouncingThread(threading.Thread):
    """Keeps the newest sequence per run and tells it on."""

    def __init__(self, announce: Callable[[int, int, bool], None]) -> None:
        super().__init__(name="announcer", daemon=True)
        self._announce = announce
        self._newest: dict[int, tuple[int, bool]] = {}
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._stopping = False

    def changed(self, run_id: int, seq: int, *, moved: bool = False) -> None:
        """Note a run's newest sequence; `moved` when its status is another."""
        with self._lock:
            before = self._newest.get(run_id)
            self._newest[run_id] = (seq, moved or (before is not None and before[1]))
        self._changed.set()

    def run(self) -> None:
        """Tell what is new until stopped."""
        while not self._stopping:
            self._changed.wait()
            self._changed.clear()
            self._flush()
            time.sleep(EVERY_S)

    def stop(self) -> None:
        """End the thread after a last round."""
        self._stopping = True
        self._changed.set()
        self.join(0.5)

    def _flush(self) -> None:
        with self._lock:
            newest, self._newest = self._newest, {}
        for run_id, (seq, moved) in newest.items():
            try:
                self._announce(run_id, seq, moved)
            except Exception as error:  # a hint: whatever a page layer raises, training goes on
                log.warning("hint_not_sent", run_id=run_id, error=str(error))
