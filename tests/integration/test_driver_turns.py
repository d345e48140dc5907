"""A driver that decides ahead of what is durable: whatever fails in between, each fact is logged once and in order."""

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from flexmarl.contracts.events import ChildLost, RunVerb, Verb
from flexmarl.contracts.status import RunStatus
from flexmarl.controlplane.runs.driver import session as sessions
from flexmarl.controlplane.runs.driver import turning
from flexmarl.controlplane.runs.driver.replaying import replay
from flexmarl.controlplane.runs.driver.session import CoreRaised, RunSession
from flexmarl.controlplane.runs.driver.turning import turns
from flexmarl.orchestrator import Orchestrator
from flexmarl.store.control import inbox, runs
from flexmarl.store.control.runs import RunLease
from flexmarl.store.errors import FenceLost
from tests.integration.test_driver import make_spec

pytestmark = pytest.mark.services

FACTS = 1200


@pytest.fixture
def conn(store_url: str) -> Iterator[psycopg.Connection]:
    """Return a connection to a store with a started run that nobody holds, and a long backlog of facts."""
    with psycopg.connect(store_url, autocommit=True) as conn:
        runs.create_run(conn, 1, make_spec().model_dump(mode="json"), RunStatus.DRAFT)
        inbox.put_event(conn, 1, "start", RunVerb(verb=Verb.START))
        inbox.put_events(conn, 1, [(f"fact{i}", ChildLost(lease_id=i)) for i in range(1, FACTS)])
        yield conn


def taken_over(conn: psycopg.Connection) -> RunSession:
    conn.execute("UPDATE store.run_state SET lease_until = '-infinity'")
    [lease] = runs.claim_runs(conn, "driver:test", 60.0)
    session = RunSession.load(conn, lease)
    assert session.differences == []
    return session


def assert_all_handled(conn: psycopg.Connection) -> None:
    events = runs.events_after(conn, 1, 0)
    assert [entry.seq for entry in events] == list(range(1, FACTS + 1))
    assert [entry.event.lease_id for entry in events[1:]] == list(range(1, FACTS))
    assert inbox.waiting(conn, 1) == 0
    assert runs.load_run(conn, 1).seq == FACTS
    assert replay(conn, 1).differences == ()


def test_a_backlog_is_handled_in_batches_and_told_when_it_is_durable(conn: psycopg.Connection, store_url: str) -> None:
    session = taken_over(conn)
    told = []
    with psycopg.connect(store_url, autocommit=True) as other:
        for turn in turns(session, conn):
            assert runs.load_run(other, 1).seq >= turn.seq
            told.append((turn.events, turn.seq))
    assert told == [(256, 256), (256, 512), (256, 768), (256, 1024), (176, 1200)]
    assert_all_handled(conn)
    assert list(turns(session, conn)) == []


def test_looking_back_for_late_numbers_takes_no_fact_twice(
    conn: psycopg.Connection, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turning, "LOOK_BACK", 2)
    session = taken_over(conn)
    inbox.drop_events(conn, 1)
    with psycopg.connect(store_url, autocommit=True) as late, late.transaction():
        inbox.put_events(late, 1, [(f"late{i}", ChildLost(lease_id=i)) for i in range(FACTS, FACTS + 600)])
        inbox.put_events(conn, 1, [(f"fact{i}", ChildLost(lease_id=i)) for i in range(FACTS)])
        going = turns(session, conn)
        told = [next(going).events]
    told += [turn.events for turn in going]
    assert sum(told) == FACTS + 600
    assert inbox.waiting(conn, 1) == 0
    events = runs.events_after(conn, 1, 0)
    assert sorted(entry.event.lease_id for entry in events) == list(range(FACTS + 600))
    assert events[-1].event.lease_id == FACTS - 1, "late ones were found before the end"
    assert replay(conn, 1).differences == ()


