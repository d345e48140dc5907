"""What Linux offers and Python does not. All of it is a hint or may be refused: callers do without."""

import ctypes
from functools import cache
from typing import Any

_WRITE = 2
_TO_THE_END = 0


@cache
def library() -> Any:
    """Return the C library: Python's own `mmap` does not let its caller choose the place."""
    found = ctypes.CDLL(None, use_errno=True)
    number, offset = ctypes.c_int, ctypes.c_int64
    found.mmap.restype = ctypes.c_void_p
    found.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, number, number, number, offset]
    found.mlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    found.sync_file_range.argtypes = [number, offset, offset, ctypes.c_uint]
    return found


def begin_to_write_out(descriptor: int) -> None:
    """Have the disk begin with what was written to a file, without waiting for it.

    Nothing is durable by that, but a later flush finds little left to do. File systems without a disk refuse.
    """
    library().sync_file_range(descriptor, 0, _TO_THE_END, _WRITE)
