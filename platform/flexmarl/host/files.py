"""Small files that a crash or a power loss leaves whole: the old content or the new one, never a part.

Invariants: `write_durably` is the only way such a file is written: beside its target, flushed, renamed, and the folder
flushed, in this order. After it returned, the content is on the disk under its name. A failed write leaves the old
file. A file that cannot be read as what it should be is told apart from one that is absent (`UnreadableFileError`).
"""

import contextlib
import errno
import json
import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

WRITING = ".writing"
"""How the name of a file ends that has not got its own yet."""
NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
_AT_ONCE = 512
"""Stretches of memory per system call; the kernel takes 1024."""


class UnreadableFileError(Exception):
    """A file is there and does not hold what it should: it was cut short, zeroed or edited."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path} {why}")
        self.path, self.why = path, why


def write_durably(path: Path, pieces: Sequence[memoryview | bytes], mode: int = 0o600) -> None:
    """Replace a file; it is on the disk under its name when this returns. Raises OSError and leaves the old one."""
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}{WRITING}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            drain(descriptor, pieces)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Force the names of a folder to the disk."""
    _flush(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def sync_tree(folder: Path) -> None:
    """Force every file below a folder to the disk, and the names in it and in each folder below."""
    for place, _, names in os.walk(folder):
        for path in (Path(place, name) for name in names):
            if not path.is_symlink():
                _flush(path, os.O_RDONLY | os.O_CLOEXEC)
        sync_folder(Path(place))


def drain(descriptor: int, pieces: Sequence[memoryview | bytes]) -> None:
    """Write pieces behind each other, all of them."""
    left = [memoryview(piece) for piece in pieces if len(piece)]
    while left:
        left = behind(left, os.writev(descriptor, left[:_AT_ONCE]))


def behind(pieces: list[memoryview], done: int) -> list[memoryview]:
    """Return what is left of pieces of which the first bytes are done."""
    for number, piece in enumerate(pieces):
        if done < len(piece):
            return [piece[done:], *pieces[number + 1 :]]
        done -= len(piece)
    return []


def write_json(path: Path, value: object) -> None:
    """Replace a private file by a JSON document, durably."""
    write_durably(path, [json.dumps(value, indent=1).encode()])


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in a file, None when there is no file. Raises UnreadableFileError for anything else."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnreadableFileError(path, f"cannot be read: {error.strerror}") from error
    if not content.strip(b"\0 \t\r\n"):
        raise UnreadableFileError(path, "holds zeros only" if content.strip() else "is empty")
    try:
        value = json.loads(content)
    except ValueError as error:
        raise UnreadableFileError(path, f"is damaged: {error}") from error
    if not isinstance(value, dict):
        raise UnreadableFileError(path, "is damaged: it is not a JSON object")
    return value


def _flush(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
