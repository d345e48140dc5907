"""Kills parts of a running system by a seeded schedule and measures how long the run's work stands still.

A strike is one or several victims at one moment. It is recovered when the work that needed the victim is done again by
what came in its place, as the event log tells; the next strike waits a multiple of what the kind took.
"""

import contextlib
import json
import os
import random
import signal
import statistics
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

import psutil
import psycopg
import redis

from tests.support.system import ApiError, System

T = TypeVar("T")

LIMIT_S = 240.0
"""A strike that is not recovered by then is a failure, not a slow recovery."""
LOOK_S = 0.03


class Kind(StrEnum):
    """What is struck. The last three are services; `flushall` empties the broker and kills nothing."""

    DRIVER = "driver"
    ROLLOUT = "rollout-worker"
    DEVICE = "device-worker"
    NODE = "node"
    ENGINE = "engine"
    TRAINER = "trainer"
    WEB = "web"
    POSTGRES = "postgres"
    VALKEY = "valkey"
    FLUSHALL = "flushall"


PROCESSES = (Kind.DRIVER, Kind.ROLLOUT, Kind.DEVICE, Kind.NODE, Kind.WEB)
CHILDREN = (Kind.ENGINE, Kind.TRAINER)
PROOF = {
    Kind.DRIVER: (),
    Kind.ROLLOUT: ("group_settled",),
    Kind.DEVICE: ("group_settled", "micro_batch_accumulated"),
    Kind.NODE: ("micro_batch_accumulated", "step_committed", "weights_served"),
    Kind.ENGINE: ("group_settled",),
    Kind.TRAINER: ("micro_batch_accumulated",),
    Kind.WEB: (),
    Kind.POSTGRES: ("group_settled", "micro_batch_accumulated"),
    Kind.VALKEY: ("group_settled",),
    Kind.FLUSHALL: ("group_settled",),
}
"""Facts in the log that show a kind back at work; no kind named means any fact. Of the node's one is enough."""


@dataclass(frozen=True, slots=True)
class Strike:
    """Who was struck, and how long it took until all of it worked again."""

    kinds: tuple[Kind, ...]
    at: float
    """Seconds after the first strike's beginning."""
    step: int
    recovered_s: float
    back_step: int
    """Step of the run when all was back."""


class Store:
    """Reads of a run across restarts of the database; every read is a statement of its own."""

    def __init__(self, system: System, run_no: int) -> None:
        self._system = system
        self._conn: psycopg.Connection | None = None
        self.run_no = run_no

    def read(self, statement: str, *params: object) -> list[tuple]:
        """Return the rows; raises psycopg.OperationalError while the database is away."""
        try:
            if self._conn is None or self._conn.closed:
                self._conn = psycopg.connect(self._system.database_url, autocommit=True, connect_timeout=2)
            return self._conn.execute(statement.encode(), params).fetchall()
        except (psycopg.OperationalError, OSError) as error:
            self.close()
            raise psycopg.OperationalError(str(error)) from error

    def close(self) -> None:
        if self._conn is not None:
            self._conn.close()
            self._conn = None

    def seq(self) -> int:
        """Return the newest number of the run's log."""
        return int(self.read("SELECT seq FROM store.run_state WHERE run_id = %s", self.run_no)[0][0])

    def step(self) -> int:
        return int(self.read("SELECT step FROM store.run_state WHERE run_id = %s", self.run_no)[0][0])

    def kinds_after(self, seq: int) -> set[str]:
        """Return the kinds of facts that the driver put into the log behind a number."""
        rows = self.read("SELECT DISTINCT kind FROM store.event WHERE run_id = %s AND seq > %s", self.run_no, seq)
        return {row[0] for row in rows}

    def children(self) -> dict[str, tuple[int, str]]:
        """Return pid and incarnation of the run's children by use; absent while there is none."""
        rows = self.read(
            "SELECT use, pid, incarnation FROM store.lease WHERE run_id = %s AND state = 'held' AND incarnation <> ''",
            self.run_no,
        )
        return {use: (pid, incarnation) for use, pid, incarnation in rows}


@dataclass
class Watch:
    """One victim's recovery: `look` until it says yes."""

    kind: Kind
    store: Store
    system: System
    former: dict[str, tuple[int, str]]
    pid: int = 0
    seq: int = -1
    """Number of the log behind which the proof must stand; -1 until it is known."""

    def look(self) -> bool:
        """Tell whether the kind's work goes on. Never raises for what a strike may cause."""
        try:
            return self._look()
        except (psycopg.OperationalError, OSError, KeyError, ValueError, redis.RedisError):
            return False

    def _look(self) -> bool:
        if self.kind is Kind.WEB:
            if not self._replaced():
                return False
            with urllib.request.urlopen(f"{self.system.url}/healthz", timeout=1) as answer:
                return bool(answer.status == 200)
        if self.seq < 0:
            if not self._replaced():
                return False
            self.seq = self.store.seq()
        found = self.store.kinds_after(self.seq)
        wanted = PROOF[self.kind]
        if not wanted:
            return bool(found)
        return bool(found & set(wanted)) if self.kind is Kind.NODE else set(wanted) <= found

    def _replaced(self) -> bool:
        """Facts that the killed one produced may still arrive: only what came after its successor counts."""
        if self.kind in PROCESSES and self.system.processes().get(self.kind.value, self.pid) == self.pid:
            return False
        if self.kind not in (*CHILDREN, Kind.DEVICE):
            return True
        uses = [self.kind.value] if self.kind in CHILDREN else [kind.value for kind in CHILDREN]
        now = self.store.children()
        return all(now[use][1] != self.former.get(use, (0, ""))[1] for use in uses)


