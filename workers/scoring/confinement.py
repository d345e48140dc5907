"""What a process gives up before it touches what a model wrote: resources, files, network, other processes.

Also a program: `python -I -S confinement.py LIMITS FOLDER [READABLE ...] -- PROGRAM ...` confines itself and becomes
the program. Only the standard library is imported, so that it starts fast and needs nothing of the product.

Invariants (Linux). What was given up never comes back, not by `exec` either. No new process can be made, so there is
one process to kill. Nothing outside the folder is written, nothing outside folder and readable paths is opened. No
socket can be made. Whatever cannot be arranged raises before anything is run: there is no half of a sandbox.
"""

import contextlib
import ctypes
import errno
import json
import os
import platform
import resource
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

REFUSED = 96
"""Exit status of a program that could not be confined; the reason is on standard error."""
NETWORK = errno.ENETDOWN
"""What making a socket fails with, which nothing else does."""
PROCESS = errno.EPERM
"""What making a process, or touching another one, fails with."""
OPEN_FILES = 64

_PDEATHSIG, _NO_NEW_PRIVS, _SECCOMP, _FILTER = 1, 38, 22, 2
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_EXECUTE, _WRITE, _READ, _LIST, _TRUNCATE = 1, 2, 4, 8, 1 << 14
_WITHIN = _READ | _LIST | _WRITE | _TRUNCATE | 0b11 << 4 | 1 << 7 | 1 << 8
"""In the folder: read, write, remove, make folders and files; no devices, links, sockets."""
_ALL_FILE = _EXECUTE | _WRITE | _READ | _TRUNCATE
_OF_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1}
"""What a kernel's Landlock can forbid; from the third version on files cannot be cut short either."""
_NEWUTS, _NEWIPC, _NEWUSER, _NEWNET = 0x04000000, 0x08000000, 0x10000000, 0x40000000


class CannotConfine(OSError):
    """This host lacks something that confining needs."""


@dataclass(frozen=True)
class Limits:
    cpu_s: float
    memory_bytes: int
    file_bytes: int


def confine(limits: Limits, folder: str, readable: Sequence[str]) -> None:
    """Give up everything but the folder and, to read, some paths. Raises CannotConfine."""
    if sys.platform != "linux" or platform.machine() not in _MACHINES:
        raise CannotConfine(
            f"no sandbox for {sys.platform} on {platform.machine()}; Linux on x86_64 or aarch64 has one"
        )
    libc = ctypes.CDLL(None, use_errno=True)
    _limit(limits)
    _leave_network(libc)
    _checked(libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    _drop_capabilities(libc)
    _close_files(libc, folder, readable)
    _filter_calls(libc)


def _limit(limits: Limits) -> None:
    seconds = max(1, round(limits.cpu_s))
    for what, most in (
        (resource.RLIMIT_CPU, (seconds, seconds + 1)),
        (resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes)),
        (resource.RLIMIT_FSIZE, (limits.file_bytes, limits.file_bytes)),
        (resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES)),
        (resource.RLIMIT_CORE, (0, 0)),
        (resource.RLIMIT_MEMLOCK, (0, 0)),
    ):
        resource.setrlimit(what, most)


