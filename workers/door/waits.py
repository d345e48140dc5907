"""The answers that threads of this process wait for, and that none waits for long once the process is to end.

Invariants: a connection whose other end has gone without a word keeps its reader as long as its time limit says, and
nothing but the end of the connection wakes it. So the end of the process ends those that are not answered soon. What
was asked may have been done or not, as ever when the control plane does not answer.
"""

import contextlib
import socket
import threading
from collections.abc import Iterator

ANSWER_S = 70.0
"""Longer than any statement of an operation may take there."""
PATIENCE_S = 1.0
"""How long an answer may take of which the end of the process waits."""


class Waits:
    """Those of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._ending = False

    @contextlib.contextmanager
    def on(self, waited: socket.socket) -> Iterator[None]:
        """Note that an answer is waited for, and for how long at most."""
        with self._lock:
            self._sockets.add(waited)
            waited.settimeout(PATIENCE_S if self._ending else ANSWER_S)
        try:
            yield
        finally:
            with self._lock:
                self._sockets.discard(waited)

    def end(self) -> None:
        """Let nobody wait for long any more: the process is about to end."""
        with self._lock:
            if self._ending:
                return
            self._ending = True
            timer = threading.Timer(PATIENCE_S, self._break_off, [self._sockets.copy()])
        timer.daemon = True
        timer.start()

    def _break_off(self, waited: set[socket.socket]) -> None:
        with self._lock:
            for one in waited & self._sockets:
                with contextlib.suppress(OSError):  # it has just broken by itself
                    socket.socket.shutdown(one, socket.SHUT_RDWR)  # that of TLS would let others write in the clear
