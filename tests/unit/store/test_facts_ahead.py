"""Facts are read ahead and move to the log with what they led to: each once, in the order decided, or not at all."""

import threading
from collections.abc import Callable

import psycopg
import pytest

from flexmarl.contracts.decisions import NoteLevel, RunNote
from flexmarl.contracts.events import ChildLost, TimerFired, event_adapter
from flexmarl.contracts.live import Progress
from flexmarl.contracts.status import RunReason, RunStatus
from flexmarl.store.control import decisions, inbox, runs
from flexmarl.store.control.decisions import LogEntry, Logged, StoredDecision
from flexmarl.store.control.inbox import WaitingFact
from flexmarl.store.control.runs import RunLease
from flexmarl.store.errors import FenceLost
from tests.support.store_story import Story

pytestmark = pytest.mark.services


def waiting(
    conn: psycopg.Connection, behind: int = 0, besides: list[int] | None = None, most: int = 10
) -> inbox.WaitingFacts:
    return inbox.heard(inbox.ask(conn, 1, behind, besides or [], most))


def decided(seq: int, *facts: WaitingFact, **rows: object) -> StoredDecision:
    entries = [
        LogEntry(seq + i, 1000.0 + seq, event_adapter.validate_json(fact.body), fact.producer_key, fact.id)
        for i, fact in enumerate(facts, 1)
    ]
    return StoredDecision(entries, RunStatus.RUNNING, RunReason.NONE, "", 1, 0, Progress(), None, **rows)


def put(story: Story, *numbers: int) -> list[WaitingFact]:
    inbox.put_events(story.conn, 1, [(f"key{number}", ChildLost(lease_id=number)) for number in numbers])
    return list(waiting(story.conn).facts)


def logged(story: Story) -> list[tuple[int, int]]:
    return [(entry.seq, entry.event.lease_id) for entry in runs.events_after(story.conn, 1, 0)]


@pytest.mark.parametrize(
    "rows", [{}, {"notes": [Logged(1, 1.0, RunNote(NoteLevel.INFO, "text"))]}], ids=["alone", "with rows"]
)
def test_facts_move_with_their_decision_in_the_order_decided(story: Story, rows: dict[str, object]) -> None:
    one, two = put(story, 1, 2)
    decisions.commit(story.conn, story.lease, decided(0, two, one, **rows))
    assert logged(story) == [(1, 2), (2, 1)]
    assert [entry.at for entry in runs.events_after(story.conn, 1, 0)] == [1000.0, 1000.0]
    assert (story.count("inbox"), story.count("handled")) == (0, 2)
    assert runs.load_run(story.conn, 1).seq == 2


@pytest.mark.parametrize(
    "rows", [{}, {"notes": [Logged(1, 1.0, RunNote(NoteLevel.INFO, "text"))]}], ids=["alone", "with rows"]
)
@pytest.mark.parametrize(
    ("meanwhile", "lease"),
    [
        ("UPDATE store.run_state SET fence = fence + 1, owner = 'another'", None),
        ("DELETE FROM store.inbox WHERE producer_key = 'key2'", None),
        ("UPDATE store.run_state SET seq = 5", None),
        ("INSERT INTO store.event VALUES (1, 2, 'timer_fired', '{\"kind\": \"timer_fired\"}', now())", None),
        ("SELECT 1", RunLease(1, "somebody", 99)),
    ],
    ids=["fence", "fact gone", "log went on", "place taken", "never held"],
)
def test_whoever_lost_the_run_writes_nothing(
    story: Story, rows: dict[str, object], meanwhile: str, lease: RunLease | None
) -> None:
    facts = put(story, 1, 2)
    story.conn.execute(meanwhile)
    before = [story.count(table) for table in ("event", "handled", "inbox", "note")]
    with pytest.raises(FenceLost):
        decisions.commit(story.conn, lease or story.lease, decided(0, *facts, **rows))
    assert [story.count(table) for table in ("event", "handled", "inbox", "note")] == before
    assert story.conn.info.transaction_status is psycopg.pq.TransactionStatus.IDLE
    assert waiting(story.conn).facts, "the connection goes on"


def test_facts_that_a_stalled_session_holds_are_not_waited_for(
    story: Story, another: Callable[[], psycopg.Connection]
) -> None:
    facts = put(story, 1)
    stalled = another()
    stalled.execute("BEGIN")
    inbox.move(stalled, 1, [facts[0].id], [1], 1.0)
    with pytest.raises(FenceLost):
        decisions.commit(story.conn, story.lease, decided(0, *facts))
    stalled.execute("ROLLBACK")
    decisions.commit(story.conn, story.lease, decided(0, *facts))
    assert logged(story) == [(1, 1)]


def test_a_number_that_becomes_visible_late_is_found_by_whoever_looks_from_the_start(
    story: Story, another: Callable[[], psycopg.Connection]
) -> None:
    slow = another()
    with slow.transaction():
        inbox.put_event(slow, 1, "slow", ChildLost(lease_id=7))
        [quick] = put(story, 8)
    assert waiting(story.conn, quick.id).facts == []
    assert [fact.producer_key for fact in waiting(story.conn, 0, [quick.id]).facts] == ["slow"]


def test_a_repetition_that_slipped_in_is_told_apart(story: Story, another: Callable[[], psycopg.Connection]) -> None:
    facts = put(story, 1)
    with story.conn.transaction():
        inbox.move(story.conn, 1, [facts[0].id], [1], 1.0)
        repeating = threading.Thread(target=inbox.put_event, args=(another(), 1, "key1", ChildLost(lease_id=2)))
        repeating.start()
        repeating.join(0.3)
        assert repeating.is_alive()  # it waits for the unique key: its look at `handled` is over
    repeating.join(60)
    [repeated] = waiting(story.conn).facts
    assert repeated.known
    inbox.discard(story.conn, 1, [repeated.id])
    assert waiting(story.conn).facts == []


def test_an_empty_inbox_tells_the_time(story: Story) -> None:
    assert waiting(story.conn).now == pytest.approx(runs.database_now(story.conn), abs=5)


def test_an_event_of_the_driver_stands_between_facts(story: Story) -> None:
    facts = put(story, 1)
    decision = decided(0, *facts)
    timer = LogEntry(2, 1001.0, TimerFired())
    both = StoredDecision([*decision.entries, timer], RunStatus.RUNNING, RunReason.NONE, "", 1, 0, None, None)
    decisions.commit(story.conn, story.lease, both)
    assert [entry.event.kind for entry in runs.events_after(story.conn, 1, 0)] == ["child_lost", "timer_fired"]


def test_reading_ahead_costs_the_same_whatever_waits(story: Story) -> None:
    """Facts of other runs, a long backlog and statistics of an empty table change nothing about the plan."""
    story.conn.execute("ANALYZE store.inbox")
    story.conn.execute(
        "INSERT INTO store.inbox (run_id, producer_key, body) "
        """SELECT 1 + n % 3, n::text, '{"kind": "timer_fired"}' FROM generate_series(1, 30000) n"""
    )
    story.conn.execute("SELECT pg_stat_force_next_flush()")
    read = "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'inbox_pkey'"
    seen = "SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = 'inbox'"
    story.conn.execute("SELECT pg_stat_reset()")
    facts = waiting(story.conn, most=50).facts
    decisions.commit(story.conn, story.lease, decided(0, *facts))
    story.conn.execute("SELECT pg_stat_force_next_flush()")
    assert story.conn.execute(read).fetchone()[0] <= 150
    assert story.conn.execute(seen).fetchone()[0] == 0
