"""Starts agent programs: forks a watcher for each session, which starts the program in a process of its own.

Invariants. A session has a fresh process and a fresh folder, both gone when it is over. The program has no end of the
line to the worker: what it printed, how it ended and what it earned is said by its watcher. Of what it prints the end
alone is kept. Calls go to a socket that listens in the name space of the programs, and that the worker accepts at.
"""

import contextlib
import gc
import json
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from . import verifiers_environments
from .finding import installed
from .hosting import serve
from .jobs import Job, confined
from .sessions import REWARD_FILE, run
from .shapes import MOST_LINE, NoReward, NotFinite, TooLarge, broke

CLIENTS = ("openai", "anthropic")
"""Modules that most programs import, which takes longer than all the rest: imported once, by the process that forks.
They read their settings when a client is made."""
BACKLOG = 512
MOST_OUTPUT = 4000
"""Bytes that are kept of what a program prints."""
CHUNK = 2**16


def main(arguments: Sequence[str]) -> None:
    """Serve orders until the worker hangs up."""
    control = socket.socket(fileno=int(arguments[1]))
    job, how, folder, door = begun(control, arguments)
    for name in CLIENTS:
        if installed(name):
            with contextlib.suppress(Exception):  # a program that needs it will say what is wrong with it
                import_module(name)
    if job.adapter:
        verifiers_environments.prepare(job)
    gc.freeze()
    ready(control, how, door)
    serve(control, partial(watch, job=job, folder=folder), lambda: shutil.rmtree(folder, ignore_errors=True))


