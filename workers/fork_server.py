"""A process that has imported what children need, and forks them.

`python -m workers.adopted workers.fork_server FD MODULE...` with the descriptor of a socket and what is to be imported.
To import torch takes a child seconds of a processor, and it takes them again after every death. A fork of a process
that has it starts at once, and shares that memory with its siblings.

Invariants: this process has one thread and never computes, so that a fork is whole; it opens no device, so that a
child sees those that its own environment names. A child is what `workers.adopted` would have made of a new process: it
leads a session and a process group, has the three streams and the environment that were sent for it and nothing else
that is open here, and the kernel kills it when this process ends. The other end of the socket owns this process: when
it closes, this process ends. Every child's end is told once.
"""

import contextlib
import ctypes
import gc
import importlib
import os
import selectors
import socket
import sys

import msgspec

from workers.adopted import PARENT, become, tie_to

STREAMS = 3
MESSAGE_BYTES = 2**17
"""The longest message: an environment is some kilobytes."""
_PR_SET_NAME = 15


class ForkRequest(msgspec.Struct):
    """Start a child; its standard input, output and error come with the message."""

    no: int
    """Told again with the answer."""
    module: str
    environment: dict[str, str]


class ForkServerReady(msgspec.Struct, tag=True):
    """From now on requests are answered at once."""


class Forked(msgspec.Struct, tag=True):
    no: int
    pid: int


class ForkedEnd(msgspec.Struct, tag=True):
    pid: int
    code: int
    """Exit status; the negative number of a signal that ended it."""


class ForkServer:
    """Serves requests of one owner until it is gone."""

    def __init__(self, owner: socket.socket) -> None:
        self._owner = owner
        self._events = selectors.DefaultSelector()
        self._events.register(owner, selectors.EVENT_READ)
        self._children: dict[int, int] = {}
        """Process id of each child by the descriptor that becomes readable when it ends."""

    def serve(self) -> ForkRequest | None:
        """Fork what is asked for and tell ends. Returns the request in a child, and None once the owner is gone."""
        self._say(ForkServerReady())
        while True:
            for key, _ in self._events.select():
                if key.fileobj is not self._owner:
                    self._tell_end(key.fd)
                    continue
                body, streams, *_ = socket.recv_fds(self._owner, MESSAGE_BYTES, STREAMS)
                if not body:
                    return None
                request = msgspec.json.decode(body, type=ForkRequest)
                if self._fork(request.no, streams):
                    return request

    def _fork(self, no: int, streams: list[int]) -> bool:
        """Start a child; True in the child."""
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            os.setsid()
            tie_to(parent)
            self._let_go()
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
        for stream in streams:
            os.close(stream)
        if pid == 0:
            return True
        ends = os.pidfd_open(pid)
        self._children[ends] = pid
        self._events.register(ends, selectors.EVENT_READ)
        self._say(Forked(no, pid))
        return False

    def _let_go(self) -> None:
        """Close, in a child, what this process has open."""
        self._events.close()
        self._owner.close()
        for ends in self._children:
            os.close(ends)

    def _tell_end(self, ends: int) -> None:
        self._events.unregister(ends)
        os.close(ends)
        pid = self._children.pop(ends)
        _, status = os.waitpid(pid, 0)
        self._say(ForkedEnd(pid, os.waitstatus_to_exitcode(status)))

    def _say(self, message: ForkServerReady | Forked | ForkedEnd) -> None:
        with contextlib.suppress(ConnectionError):  # the owner is gone, which the next message says
            self._owner.send(msgspec.json.encode(message))


def main() -> None:
    """Import, then serve; a child becomes its module."""
    owner = socket.socket(fileno=int(sys.argv[1]))
    gc.disable()  # what is imported stays: to look for cycles in it takes a sixth of the time
    for module in sys.argv[2:]:
        importlib.import_module(module)
    gc.enable()
    gc.collect()
    gc.freeze()  # a child's collector touches none of it, so that it stays shared
    request = ForkServer(owner).serve()
    if request is None:
        return
    os.environ.clear()
    os.environ.update(request.environment)
    os.environ.pop(PARENT, None)  # the fork itself has seen to that
    _name(request.module.removeprefix("workers."))
    become(request.module)


def _name(name: str) -> None:
    """Be called so in lists of processes, which show the command of this process for all of them."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name[:15].encode())


if __name__ == "__main__":
    main()
