"""The processes of isolated environments, from the worker's side: the host that forks, and what it forked.

Invariants: one fork is under way at a time, so orders never fill the host's socket; a host says first that it is ready
or why it never will be; what waits for a host is never cancelled by another one that waits for it.
"""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from workers.children import child_environment
from workers.packages.inside.hosting import FORK, KILL
from workers.packages.inside.shapes import MOST_LINE
from workers.rollout.isolation.lines import Answer, Born, Broke, HostReady, Order, ProgramOrder, ToolOrder, frame, line

HOST = "workers.rollout.isolation.host"
LEAVE_S = 5.0
"""How long a host may take to end its processes and itself."""
SETTINGS = {
    # Sets of words have one order; one process, one thread; nothing looks for a screen.
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "SDL_VIDEODRIVER": "dummy",
    "SDL_AUDIODRIVER": "dummy",
    "PYGAME_HIDE_SUPPORT_PROMPT": "1",
}


Said = TypeVar("Said", bound=Answer)


class EnvironmentBroke(RuntimeError):
    """An environment raised, hung or died; the text says which."""


@dataclass(slots=True)
class ForkHost:
    """The process that forks, with the socket for orders to it."""

    process: "subprocess.Popen[bytes]"
    control: socket.socket
    ready: "asyncio.Task[socket.socket | None]"
    """The socket that programs of its name space connect to, where it starts such."""
    forking: asyncio.Lock = field(default_factory=asyncio.Lock)
    gone: bool = False
    """It hung up: known before the operating system says that the process has ended."""
    unanswered: bool = False
    """The last fork that was ordered was not seen to happen."""

    def alive(self) -> bool:
        """Whether it runs and has not said that it never gets ready."""
        failed = self.ready.done() and (self.ready.cancelled() or self.ready.exception() is not None)
        return not failed and not self.gone and self.process.poll() is None

    def silent(self) -> bool:
        """Whether it owes an answer: somebody who waited too long waited for this process."""
        return not self.ready.done() or self.unanswered

    async def fork(self) -> "ForkedProcess":
        """Have a process. Raises EnvironmentBroke when there is none to be had."""
        await asyncio.wait([self.ready])
        if self.ready.cancelled():
            raise EnvironmentBroke("the host of environments was ended before it was ready")
        self.ready.result()
        async with self.forking:
            ours, theirs = socket.socketpair()
            reader, writer = await asyncio.open_connection(sock=ours, limit=MOST_LINE)
            process, self.unanswered = ForkedProcess(self, reader, writer), True
            try:
                with theirs:
                    self.order(FORK, give=theirs)
                born = await process.answer()
            except BaseException:  # broken or cancelled: a process that comes late finds that nobody listens
                writer.close()
                raise
            assert isinstance(born, Born)
            process.pid, self.unanswered = born.pid, False
        return process

    def order(self, what: bytes, pid: int = 0, give: socket.socket | None = None) -> None:
        """Send an order. Raises EnvironmentBroke when the host is gone, and all its processes with it."""
        try:
            socket.send_fds(self.control, [frame(what, pid)], [give.fileno()] if give else [])
        except OSError as error:
            self.gone = True
            raise EnvironmentBroke(f"the host of environments is gone: {error}") from error

    def end(self) -> None:
        """End it, and with it every process it forked: ask it, which it hears only when it is well; else kill it."""
        self.gone = True
        if self.silent():
            self.process.kill()
        self.ready.cancel()
        self.control.close()
        asyncio.get_running_loop().run_in_executor(None, self._bury)

    def _bury(self) -> None:
        try:
            self.process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@dataclass(slots=True, eq=False)
class ForkedProcess:
    """One forked process and the line to it."""

    host: ForkHost
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    pid: int = 0
    idle_since: float = 0.0

    def alive(self) -> bool:
        """Whether nothing is known of its end."""
        return not self.reader.at_eof() and not self.writer.is_closing()

    async def ask(self, order: Order | ProgramOrder | ToolOrder, kind: type[Said]) -> Said:
        """Send an order and wait for its answer. Raises EnvironmentBroke when the environment broke."""
        self.writer.write(line(order))
        answer = await self.answer()
        if isinstance(answer, Broke):
            raise EnvironmentBroke(answer.reason)
        if not isinstance(answer, kind):
            raise EnvironmentBroke(f"garbage: {type(answer).__name__} is not an answer to {type(order).__name__}")
        return answer

    async def answer(self) -> Answer:
        """Wait for a line. Raises EnvironmentBroke when the process is gone, or says what is no answer."""
        try:
            text = await self.reader.readline()
        except ConnectionError as error:
            raise EnvironmentBroke(f"its process died: {error}") from error
        except ValueError:
            raise EnvironmentBroke(f"oversized: a line of more than {MOST_LINE} bytes") from None
        if not text.endswith(b"\n"):
            raise EnvironmentBroke("its process died")
        try:
            answer: Answer = msgspec.json.decode(text, type=Answer)
        except msgspec.MsgspecError as error:
            raise EnvironmentBroke(f"garbage: its line is not an answer: {error}") from None
        return answer

    def end(self) -> None:
        """Hang up, which ends a process that listens, and have it killed, which ends one that does not."""
        self.writer.close()
        try:
            self.host.order(KILL, self.pid)
        except EnvironmentBroke:
            return  # the host is gone, and every process it had


def start(command: Sequence[str], environment: Mapping[str, str]) -> ForkHost:
    """Start a host of environments: a command that takes the number of its socket as its last argument."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [*command, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env=environment,
        )
    ours.setblocking(False)
    return ForkHost(process, ours, asyncio.get_running_loop().create_task(_ready(ours)))


def start_installed(spec: str) -> ForkHost:
    """Start the host of an environment that this interpreter has, given its specification as JSON."""
    settings = child_environment({**SETTINGS, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))})
    return start([sys.executable, "-m", "workers.adopted", HOST, spec], settings)


async def _ready(control: socket.socket) -> socket.socket | None:
    """Wait until the host is ready. Raises EnvironmentBroke when it never gets ready."""
    text, door = b"", None
    while not text.endswith(b"\n"):
        more, given = await _received(control)
        door = socket.socket(fileno=given[0]) if given else door
        if not more:
            raise EnvironmentBroke("the host of environments died before it was ready")
        if len(text) > MOST_LINE:
            raise EnvironmentBroke("oversized: what the host of environments says has no end")
        text += more
    try:
        said = msgspec.json.decode(text, type=HostReady | Broke)
    except msgspec.MsgspecError as error:
        raise EnvironmentBroke(f"garbage: the host of environments says no answer: {error}") from None
    if isinstance(said, Broke):
        raise EnvironmentBroke(said.reason)
    return door


async def _received(control: socket.socket) -> tuple[bytes, list[int]]:
    """Receive bytes and descriptors; loops of asyncio receive bytes alone."""
    loop, own = asyncio.get_running_loop(), control.fileno()
    while True:
        try:
            text, given, _, _ = socket.recv_fds(control, MOST_LINE, 1)
        except BlockingIOError:
            readable = asyncio.Event()
            loop.add_reader(own, readable.set)
            try:
                await readable.wait()
            finally:
                loop.remove_reader(own)
        else:
            for descriptor in given:
                os.set_inheritable(descriptor, False)
            return text, given
