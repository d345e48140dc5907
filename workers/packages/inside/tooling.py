"""Holds the sessions of one server of tools: imports it, then forks a process for each episode that calls its tools.

Orders and answers are lines of JSON, as `workers.rollout.isolation.lines` names them: `open` begins a session, `calls`
makes calls in it, `close` ends it. What an agent can do something about is a result that says so; a server that is
broken breaks the episode.
"""

import gc
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import IO, Any

from .hosting import on_lines, serve
from .jobs import Job, confined
from .rpc import Main, NoAnswer, RequestRefused, ServerBroke, ServerProcess
from .servers import program
from .shapes import broke, line


def main(arguments: Sequence[str]) -> None:
    """Serve orders until the worker hangs up."""
    control = socket.socket(fileno=int(arguments[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    job, how = confined(arguments)
    try:
        server = program(job.entry)
    except BaseException as error:  # foreign code: whatever importing it raises is the reason of every episode
        control.sendall(line(broke(error)))
        sys.exit(1)
    gc.freeze()
    control.sendall(line({"type": "hosting", "sandbox": how}))
    serve(control, on_lines(partial(hold, main=server, job=job)))


def hold(stream: IO[bytes], main: Main, job: Job) -> None:
    """Hold one session after the other until the worker hangs up."""
    stream.write(line({"type": "born", "pid": os.getpid()}))
    stream.flush()
    session = HeldSession(main, job)
    for text in stream:
        try:
            written = line(session.answer(json.loads(text)))
        except ServerBroke as error:
            written = line(broken(str(error)))
        except NoAnswer:
            written = line(broken(f"it did not begin a session within {job.options['setup_timeout_s']:g} s"))
        except RequestRefused as error:
            written = line(broken(f"it refused a session: {error}"))
        stream.write(written)
        stream.flush()


def broken(reason: str) -> dict[str, Any]:
    """Return the answer that says that a server is broken."""
    return {"type": "broke", "reason": reason}


class HeldSession:
    """The session of one episode."""

    def __init__(self, main: Main, job: Job) -> None:
        self._main, self._job = main, job
        self._server: ServerProcess | None = None

    def answer(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out an order. Raises ServerBroke, NoAnswer or RequestRefused."""
        match order["type"]:
            case "open":
                self._open()
                return {"type": "results", "results": []}
            case "calls":
                return {"type": "results", "results": [self._called(call) for call in order["calls"]]}
        self._close()
        return {"type": "closed"}

    def _open(self) -> ServerProcess:
        self._close()
        server = self._server = ServerProcess(self._main, [self._job.name, *self._job.options["arguments"]])
        server.open(self._job.options["setup_timeout_s"])
        return server

    def _close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def _called(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """Make a call; what it comes to is for the agent, unless the server is broken."""
        server, limit = self._server, self._job.options["call_timeout_s"]
        if server is None:
            raise ServerBroke("no session was begun")
        asked = {"name": call["name"], "arguments": call.get("arguments", {})}
        try:
            said = server.request("tools/call", asked, limit)
        except RequestRefused as refused:
            return self._result(str(refused), failed=True)
        except NoAnswer:
            if server.give_up():
                return self._result(f"no answer within {limit:g} s", failed=True)
            server.kill()
            self._open()
            told = f"no answer within {limit:g} s; its session was ended, and a new one began"
            return self._result(told, failed=True)
        return self._result(text_of(said), failed=bool(said.get("isError")))

    def _result(self, text: str, *, failed: bool) -> dict[str, Any]:
        most = self._job.options["result_characters"]
        return {"text": text[:most], "characters": len(text), "failed": failed}


def text_of(said: Mapping[str, Any]) -> str:
    """Return what a result says in words. Raises ServerBroke for what is none."""
    content = said.get("content", [])
    if not isinstance(content, list) or not all(isinstance(one, dict) for one in content):
        raise ServerBroke("garbage: the content of a result is not a list of objects")
    words = [_words(one) for one in content]
    if not words and "structuredContent" in said:
        words = [json.dumps(said["structuredContent"], ensure_ascii=False)]
    return "\n".join(words)


def _words(one: Mapping[str, Any]) -> str:
    kind = one.get("type")
    if kind == "text":
        return str(one.get("text", ""))
    held = one.get("resource")
    if kind == "resource" and isinstance(held, dict) and "text" in held:
        return str(held["text"])
    if kind == "resource_link":
        return str(one.get("uri", ""))
    return f"[{kind} {one.get('mimeType', '')}, which cannot be read]".replace(" ,", ",")
