"""What the thread that hosts a lease is told, and how a worker that shuts down tells all of them."""

import queue
import threading
from dataclasses import dataclass, field

from workers.children import Ended, Failed, Ready
from workers.watchdog import Hangs


@dataclass(frozen=True, slots=True)
class Stop:
    """The worker shuts down."""


Signal = Ready | Failed | Ended | Hangs | Stop


@dataclass
class Shutdown:
    """Tells every hosting thread of this process to let go."""

    requested: threading.Event = field(default_factory=threading.Event)
    _inboxes: "set[queue.SimpleQueue[Signal]]" = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def request(self) -> None:
        """Wake all hosts."""
        with self._lock:
            self.requested.set()
            for inbox in self._inboxes:
                inbox.put(Stop())

    def join(self, inbox: "queue.SimpleQueue[Signal]") -> None:
        """Add a host; one that comes too late is woken at once."""
        with self._lock:
            self._inboxes.add(inbox)
            if self.requested.is_set():
                inbox.put(Stop())

    def leave(self, inbox: "queue.SimpleQueue[Signal]") -> None:
        """Remove a host."""
        with self._lock:
            self._inboxes.discard(inbox)
