"""Keeps every log of a home below a size while its writers go on.

Invariants: a log and its predecessor `NAME.log.1` take at most twice `LIMIT_BYTES` and what a writer adds between two
looks. Writers open their logs to append, so a file that is cut to nothing under them goes on at its beginning. Nothing
here raises: a log that cannot be put aside, on a full disk for instance, is cut all the same, since that makes room.
"""

import contextlib
import shutil
from pathlib import Path

LIMIT_BYTES = 10_000_000
EVERY_S = 30.0


def rotate(folder: Path, limit_bytes: int = LIMIT_BYTES) -> list[str]:
    """Put the logs of a folder aside that are too long; return their names."""
    rotated = []
    with contextlib.suppress(OSError):
        for path in sorted(folder.glob("*.log")):
            if path.stat().st_size > limit_bytes:
                _cut(path)
                rotated.append(path.name)
    return rotated


def _cut(path: Path) -> None:
    former = path.with_suffix(".log.1")
    try:
        shutil.copy2(path, former)
    except OSError:
        former.unlink(missing_ok=True)
    with path.open("r+b") as file:
        file.truncate(0)
