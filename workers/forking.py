"""A device worker's side of `workers.fork_server`: one is kept running, and children are forked from it.

Invariants: what was forked is killed with the server (kernel) and then counts as ended by SIGKILL, so a lost server
looks like lost children, and another is started. Where none is ready, `fork` says so at once and the caller starts an
ordinary process: this is about speed alone. A child that nobody waits for any more finds its standard input closed, and
ends. The server belongs to a thread that lives as long as this process, since the kernel ties a process to the thread
that started it.
"""

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import IO

import msgspec
import psutil
import structlog

from workers.fork_server import MESSAGE_BYTES, Forked, ForkedEnd, ForkRequest, ForkServerReady

log = structlog.get_logger(__name__)

FORKED_S = 3.0
"""A server does nothing but fork, which takes some hundredths of a second."""
PAUSE_S = 1.0
"""Between a server that ended and the next."""
IDLE_ENDS = 3
"""So many servers in a row that ended before their first child: there will be no other."""
GONE_S = 5.0
_SAID = msgspec.json.Decoder(ForkServerReady | Forked | ForkedEnd)


class NoForkServer(RuntimeError):
    """None answers; an ordinary process does the same, some seconds later."""


class ForkedChild:
    """A child with its two pipes, as `subprocess.Popen` describes one."""

    def __init__(self, pid: int, code: "Future[int]", stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self.pid = pid
        self.stdin: IO[bytes] | None = stdin
        self.stdout: IO[bytes] | None = stdout
        self._code = code

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status. Raises subprocess.TimeoutExpired."""
        try:
            return self._code.result(timeout)
        except TimeoutError:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0) from None


class ServerLife:
    """One server: what it was asked for, and the children whose end it has not told."""

    def __init__(self, connection: socket.socket, answer_s: float) -> None:
        self._connection = connection
        self._answer_s = answer_s
        self._lock = threading.Lock()
        self._asked: dict[int, Future[tuple[int, Future[int]]]] = {}
        self._children: dict[int, Future[int]] = {}
        self._over = False
        self.forked = 0

    def ask(self, request: ForkRequest, streams: list[int]) -> "tuple[int, Future[int]]":
        """Return a child's process id, and its exit status to come. Raises NoForkServer."""
        answer: Future[tuple[int, Future[int]]] = Future()
        with self._lock:
            if self._over:
                raise NoForkServer("the fork server ended")
            self._asked[request.no] = answer
        try:
            socket.send_fds(self._connection, [msgspec.json.encode(request)], streams)
            return answer.result(self._answer_s)
        except TimeoutError:
            raise NoForkServer(f"the fork server did not answer within {self._answer_s:.0f} s") from None
        except OSError as error:
            raise NoForkServer(f"the fork server takes no request: {error}") from error
        finally:
            with self._lock:
                self._asked.pop(request.no, None)

    def hear(self, imported: Callable[[], None]) -> None:
        """Take what the server says until it ends. `imported` is called once it answers."""
        while said := self._said():
            match _SAID.decode(said):
                case ForkServerReady():
                    imported()
                case Forked(no, pid):
                    self.forked += 1
                    code = self._children[pid] = Future()
                    with self._lock:
                        answer = self._asked.get(no)
                    if answer is not None:  # else nobody waits for it any more
                        answer.set_result((pid, code))
                case ForkedEnd(pid, code):
                    self._children.pop(pid).set_result(code)

    def end(self) -> None:
        """Tell everybody who waits that the server is gone, and what it forked with it."""
        with self._lock:
            self._over = True
            waiting = list(self._asked.values())
        for answer in waiting:
            answer.set_exception(NoForkServer("the fork server ended"))
        for pid, code in self._children.items():
            _kill(pid)
            code.set_result(-signal.SIGKILL)

    def _said(self) -> bytes:
        try:
            return self._connection.recv(MESSAGE_BYTES)
        except OSError:
            return b""


class ForkServerThread(threading.Thread):
    """Keeps a server running. `fork` may be called from any thread."""

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str], answer_s: float = FORKED_S) -> None:
        """`modules`: what the server imports. `environment`: the server's; it settles for all children what libraries
        read when they are imported. `answer_s`: how long a fork may take."""
        super().__init__(name="fork-server", daemon=True)
        self._modules = tuple(modules)
        self._answer_s = answer_s
        self._environment = {**environment, "OPENBLAS_NUM_THREADS": "1"}  # its threads would begin with the import
        self._numbers = itertools.count(1)
        self._life: ServerLife | None = None
        """The server that is ready."""
        self._given_up = False
        self._changed = threading.Condition()

    def settled(self, timeout_s: float) -> bool:
        """Wait until a server is ready, or none will ever be; False when neither has come."""
        with self._changed:
            return self._changed.wait_for(lambda: self._life is not None or self._given_up, timeout_s)

    def fork(self, module: str, environment: Mapping[str, str], stderr: int) -> ForkedChild:
        """Start a module as a child. Raises NoForkServer."""
        life = self._life
        if life is None:
            raise NoForkServer("no fork server is ready")
        request = ForkRequest(next(self._numbers), module, dict(environment))
        theirs_in, ours_in = os.pipe()
        ours_out, theirs_out = os.pipe()
        stdin, stdout = os.fdopen(ours_in, "wb", 0), os.fdopen(ours_out, "rb")
        try:
            pid, code = life.ask(request, [theirs_in, theirs_out, stderr])
        except NoForkServer:
            stdin.close()
            stdout.close()
            raise
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        return ForkedChild(pid, code, stdin, stdout)

    def run(self) -> None:
        """Keep one server at a time, until some cannot even begin."""
        idle = 0
        while idle < IDLE_ENDS:
            life, code = self._one_life()
            idle = 0 if life.forked else idle + 1
            log.warning("the fork server ended", code=code)
            time.sleep(PAUSE_S)
        log.error("no fork server can run here; children are started as ordinary processes, seconds later")
        self._show(None, given_up=True)

    def _one_life(self) -> tuple[ServerLife, int]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            with theirs:
                process = self._start(theirs)
            life = ServerLife(ours, self._answer_s)
            life.hear(lambda: self._show(life))
            self._show(None)
            process.kill()
            code = process.wait()
            life.end()
        return life, code

    def _start(self, theirs: socket.socket) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [sys.executable, "-m", "workers.adopted", "workers.fork_server", str(theirs.fileno()), *self._modules],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            env=self._environment,
            start_new_session=True,
        )

    def _show(self, life: ServerLife | None, given_up: bool = False) -> None:
        with self._changed:
            self._life, self._given_up = life, given_up
            self._changed.notify_all()


def _kill(pid: int) -> None:
    """Kill a process whose server is gone, and wait until it is."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
        psutil.Process(pid).wait(GONE_S)
