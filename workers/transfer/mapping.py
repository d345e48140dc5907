"""Files laid side by side in memory that every process of the host shares: nothing is copied, whoever comes second
pays for no memory.

Invariants. What is laid down is locked: the kernel may not drop a page and read it from the disk again, so bytes that
were checked stay the bytes that are used. Where the system does not let a process lock so much (`RLIMIT_MEMLOCK`),
nothing is laid and the caller copies. Nobody may write to it: an attempt ends the process, and no file is harmed. The
files are never written in place (see `files`), and one that is removed lives until the last process has let go.
"""

import ctypes
import mmap
import sys
from _thread import start_new_thread

from workers.transfer.kernel import library

_FIXED = 0x10
_NO_RESERVE = 0x4000
_LARGE = 2 * 2**20
"""A large page: what begins and ends with one is mapped in no time."""


class _Region(mmap.mmap):
    """Goes in a thread of its own: where it is the last that has a removed file, the disk frees the file's blocks, and
    who unmaps it waits for that, 0.1 s for some hundred megabytes."""

    def __del__(self) -> None:
        if not sys.is_finalizing():
            start_new_thread(_drop, (self,))


def _drop(_: _Region) -> None:
    """Hold the last reference, and end: a region is unmapped without the interpreter's lock."""


class MappedMemory:
    """Memory for so many bytes of files, empty at first; gone when the last view of it is."""

    def __init__(self, size: int) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
        self._region = _Region(-1, max(1, -(-size // _LARGE)) * _LARGE, flags=flags)  # so it begins at a large page
        self._start = ctypes.addressof(ctypes.c_char.from_buffer(self._region))
        self.view = memoryview(self._region)

    def lay(self, descriptor: int, start: int, size: int) -> bool:
        """Make the first bytes of a file lie at `start`, locked; False where the system does not let that be.

        It does not where `start` is no multiple of a page.
        """
        address = self._start + start
        if library().mmap(address, size, mmap.PROT_READ, mmap.MAP_PRIVATE | _FIXED, descriptor, 0) != address:
            return False
        return bool(library().mlock(address, size) == 0)
