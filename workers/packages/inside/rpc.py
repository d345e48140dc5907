"""One session with a server of the Model Context Protocol: a process of this one, spoken to in lines of JSON-RPC.

The server's function is called in a fork, so what it imports is there already. Written to the protocol rather than to
its SDK: the versions of that which servers need exclude each other. Source: the specification of 2025-06-18, of which
`initialize`, `tools/list`, `tools/call` and `ping` are spoken.
"""

import json
import os
import selectors
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from io import BufferedReader, BufferedWriter, FileIO, TextIOWrapper
from typing import Any, NoReturn

from .hosting import ends_with_parent
from .shapes import MOST_LINE

VERSION = "2025-06-18"
MOST_BYTES = 2**22
"""Read from a server while an answer is waited for; one that says more is broken."""
MOST_PAGES = 32
"""Of a list of tools."""
KEPT = 2000
"""Bytes of the error output of a server that has ended which say why."""
PING_S = 2.0
"""A server that has not answered a call in time is well if it answers this soon that it is there."""
LEAVE_S = 1.0
"""So long a server may take to end when its input does."""
NOT_KNOWN = -32601

Main = Callable[[], object]


class ServerBroke(Exception):
    """A server ended, or says what is no answer; the text says which."""


class NoAnswer(Exception):
    """A server has not answered in time."""


class RequestRefused(Exception):
    """A server answered with an error of the protocol."""


