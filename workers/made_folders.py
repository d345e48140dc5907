"""Folders that this host makes, of models and builds: each once, whoever wants it, whole or not at all; and gone when
unused.

Invariants: who wants a folder says so under its lock, and whoever removes folders looks under the same lock when it was
wanted last: a folder goes only when nobody wanted it for long. A folder that goes is renamed first, so that what its
name finds is whole.
"""

import fcntl
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from flexmarl.host.files import sync_folder, sync_tree

_HIDDEN = re.compile(r"\.(?P<name>.+)-new-[0-9a-f]{32}")


def make_once(place: Path, write: Callable[[Path], None]) -> None:
    """Have a folder written, unless it is there. Who wants it meanwhile, in whatever process, waits. Raises what
    `write` raises, and OSError."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with _locked(place):
        if _touched(place):
            return
        _clear_left(place)
        temporary = _hidden(place)
        try:
            write(temporary)
            sync_tree(temporary)
            temporary.rename(place)
            sync_folder(place.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def wanted(place: Path) -> bool:
    """Tell whether a folder is there; from now on it counts as wanted."""
    if not place.is_dir():
        return False
    with _locked(place):
        return _touched(place)


def remove_unused(root: Path, kept: Collection[str], unused_s: float) -> list[str]:
    """Remove folders that nobody wanted for so long, but those that are named; return the names of those that went.

    What killed makers and removers left goes as well. A folder that somebody is about is left for another time.
    """
    horizon = time.time() - unused_s
    found = set()
    for path in root.iterdir() if root.is_dir() else ():
        if hidden := _HIDDEN.fullmatch(path.name):
            found.add(hidden["name"])
        elif path.is_dir() and path.stat().st_mtime <= horizon:
            found.add(path.name)
    return [name for name in sorted(found) if _removed(root / name, name in kept, horizon)]


def _removed(place: Path, kept: bool, horizon: float) -> bool:
    try:
        with _locked(place, fcntl.LOCK_NB):
            _clear_left(place)
            if kept or not place.is_dir() or place.stat().st_mtime > horizon:
                return False
            place.rename(_hidden(place))
            _clear_left(place)
    except BlockingIOError:
        return False
    return True


def _touched(place: Path) -> bool:
    try:
        os.utime(place)
    except FileNotFoundError:
        return False
    return True


def _clear_left(place: Path) -> None:
    for left in place.parent.glob(f".{place.name}-new-*"):
        shutil.rmtree(left, ignore_errors=True)


def _hidden(place: Path) -> Path:
    return place.with_name(f".{place.name}-new-{uuid.uuid4().hex}")


@contextmanager
def _locked(place: Path, how: int = 0) -> Iterator[None]:
    with place.with_name(f".{place.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | how)  # the kernel frees it when this process ends, however it does
        yield