def _leave_network(libc: ctypes.CDLL) -> None:
    """Move to a network that has nothing in it, where the kernel lets us: the filter forbids sockets as well."""
    if libc.unshare(_NEWNET | _NEWIPC | _NEWUTS):
        libc.unshare(_NEWUSER | _NEWNET | _NEWIPC | _NEWUTS)


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    _checked(libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")


class _Ruleset(ctypes.Structure):
    _fields_ = [("handled", ctypes.c_uint64)]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def _close_files(libc: ctypes.CDLL, folder: str, readable: Sequence[str]) -> None:
    """Forbid every file but those by Landlock."""
    abi = libc.syscall(_LANDLOCK_CREATE, None, 0, 1)
    if abi < 1:
        raise CannotConfine("the kernel has no Landlock, without which files outside the folder could be read")
    handled = _OF_ABI.get(abi, (1 << 15) - 1)
    rules = _Ruleset(handled)
    ruleset = _checked(libc.syscall(_LANDLOCK_CREATE, ctypes.byref(rules), ctypes.sizeof(rules), 0), "Landlock")
    for path, allowed in ((folder, _WITHIN), *((one, _READ | _LIST | _EXECUTE) for one in readable)):
        with contextlib.suppress(FileNotFoundError):
            parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
            legal = handled if os.path.isdir(path) else handled & _ALL_FILE
            rule = _Beneath(allowed & legal, parent)
            _checked(libc.syscall(_LANDLOCK_ADD, ruleset, 1, ctypes.byref(rule), 0), f"Landlock of {path}")
            os.close(parent)
    _checked(libc.syscall(_LANDLOCK_RESTRICT, ruleset, 0), "Landlock")
    os.close(ruleset)


def _checked(result: int, what: str) -> int:
    if result < 0:
        raise CannotConfine(f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


# The filter of system calls ------------------------------------------------------------------------------------------

_SHARED = (424, 428, 429, 430, 431, 432, 433, 434, 438, 440, 442, 447, 448, 452, 425, 426, 427)
"""Numbers alike on all machines: handles of processes, mounts, secret memory, chmod by handle, io_uring."""


@dataclass(frozen=True)
class _Machine:
    """Numbers of system calls."""

    arch: int
    socket: int
    clone: int
    signals: tuple[int, ...]
    """To processes: only to oneself."""
    limits: int
    prctl: int
    denied: tuple[int, ...]
    """Processes (fork, other signals, ptrace), mounts and roots, keys, bpf, modules, clocks, shared memory, owners,
    modes and times of files, priorities."""


_MACHINES = {
    "x86_64": _Machine(
        0xC000003E, 41, 56, (62, 234), 302, 157,
        (
            57, 58, 200, 129, 297, 101, 310, 311, 312, 165, 166, 155, 161, 272, 308, 248, 249, 250, 321, 298, 323, 175,
            313, 176, 246, 320, 169, 167, 168, 170, 171, 172, 173, 103, 163, 164, 227, 159, 305, 179, 304, 303, 300, 29,
            30, 31, 64, 65, 66, 68, 69, 70, 71, 220, 240, 319, 135, 90, 91, 268, 92, 93, 94, 260, 132, 235, 261, 280,
            188, 189, 190, 197, 198, 199, 76, 133, 259, 141, 142, 144, 203, 314, 251, 256, 279,
        ),
    ),
    "aarch64": _Machine(
        0xC00000B7, 198, 220, (129, 131), 261, 167,
        (
            130, 138, 240, 117, 270, 271, 272, 40, 39, 41, 51, 97, 268, 217, 218, 219, 280, 241, 282, 105, 106, 273,
            104, 294, 142, 224, 225, 161, 162, 116, 89, 170, 112, 171, 266, 60, 265, 264, 262, 194, 195, 196, 190, 191,
            192, 193, 186, 187, 188, 189, 180, 279, 92, 52, 53, 54, 55, 88, 5, 6, 7, 14, 15, 16, 45, 33, 140, 118, 119,
            122, 274, 30, 238, 239,
        ),
    ),
}  # fmt: skip
_CLONE3 = 435
_THREAD = 0x00010000
_ALLOW, _KILL, _FAIL = 0x7FFF0000, 0x80000000, 0x00050000
_LOAD, _EQUAL, _AT_LEAST, _BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCH, _FIRST = 0, 4, 16
"""Where the filter finds the call, the machine, and the call's first argument."""
_OLD_CALLS = 0x40000000
"""Numbers from here on are a second table of x86_64."""
Step = tuple[int, int, int, int]


def steps(machine: str, pid: int) -> list[Step]:
    """Return the filter as (code, jump if true, jump if false, value)."""
    calls = _MACHINES[machine]
    found: list[Step] = [
        (_LOAD, 0, 0, _ARCH), (_EQUAL, 1, 0, calls.arch), (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER), (_AT_LEAST, 0, 1, _OLD_CALLS), (_RETURN, 0, 0, _KILL),
    ]  # fmt: skip
    failing = [(number, PROCESS) for number in (*_SHARED, *calls.denied)]
    for number, error in [(calls.socket, NETWORK), (_CLONE3, errno.ENOSYS), *failing]:
        found += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _FAIL | error)]
    # Threads, not processes; signals to oneself; limits of oneself; everything of prctl but outliving the parent.
    found += _unless(calls.clone, [(_BITS, 1, 0, _THREAD)])
    for number in calls.signals:
        found += _unless(number, [(_EQUAL, 1, 0, pid)])
    found += _unless(calls.limits, [(_EQUAL, 2, 0, 0), (_EQUAL, 1, 0, pid)])
    found += _unless(calls.prctl, [(_EQUAL, 0, 1, _PDEATHSIG)])
    return [*found, (_RETURN, 0, 0, _ALLOW)]


def _unless(number: int, allowed: list[Step]) -> list[Step]:
    """Forbid a call unless its first argument passes; a passing test jumps over the refusal that ends them."""
    tests = [(_LOAD, 0, 0, _FIRST), *allowed, (_RETURN, 0, 0, _FAIL | PROCESS), (_RETURN, 0, 0, _ALLOW)]
    return [(_EQUAL, 0, len(tests), number), *tests]


class _Step(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint16), ("yes", ctypes.c_uint8), ("no", ctypes.c_uint8), ("value", ctypes.c_uint32)]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint16), ("steps", ctypes.POINTER(_Step))]


def _filter_calls(libc: ctypes.CDLL) -> None:
    made = [_Step(*one) for one in steps(platform.machine(), os.getpid())]
    program = _Program(len(made), (_Step * len(made))(*made))
    _checked(libc.prctl(_SECCOMP, _FILTER, ctypes.byref(program), 0, 0), "the filter of system calls")


def main() -> NoReturn:
    """Confine this process and become the program."""
    place = sys.argv.index("--")
    limits, folder, *readable = sys.argv[1:place]
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
    os.chdir(folder)
    program = sys.argv[place + 1 :]
    try:
        confine(Limits(**json.loads(limits)), folder, readable)
        os.execv(program[0], program)
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        sys.stderr.flush()
        os._exit(REFUSED)


if __name__ == "__main__":
    main()
