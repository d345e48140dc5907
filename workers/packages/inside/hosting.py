"""Forks a process for each episode that plays at the same time, and kills those that it is told to.

Invariants: one thread, so that forking is safe; a process is killed only while it is this host's child and not yet
reaped, so its number cannot be another's; whatever ends the host ends all its children (Linux), and the end of its
socket ends the host. A child is a session of its own, killed with all of it. A host that is the first process of its
name space kills whatever left its session, and sessions of too many processes; one that has the name space for a single
child kills what outlives it, and all of it where that is too many.
"""

import ctypes
import os
import select
import signal
import socket
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import IO, NoReturn, cast

KILL = b"K"
FORK = b"F"
FRAME = 5
"""Bytes of an order: what, and the number of a process."""
MOST_PROCESSES = 32
"""Processes and descendants of one episode."""
MOST_OF_COMMAND = 64
"""Processes of a command that has a name space of its own; agents start shells, compilers and tests."""
REAP_EVERY_S = 1.0
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36

Play = Callable[[socket.socket], None]


def on_lines(play: Callable[[IO[bytes]], None]) -> Play:
    """Return what plays over a socket as `play` does over a stream."""

    def played(link: socket.socket) -> None:
        with link.makefile("rwb") as stream:
            play(cast("IO[bytes]", stream))

    return played


def ends_with_parent() -> None:
    """Have the kernel kill this process when its parent ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopts_orphans() -> None:
    """Have descendants whose parents end become children of this process, so that none is out of its sight (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def serve(control: socket.socket, play: Play, left: Callable[[], None] = lambda: None, *, alone: bool = False) -> None:
    """Fork and kill as ordered, until the worker hangs up; each child plays what comes through its own socket.

    `left` is called at the end, when no child is there any more. `alone`: there is one child, and whatever else is in
    its name space is of its making; sessions of its descendants are theirs.
    """
    children: set[int] = set()
    first = os.getpid() == 1
    while True:
        waiting, _, _ = select.select([control], [], [], REAP_EVERY_S)
        # Children are reaped here alone: between two looks their numbers stay theirs, also when they have ended.
        children -= _reaped(children, first)
        if first:
            _sweep_all(children) if alone else _sweep(children)
        if not waiting:
            continue
        order, given, _, _ = socket.recv_fds(control, FRAME, 1, socket.MSG_WAITALL)
        if len(order) < FRAME:
            _end(children, left)
        if order[:1] == FORK:
            children.add(_fork(control, given[0], play))
        elif (pid := int.from_bytes(order[1:], "big")) in children:
            kill(pid)


def kill(pid: int) -> None:
    """Kill a child and what it started; one that is no session yet is killed alone."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        os.kill(pid, signal.SIGKILL)


def _reaped(children: set[int], first: bool) -> set[int]:
    """Reap what has ended; the first process of a name space inherits orphans."""
    if not first:
        return {pid for pid in children if os.waitpid(pid, os.WNOHANG)[0]}
    ended: set[int] = set()
    while True:
        try:
            pid = os.waitpid(-1, os.WNOHANG)[0]
        except ChildProcessError:
            return ended
        if not pid:
            return ended
        ended.add(pid)


def _sweep(children: set[int]) -> None:
    """Kill processes of no episode, and episodes of too many processes."""
    sessions = _sessions()
    crowds = Counter(sessions.values())
    for pid, session in sessions.items():
        # A child that was just forked is in the host's own session until it has made one.
        if pid != 1 and pid not in children and (session not in children or crowds[session] > MOST_PROCESSES):
            _kill_one(pid)
    for session in children & crowds.keys():
        if crowds[session] > MOST_PROCESSES:
            kill(session)


def _sweep_all(children: set[int]) -> None:
    """Kill what outlives the only child, and everything where that is too many processes."""
    others = _sessions().keys() - {1}
    if not children or len(others) > MOST_OF_COMMAND:
        for pid in others:
            _kill_one(pid)


def _sessions() -> dict[int, int]:
    """Return the session of every process that can be seen; none where nothing can."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            found[int(folder.name)] = int(fields[3])
    return found


def _kill_one(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _end(children: set[int], left: Callable[[], None]) -> NoReturn:
    """End every child, wait for its end, and end. A child that is left to nobody stays a zombie where nobody reaps."""
    for pid in children:
        kill(pid)
    for pid in children:
        os.waitpid(pid, 0)
    left()
    os._exit(0)


def _fork(control: socket.socket, given: int, play: Play) -> int:
    host = os.getpid()
    pid = os.fork()
    if pid:
        os.close(given)
        return pid
    status = 1
    try:
        os.setsid()
        ends_with_parent()
        control.close()
        with socket.socket(fileno=given) as link:
            if os.getppid() == host:
                play(link)
        status = 0
    finally:
        # Never back into the host's loop, and none of its clean-up.
        os._exit(status)
