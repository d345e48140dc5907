"""The heartbeat of a process: a thread that work cannot starve tells that it lives and which loop stands still.

It goes two ways. Twice a second a line through a pipe to the supervisor that started the process, so that neither a
full disk nor a database that is away hides it; every two or three seconds a row of the store, for readiness, doctor and
pages.
A process without a supervisor writes the row alone.

Invariants: nothing here raises into the process or blocks it. Only time in which the thread itself ran counts as time
in which a loop stood still, so a process that was stopped, or a machine that slept, blames no loop. A loop is watched
from its first turn.
"""

import asyncio
import os
import socket
import stat
import threading
import time
from collections.abc import Callable

import psycopg

from flexmarl.store.connection import NOTICED, bound
from flexmarl.store.control import process_heartbeats
from flexmarl.store.control.process_heartbeats import ProcessFacts
from flexmarl.store.node_operations import Carrier

BEAT_S = 0.5
ROW_S = 2.0
CARRIED_ROW_S = 3.0
"""Of a row that goes through the control plane: one may be lost before the process counts as silent."""
TURN_S = 1.0
"""How often an event loop that has nothing to do shows that it turns."""
STATEMENT_MS = 2000
Open = Callable[[], psycopg.Connection]


class Loop:
    """One loop that must move: counts its turns, and how long there was none."""

    def __init__(self, name: str, stuck_s: float) -> None:
        self.name, self.stuck_s = name, stuck_s
        self.still_s = 0.0
        self._turns = self._seen = 0

    def turned(self) -> None:
        """Note a turn. Cheap enough for every turn of every loop."""
        self._turns += 1

    def look(self, passed_s: float) -> None:
        """Compare with the last look, which was `passed_s` ago."""
        turns, moved = self._turns, self._turns != self._seen
        self._seen = turns
        self.still_s = 0.0 if moved or not turns else self.still_s + passed_s

    @property
    def stuck(self) -> bool:
        """Whether it has stood still for longer than slow work can explain."""
        return self.still_s >= self.stuck_s


class Heartbeat:
    """One per process. `start` it first of all, `report` once the database is known, `stop` it last."""

    def __init__(self, kind: str, *, node: str = "", place: str = "", descriptor: int = -1) -> None:
        self._process = ProcessFacts(kind, node or socket.gethostname(), place, os.getpid(), time.time())
        self._descriptor = descriptor if _is_pipe(descriptor) else -1
        self._loops: dict[str, Loop] = {}
        self._stopping = threading.Event()
        self._reporter: threading.Thread | None = None
        if self._descriptor >= 0:
            os.set_blocking(self._descriptor, False)
            os.set_inheritable(self._descriptor, False)

    def start(self) -> None:
        """Begin to beat."""
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    def report(self, database_url: "str | Open") -> None:
        """Write rows as well, from now on, at an address or through what opens the way to it."""
        self._reporter = threading.Thread(target=self._report, args=(database_url,), name="heartbeat-rows", daemon=True)
        self._reporter.start()

    def stop(self, wait_s: float = 0.5) -> None:
        """End, and remove the row as far as the database answers in time."""
        self._stopping.set()
        if self._reporter is not None:
            self._reporter.join(wait_s)

    def watch(self, name: str, stuck_s: float) -> Callable[[], None]:
        """Watch a loop; it calls the answer at each turn. A name that is known goes on under it."""
        return self._loops.setdefault(name, Loop(name, stuck_s)).turned

    async def follow(self, name: str, stuck_s: float) -> None:
        """Watch the running event loop until cancelled."""
        turned = self.watch(name, stuck_s)
        while True:
            turned()
            await asyncio.sleep(TURN_S)

    def slowest(self) -> Loop | None:
        """Return the loop that is nearest to its bound."""
        return max(self._loops.copy().values(), key=lambda loop: loop.still_s / loop.stuck_s, default=None)

    # Threads ---------------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        last = time.monotonic()
        self._tell(None)
        while not self._stopping.wait(BEAT_S):
            now = time.monotonic()
            for loop in self._loops.copy().values():
                loop.look(min(now - last, 2 * BEAT_S))
            last = now
            self._tell(self.slowest())

    def _tell(self, slowest: Loop | None) -> None:
        if self._descriptor < 0:
            return
        line = f"{slowest.still_s:.1f} {slowest.stuck_s:.1f} {slowest.name}\n" if slowest else "0 1 start\n"
        try:
            os.write(self._descriptor, line.encode())
        except OSError:
            return  # a supervisor that does not read now finds the next line, one that ended takes us along

    def _report(self, url: "str | Open") -> None:
        conn: psycopg.Connection | None = None
        while True:
            stopping = self._stopping.is_set()
            try:
                conn = conn or self._open(url)
                if stopping:
                    process_heartbeats.remove(conn, self._process)
                else:
                    self._put(conn)
            except psycopg.Error:
                _close(conn)
                conn = None
            if stopping:
                _close(conn)
                return
            self._stopping.wait(CARRIED_ROW_S if isinstance(conn, Carrier) else ROW_S)

    def _open(self, url: "str | Open") -> psycopg.Connection:
        """Connect, and take away what processes left here that died before us."""
        conn, me = _connect(url) if isinstance(url, str) else url(), self._process
        gone = [pid for pid in process_heartbeats.pids_of(conn, me.kind, me.node) if not _exists(pid)]
        if gone:
            process_heartbeats.bury(conn, me.kind, me.node, gone)
        return conn

    def _put(self, conn: psycopg.Connection) -> None:
        slowest = self.slowest()
        stuck = slowest if slowest is not None and slowest.stuck else None
        process_heartbeats.put(conn, self._process, stuck.name if stuck else "", stuck.still_s if stuck else 0.0)


def _is_pipe(descriptor: int) -> bool:
    try:
        return descriptor >= 0 and stat.S_ISFIFO(os.fstat(descriptor).st_mode)
    except OSError:
        return False


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _connect(url: str) -> psycopg.Connection:
    conn = psycopg.connect(url, autocommit=True, application_name="flexmarl heartbeat", **NOTICED)
    bound(conn, statement_timeout=STATEMENT_MS / 1000)
    conn.execute("SET synchronous_commit = off")
    return conn


def _close(conn: psycopg.Connection | None) -> None:
    if conn is not None:
        try:
            conn.close()
        except psycopg.Error:
            return  # it is gone either way
