"""Runs programs that a model wrote, from the outside: a fresh process in a fresh folder, and what became of it.

`workers.scoring.confinement` is the inside: it closes files, network and processes off. Where bubblewrap is installed
and works here, all of it happens inside namespaces of its own as well. Invariants: a program gets no variable of this
process; whatever it prints or writes beyond its limits ends it; nothing of it is left, neither process nor folder. A
sandbox that cannot be had is an error, `SandboxMissing`, and no program is run without one.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache

import psutil

from workers.scoring import confinement

LOOK_EVERY_S = 0.1
"""Between looks at what a program writes into its folder."""
MOST_FILES = 200
MOST_THREADS = 64
"""Of one program. The kernel counts them for nobody but by user, so they are counted from outside."""
PYTHON = os.path.realpath(sys.executable)
_LIBRARY = os.path.join(sys.base_prefix, "lib")
READABLE = (
    PYTHON, _LIBRARY, os.path.join(sys.base_prefix, "lib64"), "/usr/lib", "/usr/lib64", "/lib", "/lib64",
    "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/usr/share/zoneinfo", "/dev/null", "/dev/urandom",
)  # fmt: skip
"""What an interpreter needs to run: itself and libraries, and nothing of the product."""
_VARIABLES = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}


class ProgramEnd(StrEnum):
    """How a program ended."""

    WELL = "well"
    """Exit status 0."""
    ERROR = "error"
    CPU = "cpu"
    """It used its processor time up."""
    TIME = "time"
    """It was not over in time."""
    MEMORY = "memory"
    OUTPUT = "output"
    """It printed more than it may."""
    FILES = "files"
    """It wrote more than it may."""
    NETWORK = "network"
    """It wanted a connection, and ended by not having one."""
    ACCESS = "access"
    """It wanted a file outside its folder, and ended by not having it."""
    PROCESS = "process"
    """It wanted another process, to start or to touch, and ended by not having it."""
    SIGNAL = "signal"


@dataclass(frozen=True, slots=True)
class Allowed:
    """What a program may take."""

    cpu_s: float
    memory_bytes: int
    output_bytes: int
    """Of its standard output, of its standard error, and of the files in its folder."""


@dataclass(frozen=True, slots=True)
class Ran:
    ended: ProgramEnd
    output: bytes
    said: str = ""
    """The last line of its standard error."""


class SandboxMissing(Exception):
    """This host cannot confine programs; the text says what it lacks."""


async def run(script: str, arguments: Sequence[str], given: bytes, allowed: Allowed, timeout_s: float) -> Ran:
    """Run a Python program in a sandbox with `given` as its input. Raises SandboxMissing."""
    folder = tempfile.mkdtemp(prefix="flexmarl-code-")
    try:
        with open(os.path.join(folder, "program.py"), "w", encoding="utf-8", errors="replace") as file:
            file.write(script)
        process = await asyncio.create_subprocess_exec(
            *_command(folder, allowed), *arguments, stdin=PIPE, stdout=PIPE, stderr=PIPE, cwd=folder,
            env={**_VARIABLES, "HOME": folder, "TMPDIR": folder}, start_new_session=True,
        )  # fmt: skip
        try:
            return await _watched(process, folder, given, allowed, timeout_s)
        finally:
            # The group, though the filter lets nobody else be in it: where it failed, this still ends what was made.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            if process.returncode is None:
                await process.wait()
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


def _command(folder: str, allowed: Allowed) -> list[str]:
    limits = {"cpu_s": allowed.cpu_s, "memory_bytes": allowed.memory_bytes, "file_bytes": allowed.output_bytes}
    inside = [PYTHON, "-I", "-S", confinement.__file__, json.dumps(limits), folder, *READABLE]
    program = [PYTHON, "-I", "-S", "-B", os.path.join(folder, "program.py")]
    return [*_around(folder), *inside, "--", *program]


def _around(folder: str) -> list[str]:
    """Return bubblewrap with its options, nothing where it cannot be used here."""
    if not (found := bubblewrap()):
        return []
    bound = [part for path in (*READABLE, confinement.__file__) for part in ("--ro-bind-try", path, path)]
    return [found, "--unshare-all", "--die-with-parent", "--new-session", *bound, "--bind", folder, folder, "--"]


@cache
def bubblewrap() -> str:
    """Return the program bubblewrap where it is installed and may make namespaces here, else nothing."""
    found = shutil.which("bwrap") or ""
    if not found:
        return ""
    tried = [found, "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--", "/bin/true"]
    try:
        works = subprocess.run(tried, capture_output=True, timeout=10, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        works = False
    return found if works else ""


def in_force() -> str:
    """Say in words what confines programs on this host."""
    inner = "resource limits, files closed off by Landlock, no sockets and no new processes by a filter of system calls"
    return f"bubblewrap, {inner}" if bubblewrap() else inner


@dataclass(slots=True)
class _Output:
    """What a stream says: kept up to a limit, and read to its end, since a program that nobody reads cannot end."""

    most: int
    read: bytearray = field(default_factory=bytearray)
    over: bool = False

    async def take(self, stream: asyncio.StreamReader) -> None:
        while chunk := await stream.read(65_536):
            self.over |= len(self.read) + len(chunk) > self.most
            self.read += chunk[: self.most - len(self.read)]


async def _watched(process: Process, folder: str, given: bytes, allowed: Allowed, timeout_s: float) -> Ran:
    """Feed a program, read what it says, and end it when it takes too much."""
    assert process.stdout is not None
    assert process.stderr is not None
    output, errors = _Output(allowed.output_bytes), _Output(allowed.output_bytes)
    work = asyncio.gather(
        output.take(process.stdout), errors.take(process.stderr), _feed(process, given), process.wait()
    )
    ended, deadline = None, time.monotonic() + timeout_s
    try:
        while ended is None and not work.done():
            await asyncio.wait([work], timeout=LOOK_EVERY_S)
            if output.over or errors.over:
                ended = ProgramEnd.OUTPUT
            elif await asyncio.to_thread(_written, folder) > allowed.output_bytes:
                ended = ProgramEnd.FILES
            elif _threads(process.pid) > MOST_THREADS:
                ended = ProgramEnd.PROCESS
            elif not work.done() and time.monotonic() > deadline:
                ended = ProgramEnd.TIME
        if process.returncode is None:
            process.kill()
        await work
    finally:
        work.cancel()
    lines = [line for line in errors.read.decode("utf-8", "replace").splitlines() if line.strip()]
    said = lines[-1].strip() if lines else ""
    if process.returncode == confinement.REFUSED and ended is None and not output.read:
        raise SandboxMissing(said)
    return Ran(ended or _reason(process.returncode or 0, said), bytes(output.read), said[:300])


def _threads(pid: int) -> int:
    """Count the threads of a program, and of bubblewrap where that is around it."""
    try:
        outer = psutil.Process(pid)
        return sum(one.num_threads() for one in (outer, *outer.children(recursive=True)))
    except psutil.Error:  # it ended
        return 0


async def _feed(process: Process, given: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(ConnectionError):  # it does not read
        process.stdin.write(given)
        await process.stdin.drain()
        process.stdin.close()


def _written(folder: str) -> int:
    """Return the bytes of a folder beside the program, and as good as endless where it holds too many files."""
    total, count = 0, 0
    for place, _, names in os.walk(folder):
        count += len(names) + 1
        if count > MOST_FILES:
            return sys.maxsize
        for name in names:
            with contextlib.suppress(OSError):
                total += 0 if name == "program.py" else os.lstat(os.path.join(place, name)).st_size
    return total


_SIGXCPU, _SIGKILL, _SIGXFSZ = 24, 9, 25
_SAID = (
    (f"[Errno {confinement.NETWORK}]", ProgramEnd.NETWORK), ("[Errno 13]", ProgramEnd.ACCESS),
    (f"[Errno {confinement.PROCESS}]", ProgramEnd.PROCESS), ("MemoryError", ProgramEnd.MEMORY),
    ("[Errno 12]", ProgramEnd.MEMORY),
    ("can't start new thread", ProgramEnd.PROCESS), ("[Errno 27]", ProgramEnd.FILES), ("[Errno 24]", ProgramEnd.FILES),
)  # fmt: skip
"""How a program that ended by an error says which wall it met."""


def _reason(status: int, said: str) -> ProgramEnd:
    number = -status if status < 0 else status - 128 if status > 128 else 0
    if number in (_SIGXCPU, _SIGKILL):  # the kernel's answer to a soft and to a hard limit of processor time
        return ProgramEnd.CPU
    if number == _SIGXFSZ:
        return ProgramEnd.FILES
    if number:
        return ProgramEnd.SIGNAL
    if status == 0:
        return ProgramEnd.WELL
    if "[Errno 2]" in said and bubblewrap():  # what is closed off is not there at all
        return ProgramEnd.ACCESS
    return next((ended for words, ended in _SAID if words in said), ProgramEnd.ERROR)
