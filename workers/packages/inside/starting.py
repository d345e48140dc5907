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
from collections.abc import Mapping, Sequence
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    job, how = confined(arguments[0], loopback=True)
    try:
        folder = Path(tempfile.mkdtemp(prefix="flexmarl-sessions-"))
        door = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
    except OSError as error:
        control.sendall(_line(broke(error)))
        sys.exit(1)
    for name in CLIENTS:
        if installed(name):
            with contextlib.suppress(Exception):  # a program that needs it will say what is wrong with it
                import_module(name)
    if job.adapter:
        verifiers_environments.prepare(job)
    gc.freeze()
    with door:
        socket.send_fds(control, [_line({"type": "hosting", "sandbox": how})], [door.fileno()])
    serve(control, partial(watch, job=job, folder=folder), lambda: shutil.rmtree(folder, ignore_errors=True))


def _line(said: Mapping[str, Any]) -> bytes:
    return json.dumps(said).encode("utf-8", "replace") + b"\n"


def watch(link: socket.socket, job: Job, folder: Path) -> None:
    """Have one session played."""
    link.sendall(_line({"type": "born", "pid": os.getpid()}))
    _remove_left(folder)
    own = folder / str(os.getpid())
    try:
        order, heard = _first(link)
        if order:
            WatchedProgram(link.fileno(), json.loads(order), heard, job, own).follow()
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
        self._folder, self._job = folder, job
        self._output = b""
        self._results = b""
        self._reason: str | None = None
        """Why it earned nothing, empty where it may have; None while it runs."""
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
            _become(order, job, folder / "workspace", writing, telling)
        for descriptor in (writing, telling):
            os.close(descriptor)
        self._reading: dict[int, str] = {line: "order", woken: "end", reading: "output", told: "result"}
        for descriptor in (woken, reading, told):
            os.set_blocking(descriptor, False)

    def follow(self) -> None:
        """Tell the worker what becomes of it, until the session is over."""
        going = self._obey(b"")
        while going:
            ready, _, _ = select.select(list(self._reading), [], [])
            for descriptor in ready:
                if self._reading.get(descriptor) != "order":
                    self._take(descriptor)
            if self._reason is None and self._ended():
                self._tell({"type": "ran", "reason": self._reason, "output": self._text()})
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
                    self._tell({"type": "began"})
        if not more:
            del self._reading[descriptor]

    def _ended(self) -> bool:
        """Tell whether the program has ended, and note how."""
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if not pid:
            return False
        self._drain()
        code = os.waitstatus_to_exitcode(status)
        if (raised := self._result().get("raised")) is not None:
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
            if json.loads(text)["type"] == "close":
                self._close()
                return False
            try:
                self._tell({"type": "earned", "report": self._earned()})
            except Exception as error:  # whatever the program made of its account
                self._tell(broke(error))
        return True

    def _earned(self) -> Any:
        """Return what the program earned. Raises NoReward where it does not say, and NotFinite."""
        if len(self._results) > MOST_LINE:
            raise TooLarge(f"oversized: what it returned has more than {MOST_LINE} bytes")
        earned = self._result().get("earned")
        if earned is None:
            file = self._folder / "workspace" / REWARD_FILE
            try:
                with file.open("rb") as written:
                    earned = json.loads(written.read(MOST_LINE))
            except FileNotFoundError:
                raise NoReward(f"none: it returned nothing and wrote no {REWARD_FILE}") from None
            except ValueError as error:
                raise NoReward(f"none: {REWARD_FILE} is not JSON: {error}") from None
        try:
            json.dumps(earned, allow_nan=False)
        except ValueError:
            raise NotFinite("nonfinite: a reward is not a finite number") from None
        return earned if isinstance(earned, dict) else {"reward": earned}

    def _close(self) -> None:
        if self._reason is None:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._drain()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._tell({"type": "closed", "output": self._text()})

    def _text(self) -> str:
        return self._output.decode(errors="replace")

    def _tell(self, said: Mapping[str, Any]) -> None:
        text = _line(said)
        while text:
            text = text[os.write(self._line, text) :]


def _become(order: Mapping[str, Any], job: Job, workspace: Path, output: int, telling: int) -> NoReturn:
    """Be the program, with nothing of the watcher's left."""
    status = 1
    try:
        for taken in (1, 2):
            os.dup2(output, taken)
        os.close(output)
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        workspace.mkdir(parents=True)
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
