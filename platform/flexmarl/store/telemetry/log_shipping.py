"""Carries log lines of this process to the store, from a thread of its own.

Invariants: `offer` never blocks and never raises, whatever the database does; what does not fit into the bounded queue
is dropped and counted, and the count becomes a line once the database answers. A secret never leaves the process: the
values of fields named like one, and passwords inside addresses, are replaced before a line is queued, and so are the
paths of this host.
"""

import queue
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping

import psycopg

from flexmarl.store.connection import NOTICED, bound
from flexmarl.store.server_paths import without_paths
from flexmarl.store.telemetry import logs
from flexmarl.store.telemetry.logs import LogLine

QUEUE = 10_000
BATCH = 500
FLUSH_S = 0.5
RETRY_S = 2.0
STATEMENT_MS = 3000
TRIM_EVERY = 2000
"""Lines of a run between two looks at how many there are."""
HIDDEN = "hidden"
FIELD_LIMIT = 2000
_SECRET = re.compile(r"secret|token(?!s)|passw|authori|credential|api_?key|cluster_?key|cookie", re.IGNORECASE)
_IN_ADDRESS = re.compile(r"(://[^\s:/@]*):[^\s@/]+@")
_BEARER = re.compile(r"(?i)\b(bearer\s+)\S+")
_LEVELS = {"debug": "debug", "info": "info", "warning": "warning", "warn": "warning", "error": "error",
           "exception": "error", "critical": "error"}  # fmt: skip
_OWN = frozenset(
    ("event", "level", "timestamp", "run_id", "process", "component", "node", "agent", "policy", "logger", "driver")
)
"""Members of a line that have a column, or say nothing to people."""


class LogShipper:
    """One per process. `start` it once; `stop` gives it a moment to write the rest."""

    def __init__(
        self,
        url: str | Callable[[], psycopg.Connection],
        component: str,
        node: str = "",
        *,
        skip: frozenset[str] = frozenset(),
    ) -> None:
        """`url`: of the database, or what opens the way to it."""
        self.dropped = 0
        self._url, self._component, self._node, self._skip = url, component, node, skip
        self._queue: queue.Queue[LogLine] = queue.Queue(QUEUE)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log-shipping", daemon=True)
        self._written: dict[int, int] = {}
        self._told = 0

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self, wait_s: float = 1.0) -> None:
        """Write what is queued, for at most `wait_s`."""
        self._stopping.set()
        self._thread.join(wait_s)

    def processor(self, logger: object, method: str, event: MutableMapping[str, object]) -> MutableMapping[str, object]:
        """Take a copy of a structlog line that names a run; the line itself goes on unchanged."""
        self.offer_event(event, str(event.get("level", method)))
        return event

    def offer_event(self, event: Mapping[str, object], level: str, **defaults: str) -> None:
        """Queue a structured line. One without a run stays in the process's own log."""
        run_id = event.get("run_id")
        if not isinstance(run_id, int) or isinstance(run_id, bool) or run_id <= 0 or event.get("event") in self._skip:
            return
        fields = {name: _told(name, value) for name, value in event.items() if name not in _OWN}
        if "exc_info" in fields:
            fields["exc_info"] = _short(event["exc_info"])
        line = LogLine(
            run_id,
            time.time(),
            _LEVELS.get(level, "info"),
            defaults.get("component", self._component),
            redact(str(event.get("event", ""))),
            str(event.get("agent") or event.get("policy") or defaults.get("agent", "")),
            str(event.get("node") or defaults.get("node") or self._node),
            fields,
        )
        self.offer(line)

    def offer(self, line: LogLine) -> None:
        """Queue a line, or count it as dropped."""
        try:
            self._queue.put_nowait(line)
        except queue.Full:
            self.dropped += 1

    # Thread ----------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        conn: psycopg.Connection | None = None
        batch: list[LogLine] = []
        while True:
            stopping = self._stopping.is_set()
            batch = batch or self._take(0.0 if stopping else FLUSH_S)
            if not batch:
                if stopping:
                    break
                continue
            try:
                conn = conn or self._connect()
                self._write(conn, batch)
                batch = []
            except psycopg.errors.LockNotAvailable:
                self._stopping.wait(0.1)  # another writer of this run is slow: try again, the queue is the limit
            except psycopg.OperationalError:
                _close(conn)
                conn = None
                if stopping:
                    break
                self._stopping.wait(RETRY_S)
            except psycopg.Error:
                self.dropped += len(batch)  # a line the database refuses is not worth a second try
                _close(conn)
                batch, conn = [], None
        _close(conn)

    def _take(self, wait_s: float) -> list[LogLine]:
        """Collect what comes within `wait_s`, at most a batch."""
        batch: list[LogLine] = []
        until = time.monotonic() + wait_s
        while len(batch) < BATCH:
            try:
                batch.append(self._queue.get(timeout=max(0.001, until - time.monotonic())))
            except queue.Empty:
                break
        return batch

    def _connect(self) -> psycopg.Connection:
        if not isinstance(self._url, str):
            return self._url()
        conn = psycopg.connect(self._url, autocommit=True, application_name="flexmarl logs", **NOTICED)
        bound(conn, statement_timeout=STATEMENT_MS / 1000)
        return conn

    def _write(self, conn: psycopg.Connection, batch: list[LogLine]) -> None:
        by_run: dict[int, list[LogLine]] = {}
        for line in batch:
            by_run.setdefault(line.run_id, []).append(line)
        missing = self.dropped - self._told
        if missing:
            run_id = batch[-1].run_id
            text = f"{missing} log lines of this process were dropped: more came than the database took"
            notice = LogLine(run_id, time.time(), "warning", self._component, text, node=self._node)
            by_run[run_id].append(notice)
        for run_id, lines in by_run.items():
            logs.put(conn, run_id, lines)
            batch[:] = [line for line in batch if line.run_id != run_id]
            self._written[run_id] = self._written.get(run_id, TRIM_EVERY) + len(lines)
            if self._written[run_id] >= TRIM_EVERY:
                logs.trim(conn, run_id)
                self._written[run_id] = 0
        self._told += missing


def _close(conn: psycopg.Connection | None) -> None:
    if conn is not None:
        conn.close()


def redact(text: str) -> str:
    """Take passwords out of addresses, bearer tokens and paths of this host out of a text."""
    return without_paths(_BEARER.sub(rf"\1{HIDDEN}", _IN_ADDRESS.sub(rf"\1:{HIDDEN}@", text)))


def _told(name: str, value: object) -> object:
    if _SECRET.search(name):
        return HIDDEN
    if isinstance(value, Mapping):
        return {str(key): _told(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_told("", inner) for inner in value]
    return value if isinstance(value, int | float | bool) or value is None else redact(str(value))[:FIELD_LIMIT]


def _short(info: object) -> str:
    """Name an exception without its objects."""
    if info is True:
        info = sys.exc_info()  # the line is written by the thread that handles the exception
    error = info[1] if isinstance(info, tuple) and len(info) > 1 else info
    return redact(f"{type(error).__name__}: {error}") if isinstance(error, BaseException) else ""