def test_no_batch_is_begun_when_the_time_is_over(conn: psycopg.Connection) -> None:
    session = taken_over(conn)
    assert list(turns(session, conn, until=0.0)) == []
    assert runs.load_run(conn, 1).seq == session.seq == 0
    for _ in turns(session, conn):
        pass
    assert_all_handled(conn)


def test_a_fence_that_is_lost_between_two_batches_ends_the_old_driver_and_loses_nothing(
    conn: psycopg.Connection, store_url: str
) -> None:
    old = taken_over(conn)
    with psycopg.connect(store_url, autocommit=True) as other:
        going = turns(old, conn)
        next(going)
        new = taken_over(other)
        with pytest.raises(FenceLost):
            list(going)
        for _ in turns(new, other):
            pass
        assert_all_handled(other)
        with pytest.raises(FenceLost):
            old.explain(conn, "from the grave")


def test_a_connection_that_breaks_with_decisions_under_way_loses_nothing(
    conn: psycopg.Connection, store_url: str
) -> None:
    old = taken_over(conn)
    with psycopg.connect(store_url, autocommit=True) as other:
        going = turns(old, conn)
        next(going)
        other.execute("SELECT pg_terminate_backend(%s)", [conn.info.backend_pid])
        with pytest.raises(psycopg.OperationalError):
            list(going)
        for _ in turns(taken_over(other), other):
            pass
        assert_all_handled(other)


@pytest.mark.parametrize("number", [700, 1150])
def test_a_fact_on_which_the_core_raises_leaves_the_batches_before_it_durable(
    conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    original: Callable[..., Any] = Orchestrator.handle
    cursed = [number]

    def handle(self: Orchestrator, event: Any, now: float) -> Any:
        if getattr(event, "lease_id", None) in cursed:
            raise RuntimeError("no such child")
        return original(self, event, now)

    monkeypatch.setattr(Orchestrator, "handle", handle)
    told = []
    with pytest.raises(CoreRaised) as raised:
        told += [turn.seq for turn in turns(taken_over(conn), conn)]
    assert raised.value.key == f"fact{number}"
    whole = (number + 1) // 256 * 256
    assert runs.load_run(conn, 1).seq == whole
    assert inbox.waiting(conn, 1) == FACTS - whole
    cursed.clear()
    for _ in turns(taken_over(conn), conn):
        pass
    assert_all_handled(conn)


def test_a_batch_ends_early_where_it_leads_to_many_commands(
    conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "COMMANDS", 1)
    told = [turn.events for turn in turns(taken_over(conn), conn)]
    assert told[0] == 1, "the verb asks for devices"
    assert sum(told) == FACTS
    assert_all_handled(conn)


def test_a_fact_given_up_on_amid_a_backlog_stands_in_the_log_as_given_up(conn: psycopg.Connection) -> None:
    session = taken_over(conn)
    for _ in turns(session, conn, {"fact600"}):
        pass
    events = runs.events_after(conn, 1, 0)
    assert [entry.seq for entry in events] == list(range(1, FACTS + 1))
    assert [entry.event.kind for entry in events if entry.seq in (600, 601, 602)] == [
        "child_lost", "run_given_up", "child_lost",
    ]  # fmt: skip
    assert inbox.waiting(conn, 1) == 0
    assert conn.execute("SELECT seq FROM store.handled WHERE producer_key = 'fact600'").fetchone() == (601,)
    assert runs.load_run(conn, 1).status is RunStatus.FAILED
    assert replay(conn, 1).differences == ()


def test_a_stale_lease_on_an_idle_run_decides_nothing(conn: psycopg.Connection) -> None:
    session = taken_over(conn)
    for _ in turns(session, conn):
        pass
    stale = RunSession.load(conn, RunLease(1, "driver:gone", 0))
    inbox.put_event(conn, 1, "late", ChildLost(lease_id=1))
    with pytest.raises(FenceLost):
        list(turns(stale, conn))
    assert [turn.events for turn in turns(session, conn)] == [1]
