"""What is wrong with this machine itself: a disk without space, a process that a wrong setting keeps from running.

Reads the disk alone, so that it can be said while the database is away. Invariants: nothing here raises and nothing
names a folder, since everybody who may see a page or `/readyz` may read it.
"""

import threading
import time
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

from flexmarl.host import disk
from flexmarl.host.files import UnreadableFileError, read_json

KEEP_S = 10.0
"""So old may be what is said: adding up folders costs more than a page may."""
FULL, LOW, REFUSED = "disk_full", "disk_low", "process_refused"


@dataclass(frozen=True, slots=True)
class Notice:
    """One thing that somebody has to do something about."""

    code: str
    title: str
    text: str
    bad: bool
    """Work stands still because of it."""


class _Memory:
    """The notices of one home, looked for now and then."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at = float("-inf")
        self._found: list[Notice] = []
        self._home = Path()

    def notices(self, home: Path) -> list[Notice]:
        """Return what was found, looking again when that is old."""
        with self._lock:
            if home != self._home or time.monotonic() - self._at > KEEP_S:
                self._home, self._found = home, look(home)
                self._at = time.monotonic()
            return self._found


_MEMORY = _Memory()


def notices() -> list[Notice]:
    """Return what is wrong with this machine, at most some seconds old."""
    return _MEMORY.notices(settings.HOME)


def look(home: Path) -> list[Notice]:
    """Find out what is wrong now."""
    return [*_of_disk(home), *_of_processes(home)]


def _of_disk(home: Path) -> list[Notice]:
    try:
        level, text = disk.space(home).level, disk.describe(home)
    except OSError:
        return []
    if level is disk.DiskLevel.FULL:
        return [Notice(FULL, "The disk is full", text, bad=True)]
    return [Notice(LOW, "The disk is nearly full", text, bad=False)] if level is disk.DiskLevel.LOW else []


def _of_processes(home: Path) -> list[Notice]:
    try:
        refused = (read_json(home / "up.json") or {}).get("refused", {})
    except UnreadableFileError:
        return []
    if not isinstance(refused, dict):
        return []
    advice = "Correct the setting, then stop `manage.py up` and start it again."
    return [
        Notice(REFUSED, f"The process {name} is not running", f"{reason}. {advice}", bad=True)
        for name, reason in refused.items()
    ]
