"""How a process hears that it is to stop.

Python runs a signal's handler in the main thread, and the system may hand the signal to any other: a main thread that
sleeps on a lock is then not woken, and the signal does nothing until it wakes by itself. So a thread of its own reads
what the interpreter writes at once when a signal arrives. It also frees handlers from what they may not do: take a
lock that the main thread holds.
"""

import signal
import socket
import threading
from collections.abc import Callable

STOPS = (signal.SIGTERM, signal.SIGINT)
_written_to: list[socket.socket] = []
"""By the interpreter, as long as there is a process."""


def when_told_to_stop(act: Callable[[], object]) -> None:
    """Call `act` once, in a thread of its own, at the first SIGTERM or SIGINT. Only in the main thread, once."""
    heard, told = socket.socketpair()
    told.setblocking(False)
    _written_to.append(told)
    signal.set_wakeup_fd(told.fileno(), warn_on_full_buffer=False)
    for number in STOPS:
        signal.signal(number, lambda *_: None)

    def listen() -> None:
        while not set(heard.recv(64)) & set(STOPS):
            pass
        act()

    threading.Thread(target=listen, name="stop-signals", daemon=True).start()
