"""Whether something ended for lack of memory: what the kernel counts, and what libraries say.

The kernel tells nobody whom it killed; it counts. A process that died of SIGKILL while that number rose, and that
nobody here killed, is taken for one of them: what a person has to do is the same.
"""

import ctypes
import gc
import resource
import signal
import sys
from pathlib import Path

from flexmarl.contracts.status import RunReason

OUT_OF_MEMORY = RunReason.OUT_OF_MEMORY.value
"""Code that opens the reason of whatever ended for lack of memory."""
VMSTAT = Path("/proc/vmstat")
STATM = Path("/proc/self/statm")
SPARE_BYTES = 2**26
"""By so much a process may grow before what is free in it is returned."""
TOLD_ABOVE = 1.25
"""A run is told when a process takes so many times what was leased for it."""
_SAID = ("memoryerror", "out of memory", "outofmemory", "can't allocate memory", "cannot allocate memory", "bad_alloc")


def kernel_kills() -> int:
    """Return how many processes the kernel has killed for memory since it started; 0 where it does not say."""
    try:
        lines = VMSTAT.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def killed_for_memory(code: int, kills_before: int) -> bool:
    """Tell whether a process that ended with a code was one that the kernel killed."""
    return code == -signal.SIGKILL and kernel_kills() > kills_before


def lacks_memory(error: BaseException) -> bool:
    """Tell whether an exception means that memory ran out, of the host or of a GPU."""
    return tells_of_memory(f"{type(error).__name__}: {error}")


def tells_of_memory(text: str) -> bool:
    """Tell whether last words speak of memory that ran out; libraries have no common type for it."""
    lowered = text.lower()
    return any(words in lowered for words in _SAID)


def give_back(device: str = "cpu") -> None:
    """Return freed memory to the operating system and the GPU: libraries keep what they may use again."""
    gc.collect()
    if device.startswith("cuda"):
        import torch

        torch.cuda.empty_cache()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's own
        if trim is not None:
            trim(0)


def resident() -> int:
    """Return the bytes of this process that lie in memory; 0 where the system does not say."""
    try:
        return int(STATM.read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    except OSError:
        return 0


class Spare:
    """What libraries keep for their next use, returned once it is much: pieces of many sizes leave gaps that no later
    piece fits, so a process of a large model would grow with every batch of other lengths. Small models keep theirs."""

    def __init__(self) -> None:
        self._least = resident()
        """Since memory was returned last."""

    def return_much(self, device: str = "cpu") -> None:
        """Return what is free if the process has grown by more than `SPARE_BYTES`."""
        now = resident()
        if now > self._least + SPARE_BYTES:
            give_back(device)
            now = self._least = resident()
        self._least = min(self._least, now)


def size(amount: int) -> str:
    """Return a number of bytes as people read it."""
    return f"{amount / 2**30:.1f} GiB" if amount >= 2**30 else f"{amount / 2**20:.0f} MiB"
