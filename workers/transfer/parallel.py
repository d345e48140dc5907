"""A few threads for work that leaves the interpreter: hashing, copying, reading and writing chunks."""

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

THREADS_MOST = 4
"""Beyond that memory is the limit."""


def in_threads(work: Callable[[T], R], things: Sequence[T]) -> list[R]:
    """Return what `work` makes of each thing, in order; the first failure is raised when all are done."""
    if len(things) < 2:
        return [work(thing) for thing in things]
    return _settled(_pool().submit(work, thing) for thing in things)


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
