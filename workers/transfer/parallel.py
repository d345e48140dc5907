"""A few threads for work that leaves the interpreter: hashing, copying, reading and writing chunks."""

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from workers.transfer.base import NotYet

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
R = TypeVar("R")

THREADS_MOST = 4
"""Beyond that memory is the limit."""
AGAIN_S = 0.05
_SLICE = 4 * 2**20
"""Elements that one thread copies at a time."""


def in_threads(work: Callable[[T], R], things: Sequence[T]) -> list[R]:
    """Return what `work` makes of each thing, in order; the first failure is raised when all are done."""
    if len(things) < 2:
        return [work(thing) for thing in things]
    return _settled(_pool().submit(work, thing) for thing in things)


def again_and_again(work: Callable[[T], object], things: Sequence[T]) -> None:
    """Do the work for each thing, and again behind the others for those of which it raises NotYet."""
    left = list(things)
    while left:
        later: list[T] = []

        def tried(thing: T, later: list[T] = later) -> None:
            try:
                work(thing)
            except NotYet:
                later.append(thing)

        in_threads(tried, left)
        left = [thing for thing in left if thing in later]
        if left:
            time.sleep(AGAIN_S)


def copy(pairs: "Sequence[tuple[torch.Tensor, torch.Tensor]]") -> None:
    """Copy flat tensors of a host's memory, each source into its target, by several threads."""
    slices = [
        (target[start : start + _SLICE], source[start : start + _SLICE])
        for target, source in pairs
        for start in range(0, len(source), _SLICE)
    ]
    in_threads(lambda pair: pair[0].copy_(pair[1]), slices)


class Rooms:
    """A buffer per thread, used again and again: fresh memory costs more than what is done with it."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._local = threading.local()

    def own(self) -> memoryview:
        """Return the calling thread's buffer."""
        if not hasattr(self._local, "room"):
            self._local.room = bytearray(self._size)
        return memoryview(self._local.room)


def _settled(futures: Iterable[Future[R]]) -> list[R]:
    started = list(futures)
    failed = [error for future in started if (error := future.exception()) is not None]
    if failed:
        raise failed[0]
    return [future.result() for future in started]


@cache
def _pool() -> ThreadPoolExecutor:
    threads = min(THREADS_MOST, len(os.sched_getaffinity(0)))
    return ThreadPoolExecutor(threads, thread_name_prefix="state-plane")
