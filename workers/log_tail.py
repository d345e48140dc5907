"""Reads what a child writes to its log file and hands the lines on. A file, not a pipe: no reader can hold a child up.

Invariants: the child never waits for this; a line is handed on at most once; at most `PER_LOOK` bytes are read per
look, the rest of a flood is left out with a line that says so.
"""

import json
import threading
from collections.abc import Callable
from pathlib import Path

LOOK_S = 0.5
PER_LOOK = 256 * 1024
LAST_BYTES, LAST_CHARACTERS = 16 * 1024, 300
"""How much of a log is looked at for somebody's last words, and how much of them is told."""

Told = Callable[[dict[str, object], str], None]
"""Called with the fields of a line and its level."""


class LogTail:
    """Follows one file from where it ends now, until stopped."""

    def __init__(self, path: Path, tell: Told) -> None:
        self._path, self._tell = path, tell
        self._at = path.stat().st_size if path.exists() else 0
        self._rest = b""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"log-{path.stem}", daemon=True)

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def stop(self) -> None:
        """Read what is left and end, without waiting for it."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_S):
            self._look()
        self._look()

    def _look(self) -> None:
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, 2)
                skipped = max(0, size - self._at - PER_LOOK)
                if size < self._at:  # somebody emptied the file
                    self._at, skipped, self._rest = 0, 0, b""
                file.seek(self._at + skipped)
                read = file.read(PER_LOOK)
                self._at = file.tell()
        except OSError:
            return
        if skipped:
            self._rest = b""
            self._tell({"event": f"{skipped} bytes of its log were left out: more than can be followed"}, "warning")
        *lines, self._rest = (self._rest + read).split(b"\n")
        for line in lines:
            if line.strip():
                self._tell(*parsed(line))


def last_words(path: Path, start: int) -> str:
    """Return what was written last behind `start`, as one short line; nothing when there is nothing."""
    try:
        with path.open("rb") as file:
            file.seek(max(start, file.seek(0, 2) - LAST_BYTES))
            lines = [line for line in file.read().splitlines() if line.strip()]
    except OSError:
        return ""
    return str(parsed(lines[-1])[0].get("event", ""))[:LAST_CHARACTERS] if lines else ""


def parsed(line: bytes) -> tuple[dict[str, object], str]:
    """Return a line's fields and level; a line that is no JSON object is its own text, and counts as a warning."""
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    if isinstance(found, dict):
        return found, str(found.get("level", "info"))
    return {"event": line.decode("utf-8", "replace").rstrip()}, "warning"
