"""Folders of models below the roots that an operator allowed, opened without following a link.

Invariants: every component of the path is opened by itself and is a folder, never a link, so the folder that is
returned is the one that was named; none of them is a closed folder (this installation's own data), whatever root
contains it. What lies outside is refused in one text, before anything of it is looked at.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from flexmarl.contracts.folder_roots import NOT_ALLOWED, SETTING, check_root, legal, parts_below

_COMPONENT = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""O_PATH, where there is one: a folder on the way need not be readable."""


class FolderNotAllowed(ValueError):
    """The folder lies outside the allowed roots, or in this installation's own data."""


class FolderUnreadable(ValueError):
    """The folder lies below an allowed root and cannot be opened on this host."""


@dataclass(frozen=True, slots=True)
class ModelRoots:
    roots: tuple[str, ...] = ()
    """Absolute folders; none: no folder is allowed."""
    closed: tuple[str, ...] = ()
    """Folders that are never read as a model, nor anything below them."""

    def open(self, path: str) -> int:
        """Return a descriptor of a folder. Raises FolderNotAllowed or FolderUnreadable, neither naming a path."""
        for root in self.roots:
            own = os.path.realpath(root)  # the operator's own links are followed, once and before all else
            for given in (root, own):
                parts = parts_below(path, given)
                if parts is not None:
                    return self._walk(_names(own), parts)
        raise self._refusal()

    def _walk(self, root: Sequence[str], below: Sequence[str]) -> int:
        closed = {_identity(os.stat(folder)) for folder in self.closed if os.path.isdir(folder)}
        here = os.open("/", _COMPONENT)
        try:
            for name in (*root, *below):
                here = _stepped(here, name)
                if _identity(os.fstat(here)) in closed:
                    raise self._refusal()
            return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=here)
        except OSError as error:
            text = "the folder is not there, cannot be read, or is reached by a link, and links are not followed"
            raise FolderUnreadable(f"{text}; name one that every node can read") from error
        finally:
            os.close(here)

    def _refusal(self) -> FolderNotAllowed:
        return FolderNotAllowed(f"{NOT_ALLOWED} {legal(self.roots)}")


def read_roots(text: str) -> tuple[str, ...]:
    """Read the setting: absolute folders, separated by commas. Raises ValueError that names it."""
    try:
        return tuple(check_root(root) for part in text.split(",") if (root := part.strip()))
    except ValueError as error:
        raise ValueError(f"{SETTING}: {error}") from None


def _stepped(here: int, name: str) -> int:
    """Open a folder of a folder, and let the outer one go."""
    there = os.open(name, _COMPONENT, dir_fd=here)
    os.close(here)
    return there


def _identity(stat: os.stat_result) -> tuple[int, int]:
    return stat.st_dev, stat.st_ino


def _names(path: str) -> tuple[str, ...]:
    return tuple(name for name in path.split("/") if name)