class ServerProcess:
    """A server's process, and what was asked of it."""

    def __init__(self, main: Main, command: Sequence[str]) -> None:
        self._pid, self._to, self._from, self._errors = _started(main, command)
        self._ended: int | None = None
        self._number = 0
        self._lines: deque[bytes] = deque()
        self._held, self._read = b"", 0
        """What was read and is no whole line yet, and how many bytes were read in all."""
        self._said, self._silent = b"", False
        """The end of its error output, and whether that was closed."""
        self.title = ""
        """Name and version that it says of itself."""

    def open(self, limit_s: float) -> None:
        """Begin the session. Raises ServerBroke, NoAnswer or RequestRefused."""
        hello = {
            "protocolVersion": VERSION,
            "capabilities": {},
            "clientInfo": {"name": "flexmarl", "version": "1"},
        }
        answer = self.request("initialize", hello, limit_s)
        about = answer.get("serverInfo")
        known = about if isinstance(about, dict) else {}
        self.title = " ".join(str(known[key]) for key in ("name", "version") if known.get(key))[:200]
        self._write({"method": "notifications/initialized"})

    def tools(self, limit_s: float) -> list[dict[str, Any]]:
        """Return the tools as they are listed. Raises ServerBroke, NoAnswer or RequestRefused."""
        found: list[dict[str, Any]] = []
        asked: dict[str, Any] = {}
        for _ in range(MOST_PAGES):
            page = self.request("tools/list", asked, limit_s)
            tools = page.get("tools")
            if not isinstance(tools, list) or not all(isinstance(one, dict) for one in tools):
                raise ServerBroke("garbage: its tools are not a list of objects")
            found += tools
            if not (cursor := page.get("nextCursor")):
                return found
            asked = {"cursor": cursor}
        raise ServerBroke(f"oversized: its list of tools has more than {MOST_PAGES} pages")

    def request(self, method: str, asked: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """Return the answer to a request. Raises ServerBroke, NoAnswer or RequestRefused."""
        self._number += 1
        number, until, before = self._number, time.monotonic() + limit_s, self._read
        self._write({"id": number, "method": method, "params": asked})
        while True:
            said = self._line(until, before)
            if "method" in said and "id" in said:
                self._answer(said)
            elif said.get("id") == number:
                break
        if "error" in said:
            error = said["error"]
            raise RequestRefused(str(error.get("message", error) if isinstance(error, dict) else error)[:KEPT])
        result = said.get("result")
        if not isinstance(result, dict):
            raise ServerBroke(f"garbage: its answer to {method} is not an object")
        return result

    def give_up(self) -> bool:
        """Say that the last request is not waited for any more; returns whether the server is well nevertheless."""
        late = {"requestId": self._number, "reason": "timeout"}
        try:
            self._write({"method": "notifications/cancelled", "params": late})
            self.request("ping", {}, PING_S)
        except NoAnswer:
            return False
        except RequestRefused:  # a server need not know it
            return True
        return True

    def close(self) -> None:
        """End its input, which asks it to end; kill it where it does not."""
        os.close(self._to)
        until = time.monotonic() + LEAVE_S
        while self._alive() and time.monotonic() < until:
            time.sleep(0.01)
        self.kill()
        os.close(self._from)
        os.close(self._errors)

    def kill(self) -> None:
        """End it now."""
        if self._alive():
            os.kill(self._pid, signal.SIGKILL)
            self._ended = os.waitpid(self._pid, 0)[1]

    def _alive(self) -> bool:
        if self._ended is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            self._ended = status if pid else None
        return self._ended is None

    def _answer(self, asked: dict[str, Any]) -> None:
        """Answer what a server asks: it is told that this is there, and of nothing else."""
        if asked["method"] == "ping":
            self._write({"id": asked["id"], "result": {}})
        else:
            refused = {"code": NOT_KNOWN, "message": f"{asked['method']} is not offered"}
            self._write({"id": asked["id"], "error": refused})

    def _write(self, said: dict[str, Any]) -> None:
        text = json.dumps({"jsonrpc": "2.0", **said}).encode() + b"\n"
        until = time.monotonic() + PING_S
        while text:
            try:
                text = text[os.write(self._to, text) :]
            except BlockingIOError:
                self._take(0.05)
                if time.monotonic() > until:
                    raise NoAnswer from None
            except BrokenPipeError:
                raise self._gone() from None

    def _line(self, until: float, before: int) -> dict[str, Any]:
        """Return the next message. Raises ServerBroke or NoAnswer."""
        while True:
            while self._lines:
                if (said := _message(self._lines.popleft())) is not None:
                    return said
            if len(self._held) > MOST_LINE:
                raise ServerBroke(f"oversized: a line of more than {MOST_LINE} bytes")
            if self._read - before > MOST_BYTES:
                raise ServerBroke(f"oversized: more than {MOST_BYTES} bytes without an answer")
            left = until - time.monotonic()
            if left <= 0:
                raise NoAnswer
            if not self._take(left):
                raise self._gone()

    def _take(self, wait_s: float) -> bool:
        """Read what the server says now; returns whether it may say more."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._from, selectors.EVENT_READ)
            if not self._silent:
                selector.register(self._errors, selectors.EVENT_READ)
            ready = {key.fd for key, _ in selector.select(wait_s)}
        if self._errors in ready:
            text = os.read(self._errors, 2**16)
            self._silent = not text
            self._said = (self._said + text)[-KEPT:]
        if self._from not in ready:
            return True
        text = os.read(self._from, 2**16)
        self._read += len(text)
        *whole, self._held = (self._held + text).split(b"\n")
        self._lines.extend(whole)
        return bool(text)

    def _gone(self) -> ServerBroke:
        """Return why a server has ended, by its code and what it wrote last."""
        until = time.monotonic() + LEAVE_S
        while self._alive() and time.monotonic() < until:
            time.sleep(0.01)
        if not self._silent:
            os.set_blocking(self._errors, False)
            with suppress(BlockingIOError):
                self._said = (self._said + os.read(self._errors, 2**16))[-KEPT:]
        lines = [line.strip() for line in self._said.decode(errors="replace").splitlines() if line.strip()]
        how = "closed its output" if self._alive() else _how(self._ended or 0)
        return ServerBroke(f"its server {how}{f': {lines[-1][:300]}' if lines else ''}")


def _message(text: bytes) -> dict[str, Any] | None:
    """Return a message of JSON-RPC; None for what is none, which clients of the protocol skip."""
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return said if isinstance(said, dict) else None


def _how(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"


def _started(main: Main, command: Sequence[str]) -> tuple[int, int, int, int]:
    """Fork the server; returns its number, and descriptors of its input, output and error output."""
    asked, to = os.pipe()
    said, answers = os.pipe()
    errors, wrong = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if not pid:
        for number, own in enumerate((asked, answers, wrong)):
            os.dup2(own, number)
        _run(main, command, parent)
    for descriptor in (asked, answers, wrong):
        os.close(descriptor)
    os.set_blocking(to, False)
    return pid, to, said, errors


def _run(main: Main, command: Sequence[str], parent: int) -> NoReturn:
    """Be the server: what its console script does, and end."""
    status = 1
    try:
        ends_with_parent()
        os.closerange(3, 4096)
        # What was made of other files remembers what these could do.
        sys.stdin = TextIOWrapper(BufferedReader(FileIO(0, "r", closefd=False)), "utf-8")
        sys.stdout = TextIOWrapper(BufferedWriter(FileIO(1, "w", closefd=False)), "utf-8")
        sys.stderr = TextIOWrapper(
            BufferedWriter(FileIO(2, "w", closefd=False)), "utf-8", "replace", write_through=True
        )
        sys.argv[:] = command
        if os.getppid() == parent:
            code = main()
            status = code if isinstance(code, int) else 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            sys.stderr.write(end.code)
    except BaseException as error:  # foreign code: what it raises is why it ended
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            # Never back into what this process was forked from.
            os._exit(status & 0xFF)