def begun(control: socket.socket, arguments: Sequence[str]) -> tuple[Job, str, Path, socket.socket]:
    """Return the job of this process, how it is confined, a folder for sessions, and a socket for their calls."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    read, how = confined(arguments)
    try:
        folder = Path(tempfile.mkdtemp(prefix="flexmarl-sessions-"))
        door = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
    except OSError as error:
        control.sendall(written(broke(error)))
        sys.exit(1)
    return read, how, folder, door


def ready(control: socket.socket, how: str, door: socket.socket) -> None:
    """Say that processes can be had, and hand over the socket for calls."""
    with door:
        socket.send_fds(control, [written({"type": "hosting", "sandbox": how})], [door.fileno()])


def written(said: Mapping[str, Any]) -> bytes:
    """Return what is said as a line."""
    return json.dumps(said).encode("utf-8", "replace") + b"\n"


def watch(link: socket.socket, job: Job, folder: Path, kind: "Callable[..., WatchedProgram] | None" = None) -> None:
    """Have one session played, by a function or another kind of program."""
    link.sendall(written({"type": "born", "pid": os.getpid()}))
    _remove_left(folder)
    own = folder / str(os.getpid())
    try:
        order, heard = _first(link)
        if order:
            (kind or WatchedProgram)(link.fileno(), json.loads(order), heard, job, own).follow()
    finally:
        shutil.rmtree(own, ignore_errors=True)


def _first(link: socket.socket) -> tuple[bytes, bytes]:
    """Read the first order; returns it, empty where there is none, and what came behind it."""
    heard = b""
    while b"\n" not in heard:
        if not (more := link.recv(CHUNK)):
            return b"", b""
        heard += more
    order, _, behind = heard.partition(b"\n")
    return order, behind


def _remove_left(folder: Path) -> None:
    """Remove the folders of sessions whose watcher was killed."""
    for one in folder.iterdir():
        try:
            os.kill(int(one.name), 0)
        except ProcessLookupError:
            shutil.rmtree(one, ignore_errors=True)


class WatchedProgram:
    """A program that runs, from its watcher's side."""

    def __init__(self, line: int, order: Mapping[str, Any], heard: bytes, job: Job, folder: Path) -> None:
        """`line`: the socket to the worker, of which `heard` was read behind the order."""
        self._line, self._heard = line, heard
        self._order, self._folder, self._job = order, folder, job
        self._output = b""
        self._results = b""
        self._reason: str | None = None
        """Why it earned nothing, empty where it may have; None while it runs."""
        self._status: int | None = None
        """How its process ended; None where it never began, or said itself what it raised."""
        self.prepare()
        woken, self._woken = os.pipe()
        os.set_blocking(self._woken, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)
        reading, writing = os.pipe()
        told, telling = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            for descriptor in (line, woken, self._woken, reading, told):
                os.close(descriptor)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self.become(writing, telling)
        for descriptor in (writing, telling):
            os.close(descriptor)
        self._reading: dict[int, str] = {line: "order", woken: "end", reading: "output", told: "result"}
        for descriptor in (woken, reading, told):
            os.set_blocking(descriptor, False)

    @property
    def workspace(self) -> Path:
        """Folder in which it begins."""
        return self._folder / "workspace"

    def prepare(self) -> None:
        """Make the folder in which it begins."""
        self.workspace.mkdir(parents=True)

    def become(self, output: int, telling: int) -> NoReturn:
        """Be the program, in the process that was forked for it."""
        _become(self._order, self._job, self.workspace, output, telling)

    def left(self) -> None:
        """Heed that the program has ended."""

    def follow(self) -> None:
        """Tell the worker what becomes of it, until the session is over."""
        going = self._obey(b"")
        while going:
            ready, _, _ = select.select(list(self._reading), [], [])
            for descriptor in ready:
                if self._reading.get(descriptor) != "order":
                    self._take(descriptor)
            if self._reason is None and self._ended():
                self.tell({"type": "ran", "reason": self._reason, "output": self._text(), "status": self._status})
            if self._line in ready:
                more = os.read(self._line, CHUNK)
                going = bool(more) and self._obey(more)

    # What the program does ----------------------------------------------------------------------------------------

    def _take(self, descriptor: int) -> None:
        """Read what there is of what the program says."""
        try:
            more = os.read(descriptor, CHUNK)
        except BlockingIOError:
            return
        match self._reading[descriptor]:
            case "output":
                self._output = (self._output + more)[-MOST_OUTPUT:]
            case "result":
                began = b'"began"' in self._results
                self._results = (self._results + more)[: MOST_LINE + 1]
                if not began and b'"began"' in self._results:
                    self.tell({"type": "began"})
        if not more:
            del self._reading[descriptor]

    def _ended(self) -> bool:
        """Tell whether the program has ended, and note how."""
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if not pid:
            return False
        self.left()
        self._drain()
        code = os.waitstatus_to_exitcode(status)
        self._status = code
        if (raised := self._result().get("raised")) is not None:
            self._status = None
            self._reason = str(raised)[:500]
        elif code < 0:
            self._reason = f"ended by signal {-code} ({signal.strsignal(-code)})"
        else:
            self._reason = f"exit code {code}" if code else ""
        return True

    def _drain(self) -> None:
        for descriptor, what in tuple(self._reading.items()):
            while what in ("output", "result") and select.select([descriptor], [], [], 0)[0]:
                self._take(descriptor)
                if descriptor not in self._reading:
                    break

    def _result(self) -> dict[str, Any]:
        """Return what the program said last of itself; nothing where that cannot be read."""
        try:
            said = [json.loads(line) for line in self._results.splitlines()]
        except ValueError:
            return {}
        return said[-1] if said and isinstance(said[-1], dict) else {}

    # What the worker asks -----------------------------------------------------------------------------------------

    def _obey(self, more: bytes) -> bool:
        """Carry out orders; False: that was the last one."""
        self._heard += more
        *orders, self._heard = self._heard.split(b"\n")
        for text in orders:
            order = json.loads(text)
            if order["type"] == "close":
                self._close()
                return False
            try:
                self.tell(self.answer(order))
            except Exception as error:  # whatever the program made of its account
                self.tell(broke(error))
        return True

    def answer(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out an order about a program that has ended. Raises what names why it cannot be."""
        return {"type": "earned", "report": self._earned()}

    def _earned(self) -> Any:
        """Return what the program earned. Raises NoReward where it does not say, and NotFinite."""
        if len(self._results) > MOST_LINE:
            raise TooLarge(f"oversized: what it returned has more than {MOST_LINE} bytes")
        earned = self._result().get("earned")
        if earned is None:
            earned = rewarded(self.workspace)
            if earned is None:
                raise NoReward(f"none: it returned nothing and wrote no {REWARD_FILE}")
        return report_of(earned)

    def _close(self) -> None:
        if self._reason is None:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self.left()
            self._drain()
        told = self.last()
        shutil.rmtree(self._folder, ignore_errors=True)
        self.tell({"type": "closed", "output": self._text(), **told})

    def last(self) -> dict[str, Any]:
        """Return what else is said at the end, before the folder goes."""
        return {}

    def _text(self) -> str:
        return self._output.decode(errors="replace")

    def tell(self, said: Mapping[str, Any]) -> None:
        """Say something to the worker."""
        text = written(said)
        while text:
            text = text[os.write(self._line, text) :]


def rewarded(workspace: Path) -> Any:
    """Return what the reward file of a workspace says; None where there is none. Raises NoReward."""
    try:
        with (workspace / REWARD_FILE).open("rb") as file:
            return json.loads(file.read(MOST_LINE))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise NoReward(f"none: {REWARD_FILE} is not JSON: {error}") from None


def report_of(earned: Any) -> dict[str, Any]:
    """Return what was earned as a report. Raises NotFinite."""
    try:
        json.dumps(earned, allow_nan=False)
    except ValueError:
        raise NotFinite("nonfinite: a reward is not a finite number") from None
    return earned if isinstance(earned, dict) else {"reward": earned}


def _become(order: Mapping[str, Any], job: Job, workspace: Path, output: int, telling: int) -> NoReturn:
    """Be the program, with nothing of the watcher's left."""
    status = 1
    try:
        for taken in (1, 2):
            os.dup2(output, taken)
        os.close(output)
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        run(order, job, workspace, lambda said: _said(telling, said))
        status = 0
    except SystemExit as ended:
        status = _code(ended)
    except BaseException:  # the program's own: its output says what it was
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _said(telling: int, said: Mapping[str, Any]) -> None:
    # Numbers of numpy and torch are numbers.
    text = json.dumps(said, default=float).encode() + b"\n"
    while text:
        text = text[os.write(telling, text) :]


def _code(ended: SystemExit) -> int:
    if ended.code is None or isinstance(ended.code, int):
        return (ended.code or 0) & 0xFF
    sys.stderr.write(f"{ended.code}\n")
    return 1
