"""The bridge to a Ray cluster: a process under an interpreter that has the cluster's Ray, started when it is needed.

Invariants. Every request has a deadline; a bridge that misses one is killed. One that ended is started again after a
pause that doubles to `LONGEST_PAUSE_S`, and until then its last words are the answer. It gets no secret of the
installation, and ends with this process, since it reads from it.
"""

import itertools
import json
import os
import queue
import subprocess
import threading
import time
from collections import deque
from pathlib import Path
from typing import IO, Any

from django.conf import settings

from flexmarl.controlplane.inventory.providers.base import ProviderRefused, ProviderSilent
from flexmarl.host.exits import last_words

BRIDGE = Path(__file__).with_name("ray_bridge.py")
STARTS_S = 45.0
ANSWERS_S = 20.0
SHOWN_S = 8.0
"""How long somebody who looks at a page waits, for a bridge that is started as well."""
LONGEST_PAUSE_S = 30.0
WITHOUT = "FLEXMARL_RAY_PYTHON is not set in the process that asks for hosts"
INSTALL = (
    "Install Ray at the cluster's version under the cluster's version of Python (requirements/ray.txt has the tested "
    "one), set FLEXMARL_RAY_PYTHON to that interpreter, and restart manage.py provide."
)
REACH = (
    "Check that the cluster runs, and the pool's address: HOST:PORT of its head where this machine is one of its "
    "nodes, ray://HOST:10001 elsewhere."
)


class RayConnection:
    """One cluster, as this process speaks to it. Safe between threads; one request at a time."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str] = queue.Queue()
        self._said: deque[str] = deque(maxlen=50)
        self._numbers = itertools.count(1)
        self._pause_s = 0.0
        self._next_start = 0.0
        self._why: ProviderRefused | ProviderSilent | None = None
        """Why there is no bridge now."""

    def call(self, asked: str, /, most_s: float = STARTS_S, **given: Any) -> Any:
        """Ask the cluster. Raises ProviderRefused for what must be changed first, ProviderSilent for no answer.

        The start of a bridge and the answer take `most_s` each, and the answer no longer than `ANSWERS_S`.
        """
        with self._lock:
            self._start(most_s)
            number = next(self._numbers)
            answer = self._exchange({"id": number, "call": asked, "given": given}, min(most_s, ANSWERS_S))
        if "refused" in answer:
            raise ProviderRefused(answer["refused"], "Change the pool's options; the dry run shows what is asked for.")
        if "silent" in answer:
            raise ProviderSilent(f"Ray at {self._address}: {answer['silent']}", REACH)
        return answer["result"]

    def close(self) -> None:
        """End the bridge; the hosts go on."""
        with self._lock:
            self._end()

    def _start(self, within_s: float) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        ended, self._process = self._process, None
        if ended is not None and ended.returncode != 0:
            self._fail(ProviderSilent(f"the bridge to Ray ended: {self._words(ended.returncode)}", REACH))
        if self._why is not None and time.monotonic() < self._next_start:
            raise self._why
        python = settings.RAY_PYTHON
        if not python:
            raise ProviderRefused(WITHOUT, INSTALL)
        if not os.access(python, os.X_OK):
            raise ProviderRefused(f"FLEXMARL_RAY_PYTHON: {python} cannot be run", INSTALL)
        self._spawn(python)
        answer = self._exchange(None, within_s)
        if "ready" not in answer:
            self._end()
            raise self._fail(_not_ready(self._address, answer))
        self._why, self._pause_s = None, 0.0

    def _spawn(self, python: str) -> None:
        environment = {**settings.COMMAND_ENVIRONMENT, **settings.RAY_ENVIRONMENT, "RAY_USAGE_STATS_ENABLED": "0"}
        environment.pop("RAY_ADDRESS", None)
        process = subprocess.Popen(
            [python, "-I", str(BRIDGE), self._address],
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._process, self._lines, self._said = process, queue.Queue(), deque(maxlen=50)
        for source, keep in ((process.stdout, self._lines.put), (process.stderr, self._said.append)):
            assert source is not None
            threading.Thread(target=_follow, args=(source, keep), daemon=True).start()

    def _exchange(self, request: dict[str, Any] | None, within_s: float) -> dict[str, Any]:
        """Send a request and return its answer; None: wait for the line with which a bridge begins."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        try:
            if request is not None:
                process.stdin.write(json.dumps(request) + "\n")
                process.stdin.flush()
            line = self._lines.get(timeout=within_s)
        except (queue.Empty, OSError) as error:
            self._end()
            late = isinstance(error, queue.Empty)
            words = f"has not answered for {within_s:.0f} s" if late else f"is gone ({self._words(process.returncode)})"
            raise self._fail(ProviderSilent(f"Ray at {self._address} {words}", REACH)) from None
        if not line:
            self._end()
            words = self._words(process.returncode)
            raise self._fail(ProviderSilent(f"the bridge to Ray at {self._address} ended: {words}", REACH))
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _fail(self, why: ProviderRefused | ProviderSilent) -> ProviderRefused | ProviderSilent:
        """Keep why there is no bridge, and when one is started again."""
        self._pause_s = min(LONGEST_PAUSE_S, 2.0 * self._pause_s or 1.0)
        self._why, self._next_start = why, time.monotonic() + self._pause_s
        return why

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _words(self, status: int) -> str:
        return last_words("".join(self._said), status)


def _not_ready(address: str, answer: dict[str, Any]) -> ProviderRefused | ProviderSilent:
    words = answer.get("words", "")
    if answer.get("failed") == "missing":
        return ProviderRefused(f"the interpreter in FLEXMARL_RAY_PYTHON has no Ray: {words}", INSTALL)
    if answer.get("failed") == "versions":
        return ProviderRefused(words, INSTALL)
    return ProviderSilent(f"no Ray cluster answers at {address}: {words}", REACH)


def _follow(source: IO[str], keep: Any) -> None:
    for line in source:
        keep(line)
    keep("")  # it has ended


_connections: dict[str, RayConnection] = {}
_guard = threading.Lock()


def connection_to(address: str) -> RayConnection:
    """Return this process's connection to a cluster."""
    with _guard:
        return _connections.setdefault(address, RayConnection(address))
