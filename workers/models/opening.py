"""The files of a model's folder: regular ones only, below the roots that this process was given, in bounded time.

Invariants: a folder is opened once, by `ModelRoots`, and its files by name in that descriptor, so nothing is read that
lies elsewhere: links are not followed, and what is no regular file (a pipe, a device) is refused without waiting for
it. What is read whole has a bound, and reading a folder has a deadline. No text names a path. A process that was given
no roots reads no folder, but those that this product made itself below its home.
"""

import errno
import json
import os
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from flexmarl.contracts.folder_roots import parts_below
from flexmarl.store.data.model_roots import FolderNotAllowed, FolderUnreadable, ModelRoots
from workers.models.errors import UnsupportedModel

CONFIG_BYTES = 4 * 2**20
"""Most bytes of a JSON file with settings."""
TOKENIZER_BYTES = 128 * 2**20
"""Most bytes of a tokenizer's file."""
LOAD_S = 300.0
"""Longest time in which a folder is read: a server that does not deliver must not hold a device for ever."""
_PIECE = 2**20
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass
class _Process:
    """What this process was given."""

    roots: ModelRoots
    made: Path | None = None
    python: str = sys.executable


_process = _Process(ModelRoots())


def allow(roots: ModelRoots, home: str = "", python: str = "") -> None:
    """Set what this process may read; called once, with what its host's settings say.

    `home` is FLEXMARL_HOME, where models are made; empty: none are. `python` is the interpreter that makes them, for a
    process whose own environment cannot.
    """
    _process.roots, _process.made, _process.python = (
        roots,
        Path(home, "models") if home else None,
        python or sys.executable,
    )


def making() -> tuple[Path, str]:
    """Return where models are made on this host, and by which interpreter. Raises UnsupportedModel."""
    if _process.made is None:
        raise UnsupportedModel("this process has no home in which a model could be made")
    return _process.made, _process.python


class ModelFolder:
    """An open folder. A context manager; whatever it refuses is an UnsupportedModel."""

    def __init__(self, path: str, load_s: float | None = None) -> None:
        try:
            self._descriptor = _roots_of(path).open(path)
        except (FolderNotAllowed, FolderUnreadable) as error:
            raise UnsupportedModel(str(error)) from error
        self._deadline = time.monotonic() + (LOAD_S if load_s is None else load_s)

    def __enter__(self) -> "ModelFolder":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def names(self) -> list[str]:
        """List the entries of the folder, in order."""
        return sorted(os.listdir(self._descriptor))

    def has(self, name: str) -> bool:
        """Tell whether there is an entry of a name, of whatever kind."""
        try:
            os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)
        except OSError:
            return False
        return True

    @contextmanager
    def file(self, name: str) -> Iterator[int]:
        """Open a regular file of the folder."""
        try:
            descriptor = os.open(name, _FILE, dir_fd=self._descriptor)
        except OSError as error:
            raise UnsupportedModel(_why(name, error)) from error
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise UnsupportedModel(f"{name} is not a regular file; put the file itself in the folder")
            yield descriptor
        finally:
            os.close(descriptor)

    def read(self, name: str, most: int = CONFIG_BYTES) -> bytes:
        """Return a file's bytes, of which there may be so many."""
        found = bytearray()
        with self.file(name) as descriptor:
            while piece := os.read(descriptor, _PIECE):
                found += piece
                if len(found) > most:
                    raise UnsupportedModel(f"{name} is longer than the limit of {most} bytes")
                self.in_time()
        return bytes(found)

    def json(self, name: str) -> dict[str, object]:
        """Return a JSON object that a file holds."""
        try:
            found = json.loads(self.read(name))
        except (ValueError, RecursionError) as error:
            if isinstance(error, UnsupportedModel):
                raise
            raise UnsupportedModel(f"{name} is not JSON: {type(error).__name__}: {error}") from error
        if not isinstance(found, dict):
            raise UnsupportedModel(f"{name} is not a JSON object")
        return found

    def in_time(self) -> None:
        """Raise UnsupportedModel once the time for reading the folder is over."""
        if time.monotonic() > self._deadline:
            raise UnsupportedModel("the folder could not be read in time; move it to a faster file system")


def _roots_of(path: str) -> ModelRoots:
    made = str(_process.made) if _process.made else ""
    return ModelRoots((made,)) if made and parts_below(path, made) else _process.roots


def place_of(descriptor: int) -> str:
    """Return a path of an open file, for libraries that take nothing else."""
    return f"/dev/fd/{descriptor}"


def _why(name: str, error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return f"the folder has no {name}"
    if error.errno == errno.ELOOP:
        return f"{name} is a link, and links are not followed; put the file itself in the folder"
    return f"{name} cannot be read on this host: {os.strerror(error.errno or 0)}"
