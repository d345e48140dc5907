"""The processes that run on this host now."""

import contextlib
from collections.abc import Iterator

import psutil


def running_processes() -> Iterator[psutil.Process]:
    """Yield a fresh object for each process.

    `psutil.process_iter` keeps the objects that it has made: after the system's numbers have gone round, it yields one
    of a process that is gone, which answers for the process that has its number now and cannot end it.
    """
    for pid in psutil.pids():
        with contextlib.suppress(psutil.NoSuchProcess):
            yield psutil.Process(pid)
