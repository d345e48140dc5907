"""A disk that loses its power: what was not flushed by then is gone, the journal's newest part included.

The disk is an ext4 file system in a file. `lose_power` is the kernel's own means for such tests: from one moment on
nothing reaches the disk any more, what the page cache held is dropped, and mounting it anew recovers what there is.
"""

import fcntl
import os
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SHUTDOWN = 0x8004587D
"""EXT4_IOC_SHUTDOWN."""
WITHOUT_FLUSH = struct.pack("I", 2)
"""EXT4_GOING_FLAGS_NOLOGFLUSH."""


class Disk:
    def __init__(self, image: Path, folder: Path) -> None:
        self.image, self.folder = image, folder

    def mount(self) -> None:
        _run("mount", "-o", "loop", str(self.image), str(self.folder))

    def unmount(self) -> None:
        _run("umount", str(self.folder))

    def lose_power(self) -> None:
        """Let nothing reach the disk from now on. Whoever still runs gets EIO."""
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, SHUTDOWN, WITHOUT_FLUSH)
        finally:
            os.close(descriptor)


@contextmanager
def disk(place: Path, megabytes: int) -> Iterator[Disk]:
    """Yield a mounted disk; skips where none can be made or mounted."""
    made = Disk(place / "disk.img", place / "disk")
    made.folder.mkdir()
    with made.image.open("wb") as file:
        file.truncate(megabytes << 20)
    try:
        _run("mkfs.ext4", "-q", "-F", str(made.image))
        made.mount()
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be made and mounted here: {getattr(error, 'stderr', '') or error}")
    made.folder.chmod(0o711)
    try:
        yield made
    finally:
        subprocess.run(["umount", "--lazy", str(made.folder)], check=False, capture_output=True)
        made.image.unlink()


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
