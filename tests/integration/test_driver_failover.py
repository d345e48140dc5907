"""Two driver processes of an installation without a supervisor: the one that leads a run dies, or hangs and awakes.

Facts come in all the time. The other driver takes the run over within seconds, every fact is in the log once and in
order, and what the log leads to is what the rows hold. A driver that awakes changes nothing, and takes over in turn.
"""

import itertools
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from flexmarl.contracts.events import ChildLost, RunVerb, Verb
from flexmarl.contracts.status import RunStatus
from flexmarl.controlplane.runs.driver.replaying import replay
from flexmarl.launcher.processes import wait_until
from flexmarl.store.control import inbox, runs
from tests.integration.test_two_drivers import SPEC, drivers
from tests.support.infrastructure import remark
from tests.support.machine import slowness

pytestmark = [pytest.mark.services, pytest.mark.slow]

__all__ = ["drivers"]  # the fixture

TAKEN_OVER_S = 10.0
"""What docs/operations.md promises: a lease ends, somebody looks, and the run is read back."""
AT_ONCE = 40
"""Facts in one statement."""
BACKLOG = 20_000
"""Facts that wait at the start, so that the leader is struck in the middle of a turn: it awakes with a decision in
hand, made under a lease that has ended."""


class Facts(threading.Thread):
    """Puts facts about a run into its inbox, as workers do, as fast as they are taken."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.put = BACKLOG
        self._url, self._stopping = url, threading.Event()

    def run(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as conn:
            while not self._stopping.wait(0.02):
                put(conn, self.put + 1, AT_ONCE)
                self.put += AT_ONCE

    def stop(self) -> None:
        self._stopping.set()
        self.join(60)


def put(conn: psycopg.Connection, first: int, count: int) -> None:
    numbers = range(first, first + count)
    inbox.put_events(conn, 1, [(f"fact{number}", ChildLost(lease_id=number)) for number in numbers])


@contextmanager
def coming(url: str) -> Iterator[Facts]:
    facts = Facts(url)
    facts.start()
    try:
        yield facts
    finally:
        facts.stop()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hangs"])
def test_another_driver_takes_the_run_over_and_nothing_is_lost_or_doubled(
    drivers: list[subprocess.Popen[bytes]],
    store_conn: psycopg.Connection,
    store_url: str,
    short_tmp: Path,
    how: signal.Signals,
) -> None:
    runs.create_run(store_conn, 1, {**SPEC}, RunStatus.DRAFT)
    with store_conn.transaction():
        inbox.put_verb(store_conn, 1, "start:1", RunVerb(verb=Verb.START, actor="ada"))
        put(store_conn, 1, BACKLOG)
    with coming(store_url) as facts:
        eventually(lambda: handled(store_conn) > 0)
        first = runs.load_run(store_conn, 1)
        leader, other = by_owner(first.owner, drivers, short_tmp)
        leader.send_signal(how)
        began = time.monotonic()
        at = handled(store_conn)
        assert at < BACKLOG
        eventually(lambda: runs.load_run(store_conn, 1).owner != first.owner and handled(store_conn) > at + AT_ONCE)
        taken = time.monotonic() - began
        remark("a run taken over by another driver", f"{taken:.1f} s")
        assert taken < TAKEN_OVER_S * slowness(), taken
        second = runs.load_run(store_conn, 1)
        assert second.fence == first.fence + 1
        if how is signal.SIGSTOP:
            leader.send_signal(signal.SIGCONT)
            awake(leader, short_tmp, drivers)
            at = facts.put
            eventually(lambda: handled(store_conn) > at)
            now = runs.load_run(store_conn, 1)
            assert (now.owner, now.fence) == (second.owner, second.fence), "the awakened one has changed nothing"
            other.send_signal(signal.SIGKILL)
            eventually(lambda: runs.load_run(store_conn, 1).owner not in ("", second.owner))
            assert runs.load_run(store_conn, 1).owner == first.owner, "the awakened one leads again"
            assert runs.load_run(store_conn, 1).fence == second.fence + 1
    eventually(lambda: inbox.waiting(store_conn, 1) == 0)
    events = runs.events_after(store_conn, 1, 0)
    assert [entry.seq for entry in events] == list(range(1, facts.put + 2))
    told = [entry.event.lease_id for entry in events if isinstance(entry.event, ChildLost)]
    assert sorted(told) == list(range(1, facts.put + 1)), "each fact once"
    assert replay(store_conn, 1).differences == ()
    for name in ("one", "two"):
        assert b"Traceback" not in (short_tmp / f"{name}.log").read_bytes()


def by_owner(
    owner: str, drivers: list[subprocess.Popen[bytes]], logs: Path
) -> tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]]:
    """Return the process that leads the run, and the other one."""
    leads = [owner.encode() in (logs / f"{name}.log").read_bytes() for name in ("one", "two")]
    return next(itertools.compress(drivers, leads)), next(itertools.compress(drivers, [not lead for lead in leads]))


def awake(process: subprocess.Popen[bytes], logs: Path, drivers: list[subprocess.Popen[bytes]]) -> None:
    """Wait until a process that was stopped has noticed that its run is another's."""
    log = logs / f"{('one', 'two')[drivers.index(process)]}.log"
    eventually(lambda: any(word in log.read_bytes() for word in (b"run_lost", b"database_away")))


def handled(conn: psycopg.Connection) -> int:
    return runs.load_run(conn, 1).seq


def eventually(done: Callable[[], bool], timeout_s: float = 90.0) -> None:
    assert wait_until(done, timeout_s)
