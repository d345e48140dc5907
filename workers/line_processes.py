"""Processes that answer a line with a line, and that can be killed: for code that may hang.

Invariants: a process answers one question at a time; one that misses its time, or that nobody waits for any more, is
killed and touches nothing else. Processes get no credentials, are started when they are needed, and end with their
worker. Used from one event loop.
"""

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence

import psutil

from workers.children import child_environment

PROCESSES = os.cpu_count() or 1
"""Of one pool: more would only share the same processors."""
MOST_LINE = 2**24
"""Bytes of an answer."""


class NoAnswerInTime(Exception):
    """A process was killed. `cpu_s`: processor time that it spent on the question, which says whose fault it was."""

    def __init__(self, cpu_s: float) -> None:
        super().__init__(cpu_s)
        self.cpu_s = cpu_s


class ProcessDied(Exception):
    """A process ended without an answer."""


class LineProcesses:
    """A pool of processes of one module, `python -m workers.adopted MODULE ARGUMENTS`."""

    def __init__(self, module: str, arguments: Sequence[str] = (), most: int | None = None) -> None:
        self._module, self._arguments = module, tuple(arguments)
        self._places = asyncio.Semaphore(most or PROCESSES)
        self._resting: list[Process] = []

    async def ask(self, line: bytes, timeout_s: float) -> bytes:
        """Return the answer to a line. Raises NoAnswerInTime or ProcessDied."""
        async with self._places:
            process = await self._process()
            before, text = _cpu_s(process), b""
            try:
                async with asyncio.timeout(timeout_s):
                    text = await _asked(process, line)
            except TimeoutError as late:
                raise NoAnswerInTime(_cpu_s(process) - before) from late
            except ConnectionError as error:
                raise ProcessDied(str(error)) from error
            finally:
                if text:
                    self._resting.append(process)
                elif process.returncode is None:
                    process.kill()
        return text

    async def close(self) -> None:
        """End the processes that answer nothing; whatever is answered ends with its process."""
        for process in self._resting:
            if process.returncode is None:
                process.kill()
                await process.wait()
        self._resting.clear()

    async def _process(self) -> Process:
        while self._resting:
            process = self._resting.pop()
            if process.returncode is None:
                return process
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "workers.adopted", self._module, *self._arguments,
            stdin=PIPE, stdout=PIPE, stderr=DEVNULL, limit=MOST_LINE,
            env=child_environment({"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}),
        )  # fmt: skip


async def _asked(process: Process, body: bytes) -> bytes:
    """Send a question and wait for the answer. Raises ConnectionError when the process is gone."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(body + b"\n")
    await process.stdin.drain()
    try:
        text = await process.stdout.readline()
    except ValueError as error:  # longer than a line may be: nothing can be read of it
        raise ConnectionResetError("its answer does not end") from error
    if not text.endswith(b"\n"):
        raise ConnectionResetError("without an answer")
    return text


def _cpu_s(process: Process) -> float:
    """Return the processor time of a process so far, 0 when it is gone."""
    with contextlib.suppress(psutil.Error):
        times = psutil.Process(process.pid).cpu_times()
        return float(times.user + times.system)
    return 0.0