class Chaos:
    """Strikes a system while one run is at work on it."""

    def __init__(self, system: System, run_no: int, seed: int) -> None:
        self.system = system
        self.store = Store(system, run_no)
        self.random = random.Random(seed)
        self.strikes: list[Strike] = []
        self.began = time.monotonic()

    def strike(self, *kinds: Kind) -> Strike:
        """Strike all at once and wait until each of them is back. Raises TimeoutError when one is not in time."""
        step, former = patient(self.store.step), patient(self.store.children)
        pids = self.system.processes()
        victims = [self._victim(kind, former) for kind in kinds]
        at = time.monotonic()
        for kill in victims:
            kill()
        waiting = [Watch(kind, self.store, self.system, former, pids.get(kind.value, 0)) for kind in kinds]
        while waiting:
            waiting = [watch for watch in waiting if not watch.look()]
            lost = [watch.kind.value for watch in waiting]
            if time.monotonic() - at >= LIMIT_S:
                raise TimeoutError(f"{lost} not back {LIMIT_S:.0f} s after a strike on {kinds}")
            time.sleep(LOOK_S)
        recovered_s = time.monotonic() - at
        done = Strike(kinds, at - self.began, step, recovered_s, patient(self.store.step))
        self.strikes.append(done)
        return done

    def rest(self, strike: Strike, recoveries: float) -> None:
        """Wait until the next strike may come: so many recoveries after the last one, at no special moment."""
        usual = self.recoveries(strike.kinds)
        apart = max(recoveries * max(strike.recovered_s, statistics.median(usual)), 1.0) + self.random.uniform(0.0, 0.3)
        until = self.began + strike.at + apart
        time.sleep(max(0.0, until - time.monotonic()))

    def recoveries(self, kinds: tuple[Kind, ...]) -> list[float]:
        """Return the recoveries of one kind, or of bursts."""
        single = len(kinds) == 1
        return [s.recovered_s for s in self.strikes if (s.kinds == kinds if single else len(s.kinds) > 1)]

    def _victim(self, kind: Kind, children: dict[str, tuple[int, str]]) -> Callable[[], None]:
        """Find the victim while everything can be asked; the answer strikes it."""
        if kind is Kind.FLUSHALL:
            url = json.loads((self.system.home / "run" / "environment.json").read_text())["REDIS_URL"]
            return lambda: _flush(url)
        if kind in (Kind.POSTGRES, Kind.VALKEY):
            assert self.system.process is not None
            found = [p for p in psutil.Process(self.system.process.pid).children() if p.name().startswith(kind.value)]
            again = any(kind in strike.kinds for strike in self.strikes)
            # First struck down, later that or restarted in order.
            number = self.random.choice([signal.SIGKILL, signal.SIGINT]) if again else signal.SIGKILL
            return lambda: [_send(process.pid, number) for process in found] and None
        pid = children[kind.value][0] if kind in CHILDREN else self.system.processes()[kind.value]
        return lambda: _send(pid, signal.SIGKILL)


def schedule(rng: random.Random, kills: int, slow: float = 1.0) -> Iterator[tuple[Kind, ...]]:
    """Yield strikes until so many kills are spent: every kind equally often, now and then several at once.

    With kills enough, each kind comes alone once before there are bursts, so that its own recovery is known. The slower
    the machine, the larger the bursts, so that the whole takes about as long.
    """
    sizes = [1, 1, min(round(3 * slow), len(Kind))]
    deck: list[Kind] = []
    spent = 0
    for kind in rng.sample(list(Kind), len(Kind) if kills > len(Kind) else 0):
        spent += 1
        yield (kind,)
    while spent < kills:
        size = min(rng.choice(sizes), kills - spent)
        while len(deck) < size:
            more = list(Kind)
            rng.shuffle(more)
            deck = [*deck, *more]
        chosen = tuple(dict.fromkeys(deck[:size]))  # a kind drawn twice is struck once
        del deck[: len(chosen)]
        spent += len(chosen)
        yield chosen


def patient(ask: Callable[[], T], timeout_s: float = 60.0) -> T:
    """Ask until the answer comes: web or database may be on their way back."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return ask()
        except (OSError, psycopg.OperationalError, ApiError) as error:
            refused = isinstance(error, ApiError) and error.status < 500
            if refused or time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def percentile(values: list[float], share: float) -> float:
    """Return the value that so large a share does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # a burst's other victim took it along
        os.kill(pid, number)


def _flush(url: str) -> None:
    try:
        with redis.Redis.from_url(url, socket_timeout=2) as client:
            client.flushall()
    except redis.RedisError:
        pass  # struck in the same burst: it comes back empty or not, both are asked for
