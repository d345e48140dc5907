"""Output that never fails its process: what the disk does not take is dropped and counted.

A process writes lines to a file that somebody else opened for it (a log of `up`, a terminal, a pipe). A full disk, a
closed terminal or a broken pipe is no reason to end: `Unfailing` swallows the error, and once lines go through again
the first one says how many are missing. Invariant: no method of it raises OSError. Lines are written whole, in one
system call each, so that processes that append to one file do not mix theirs.
"""

import io
import json
import os
import sys
import threading
from pathlib import Path


class Unfailing(io.TextIOBase):
    """A text stream on a descriptor. Safe for several threads."""

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._line = ""
        self._cut = False
        """The last line on the disk lacks its end."""
        self.dropped = 0
        """Lines that could not be written since the last one that could."""

    def write(self, text: str) -> int:
        """Take text; whole lines are written at once."""
        with self._lock:
            self._line += text
            if "\n" in self._line:
                whole, _, self._line = self._line.rpartition("\n")
                self._put(whole + "\n")
        return len(text)

    def flush(self) -> None:
        """Write what is no whole line yet."""
        with self._lock:
            if self._line:
                rest, self._line = self._line, ""
                self._put(rest)

    def writable(self) -> bool:
        """Say that it can be written to."""
        return True

    def fileno(self) -> int:
        """Return the descriptor, for whoever hands it on to a child process."""
        return self._descriptor

    def isatty(self) -> bool:
        """Say whether a person looks on."""
        try:
            return os.isatty(self._descriptor)
        except OSError:
            return False

    def _put(self, text: str) -> None:
        before = ("\n" if self._cut else "") + _missing(self.dropped)
        content = (before + text).encode(self.encoding, self.errors)
        written = 0
        try:
            while written < len(content):
                written += os.write(self._descriptor, content[written:])
        except OSError:
            self._cut = written > 0 or self._cut
            self.dropped += max(1, text.count("\n"))
        else:
            self._cut, self.dropped = False, 0


def _missing(lines: int) -> str:
    if not lines:
        return ""
    event = f"{lines} lines could not be written here"
    return json.dumps({"event": event, "level": "warning"}) + "\n"


def protect() -> None:
    """Make standard output and standard error of this process unfailing. Called once, before logging is set up."""
    if not isinstance(sys.stderr, Unfailing):
        sys.stdout.flush()
        sys.stdout, sys.stderr = Unfailing(1), Unfailing(2)


def open_log(path: Path) -> int:
    """Return a descriptor that appends to a log, the null device's where that cannot be; the caller closes it."""
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
