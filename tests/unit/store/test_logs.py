"""Log lines in the store: order, filters, retention; and their carrier, which never blocks whoever logs."""

import threading
import time

import psycopg
import pytest

from flexmarl.store.telemetry import logs
from flexmarl.store.telemetry.log_shipping import QUEUE, LogShipper, redact
from flexmarl.store.telemetry.logs import LogFilter, LogLine

pytestmark = pytest.mark.slow

ALL = LogFilter()


def line(text, run_id=1, level="info", component="driver", **more):
    return LogLine(run_id, 1_000.0, level, component, text, **more)


def texts(conn, wanted=ALL, limit=100, run_id=1, **place):
    return [row.text for row in logs.page(conn, run_id, wanted, limit, **place)]


def until(check, seconds=30.0):
    end = time.monotonic() + seconds
    while not (found := check()) and time.monotonic() < end:
        time.sleep(0.05)
    return found


def test_lines_are_read_in_order_by_cursor_and_by_filter(store_conn):
    logs.put(store_conn, 1, [line("one"), line("two", level="error", agent="solver"), line("three", node="n1")])
    logs.put(store_conn, 2, [line("elsewhere", run_id=2)])
    assert texts(store_conn) == ["one", "two", "three"]
    first = logs.page(store_conn, 1, ALL, 1, after=0)[0]
    assert texts(store_conn, after=first.seq) == ["two", "three"]
    assert texts(store_conn, limit=2) == ["two", "three"], "without a cursor the newest"
    assert texts(store_conn, limit=1, before=logs.page(store_conn, 1, ALL, 9)[2].seq) == ["two"]
    assert texts(store_conn, LogFilter(levels=["error"])) == ["two"]
    assert texts(store_conn, LogFilter(agent="solver")) == ["two"]
    assert texts(store_conn, LogFilter(node="n1")) == ["three"]
    assert texts(store_conn, LogFilter(text="THR")) == ["three"]
    assert texts(store_conn, LogFilter(pattern="^t.o$")) == ["two"]
    assert texts(store_conn, LogFilter(components=["node"])) == []
    assert logs.origins(store_conn, 1) == (["driver"], ["solver"], ["n1"])


def test_only_the_newest_lines_stay(store_conn):
    logs.put(store_conn, 1, [line(str(i)) for i in range(10)])
    assert logs.trim(store_conn, 1, keep=4) == 6
    assert texts(store_conn) == ["6", "7", "8", "9"]
    assert logs.trim(store_conn, 1, keep=4) == 0


def test_a_cursor_never_passes_a_line_that_becomes_visible_later(store_conn, another):
    """A writer that has its numbers and has not committed holds the next one back."""
    slow = another()
    with slow.transaction():
        logs.put(slow, 1, [line("early")])
        late = threading.Thread(target=lambda: logs.put(another(), 1, [line("late")]))
        late.start()
        time.sleep(0.3)
        assert texts(store_conn) == [], "the second must not be seen before the first"
    late.join()
    assert texts(store_conn) == ["early", "late"]


def test_what_the_database_cannot_hold_is_taken_out(store_conn):
    logs.put(store_conn, 1, [line("a\x00b\ud800", fields={"x": "\x00", "y": "\ud800", "n": float("nan")})])
    [row] = logs.page(store_conn, 1, ALL, 1)
    assert row.text == "ab?"


@pytest.fixture
def shipper(store_url):
    made = LogShipper(store_url, "rollout", "n1")
    yield made
    made.stop()


def test_lines_with_a_run_are_carried_and_others_stay(store_conn, shipper):
    shipper.start()
    shipper.processor(None, "info", {"event": "command given up", "run_id": 1, "command": 7, "policy": "solver"})
    shipper.processor(None, "info", {"event": "no run"})
    assert until(lambda: texts(store_conn))
    [row] = logs.page(store_conn, 1, ALL, 9)
    assert (row.text, row.component, row.node, row.agent) == ("command given up", "rollout", "n1", "solver")
    assert row.fields == {"command": 7}


def test_secrets_never_leave_the_process(store_conn, shipper):
    shipper.start()
    event = {
        "event": "connects to postgresql://flex:hunter2@host/db with Bearer hunter3", "run_id": 1,
        "cluster_key": "hunter4", "deep": {"password": "hunter5", "list": ["redis://:hunter6@x"]}, "tokens": 12,
    }  # fmt: skip
    shipper.processor(None, "warning", event)
    assert until(lambda: texts(store_conn))
    [row] = logs.page(store_conn, 1, ALL, 9)
    assert "hunter" not in row.text + str(row.fields)
    assert row.fields["tokens"] == 12, "a number of tokens is no secret"
    assert redact("https://host/path") == "https://host/path"


def test_a_database_that_is_away_blocks_nobody_and_what_is_lost_is_counted():
    shipper = LogShipper("postgresql://nobody@127.0.0.1:1/none", "node")
    shipper.start()
    began = time.monotonic()
    for i in range(QUEUE + 2000):
        shipper.offer_event({"event": "x", "run_id": 1, "i": i}, "info")
    assert time.monotonic() - began < 30
    assert shipper.dropped >= 1000
    began = time.monotonic()
    shipper.stop()
    assert time.monotonic() - began < 20


def test_after_an_outage_lines_come_again_and_say_what_was_dropped(store_conn, store_url, shipper):
    shipper.start()
    shipper.offer(line("before"))
    assert until(lambda: texts(store_conn) == ["before"])
    store_conn.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'flexmarl logs'"
    )
    shipper.dropped += 3
    shipper.offer(line("after"))
    assert until(lambda: len(texts(store_conn)) == 3), texts(store_conn)
    assert texts(store_conn)[1] == "after"
    assert texts(store_conn)[2].startswith("3 log lines of this process were dropped")


def test_a_locked_log_waits_in_the_thread_not_in_the_caller(store_conn, another, shipper):
    holder = another()
    holder.execute("BEGIN")
    logs.put(holder, 1, [line("held")])
    shipper.start()
    began = time.monotonic()
    shipper.offer(line("waits"))
    assert time.monotonic() - began < 30
    time.sleep(1.5)
    holder.execute("COMMIT")
    assert until(lambda: texts(store_conn) == ["held", "waits"]), texts(store_conn)


def test_a_line_the_database_refuses_costs_only_itself(store_conn, shipper, monkeypatch):
    real = logs.put

    def refuse(conn, run_id, lines):
        if lines[0].text == "poison":
            raise psycopg.DataError
        real(conn, run_id, lines)

    monkeypatch.setattr(logs, "put", refuse)
    shipper.start()
    shipper.offer(line("poison"))
    assert until(lambda: shipper.dropped == 1)
    shipper.offer(line("fine"))
    assert until(lambda: "fine" in texts(store_conn))
