"""How much room the disk of the data folder has, and who takes it. Reads only; no function raises for a full disk."""

import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

FULL_BYTES = 48 * 2**20
"""Three files of the database's write-ahead log: with less it cannot go on."""
LOW_BYTES = 512 * 2**20
LOW_SHARE = 0.02
"""A disk is low on space with less than both: a small disk may be meant to be small."""
FEW_NODES = 100
MOST_NAMED = 4
ADVICE = "Free some space, or retire samples and delete checkpoints of ended runs"
MOST_ENTRIES = 200_000
"""Directory entries that are looked at, so that a page does not wait for a folder of millions of files."""
PARTS = {
    "postgres": "database",
    "payloads": "sample payloads",
    "state": "weights and training states",
    "checkpoints": "checkpoints",
    "packages": "builds of packages",
    "models": "models made of packages",
    "uploads": "uploads of models",
    "logs": "logs",
}
"""Folders of a data folder, and what is in them."""


class DiskLevel(StrEnum):
    OK = "ok"
    LOW = "low"
    FULL = "full"


_WORDS = {
    DiskLevel.FULL: ("is full", "runs wait and continue automatically once there is space"),
    DiskLevel.LOW: ("is nearly full", "without space, runs wait"),
}


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """Room on the disk of a folder, for processes without privileges."""

    free: int
    total: int
    nodes: int
    """Files that can still be made."""

    @property
    def level(self) -> DiskLevel:
        """Say how bad it is."""
        if self.free < FULL_BYTES or self.nodes == 0:
            return DiskLevel.FULL
        little = self.free < min(LOW_BYTES, max(2 * FULL_BYTES, int(LOW_SHARE * self.total)))
        return DiskLevel.LOW if little or self.nodes < FEW_NODES else DiskLevel.OK


@dataclass(frozen=True, slots=True)
class Share:
    """What one part of the data folder takes."""

    name: str
    bytes: int


def space(folder: Path) -> DiskSpace:
    """Measure the disk of a folder, or of the nearest one above it that exists."""
    place = next(each for each in (folder, *folder.parents) if each.exists())
    found = os.statvfs(place)
    nodes = found.f_favail if found.f_files else FEW_NODES  # some file systems count no nodes
    return DiskSpace(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize, nodes)


def shares(home: Path) -> list[Share]:
    """Return what takes the space below a data folder, the largest first. What cannot be read is left out."""
    found: dict[str, int] = {}
    left = MOST_ENTRIES
    for entry in _entries(home):
        size, looked = _size(entry, left)
        left -= looked
        name = PARTS.get(entry.name, "other files")
        found[name] = found.get(name, 0) + size
    order = sorted(found.items(), key=lambda pair: -pair[1])
    return [Share(name, size) for name, size in order if size]


def _entries(folder: str | Path) -> list["os.DirEntry[str]"]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _size(entry: "os.DirEntry[str]", most: int) -> tuple[int, int]:
    """Return the bytes on disk of an entry and what is below it, and how many entries were looked at."""
    total, looked, waiting = 0, 0, [entry]
    while waiting and looked < most:
        one = waiting.pop()
        looked += 1
        try:
            total += one.stat(follow_symlinks=False).st_blocks * 512
            below = one.is_dir(follow_symlinks=False)
        except OSError:  # gone meanwhile
            continue
        if below:
            waiting += _entries(one.path)
    return total, looked


def in_words(size: float) -> str:
    """Say a number of bytes for people."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def describe(home: Path) -> str:
    """Say in one line what is full, who takes the space, and what to do; empty while there is enough."""
    found = space(home)
    if found.level is DiskLevel.OK:
        return ""
    word, then = _WORDS[found.level]
    room = f"{in_words(found.free)} of {in_words(found.total)} free" if found.nodes else "no more files can be created"
    held = ", ".join(f"{share.name} {in_words(share.bytes)}" for share in shares(home)[:MOST_NAMED])
    takers = f" The data folder takes: {held}." if held else ""
    return f"The disk of the data folder {word}: {room}.{takers} {ADVICE}; {then}."
