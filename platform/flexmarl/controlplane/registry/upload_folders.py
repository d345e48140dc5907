"""Bytes of uploads: folders below `HOME/uploads`, one for each upload, named by its id.

Invariant: a file has the bytes from its first one up to its size, never with a gap: a piece is written where the file
ends, under its lock.
"""

import fcntl
import os
import shutil
from pathlib import Path
from uuid import UUID

from django.conf import settings


class WrongOffset(Exception):
    """A piece does not begin where its file ends; `received` is where that is."""

    def __init__(self, received: int) -> None:
        super().__init__(received)
        self.received = received


def folder_of(upload: UUID) -> Path:
    """Return the folder of an upload's files."""
    return Path(settings.HOME) / "uploads" / str(upload)


def received(upload: UUID, name: str) -> int:
    """Return how many bytes of a file have arrived."""
    try:
        return (folder_of(upload) / name).stat().st_size
    except FileNotFoundError:
        return 0


def free_bytes() -> int:
    """Return what is free on the disk that uploads lie on."""
    return shutil.disk_usage(settings.HOME).free


def append(upload: UUID, name: str, offset: int, piece: bytes) -> int:
    """Write a piece at the end of a file and return its new size. Raises WrongOffset or OSError."""
    folder = folder_of(upload)
    folder.mkdir(parents=True, mode=0o700, exist_ok=True)
    how = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(folder / name, how, 0o600)
    with open(descriptor, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        size = os.fstat(descriptor).st_size
        if size != offset:
            raise WrongOffset(size)
        try:
            file.write(piece)
            file.flush()
        except OSError:  # a full disk: the next piece begins where this one did
            os.truncate(descriptor, offset)
            raise
        return offset + len(piece)


def remove(upload: UUID) -> None:
    """Remove an upload's files."""
    shutil.rmtree(folder_of(upload), ignore_errors=True)


def present() -> list[UUID]:
    """List the uploads of which files lie here."""
    root = Path(settings.HOME) / "uploads"
    return [UUID(folder.name) for folder in root.iterdir()] if root.is_dir() else []
