"""A file system of its own, small enough to be filled: ext4 on a loop device, else in memory."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """Mount a small file system below a folder; skips the test where that is not allowed."""
    image, place = folder / "disk.img", folder / "disk"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(megabytes << 20)
    reasons = []
    try:
        made = _run("mkfs.ext4", "-q", "-F", "-m", "0", str(image))
        reasons.append(made or _run("mount", "-o", "loop", str(image), str(place)))
        if reasons[-1]:
            reasons.append(_run("mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=0711", "tmpfs", str(place)))
        if reasons[-1]:
            pytest.skip(f"no file system can be mounted here: {'; '.join(reasons)}")
        place.chmod(0o711)
        try:
            yield place
        finally:
            subprocess.run(["umount", "--lazy", str(place)], check=True)
    finally:
        image.unlink()


def fill(disk: Path, left: int = 0) -> Path:
    """Take what is free on a disk, but for so many bytes; return the file that takes it."""
    filler = disk / "filler"
    piece = 1 << 20
    with filler.open("ab") as file:
        while piece:
            state = os.statvfs(disk)
            if state.f_bavail * state.f_frsize - left < piece:
                piece //= 2
                continue
            try:
                os.posix_fallocate(file.fileno(), file.seek(0, 2), piece)
            except OSError:
                piece = piece // 2 if piece > 4096 else 0
    return filler


def _run(*command: str) -> str:
    """Run a command; return why it failed, empty when it did not."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)
    return done.stderr.strip() or f"{command[0]} ended with {done.returncode}" if done.returncode else ""
