"""Deletion of a run: every row of it, nothing of others, finished after any interruption."""

from uuid import uuid4

import pytest

from flexmarl.contracts.status import RunStatus
from flexmarl.store.control import deletions, runs
from flexmarl.store.data import lineage
from flexmarl.store.errors import StoreError
from flexmarl.store.telemetry import logs
from flexmarl.store.telemetry.logs import LogLine
from tests.support.store_story import Story

pytestmark = pytest.mark.services


@pytest.fixture
def ended(store_conn):
    """A run that trained and ended, beside one that lives in the same tables."""
    Story(store_conn, run_id=2, owner="driver-2", node="other").start().settle(0)
    story = Story(store_conn).start()
    lease_id = story.trainer("t1")
    story.settle(0, 1)
    story.cut(0, 0)
    story.accumulate(lease_id, 0, "0:t1")
    story.step(lease_id, "0:t1", (0,), 1)
    for run_id in (1, 2):
        logs.put(store_conn, run_id, [LogLine(run_id, 1.0, "info", "driver", "a line")])
    store_conn.execute("UPDATE store.lease SET state = 'ended' WHERE run_id = 1")
    store_conn.execute("UPDATE store.run_state SET status = 'completed', finished_at = now() WHERE run_id = 1")
    return story


def asked(conn, run_id=1):
    request = deletions.DeletionRequest(run_id, uuid4(), uuid4(), f"run-{run_id}", "default", "ada")
    deletions.ask(conn, request)
    return request


def rows_by_table(conn, run_id):
    tables = conn.execute(
        "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON"
        " a.attrelid = c.oid WHERE n.nspname = 'store' AND c.relkind IN ('r', 'p') AND NOT c.relispartition"
        " AND a.attname = 'run_id' AND NOT a.attisdropped"
    ).fetchall()
    found = {
        table: conn.execute(f"SELECT count(*) FROM store.{table} WHERE run_id = {run_id}").fetchone()[0]
        for (table,) in tables
    }
    return {table: count for table, count in found.items() if count and table != "run_deletion"}


def test_every_table_that_names_a_run_is_known(store_conn):
    """A table that somebody adds later is not forgotten."""
    named = {
        row[0]
        for row in store_conn.execute(
            "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON"
            " a.attrelid = c.oid WHERE n.nspname = 'store' AND c.relkind IN ('r', 'p') AND NOT c.relispartition"
            " AND a.attname = 'run_id' AND NOT a.attisdropped"
        ).fetchall()
    }
    others = {"episode", "sample", "lease", "run_state", "run_deletion"}
    assert named == {*deletions.BY_RUN, *others}


def test_everything_of_a_run_goes_and_nothing_of_others(ended):
    conn, others = ended.conn, rows_by_table(ended.conn, 2)
    asked(conn)
    files = []
    deletions.carry_out(conn, 1, lambda: files.append("removed"))
    assert rows_by_table(conn, 1) == {}
    assert rows_by_table(conn, 2) == others
    assert files == ["removed"]
    assert deletions.open_deletions(conn) == []


def test_a_run_that_lives_or_was_never_asked_for_stays(ended):
    with pytest.raises(StoreError, match="only an ended run"):
        deletions.carry_out(ended.conn, 2)
    assert deletions.open_deletions(ended.conn) == []


@pytest.mark.parametrize("table", ["sample", "event", "log"])
def test_what_was_interrupted_goes_on(ended, monkeypatch, table):
    conn, delete = ended.conn, deletions.delete_rows
    asked(conn)

    def killed(conn, name, run_id):
        if name == table:
            raise KeyboardInterrupt
        delete(conn, name, run_id)

    monkeypatch.setattr(deletions, "delete_rows", killed)
    with pytest.raises(KeyboardInterrupt):
        deletions.carry_out(conn, 1)
    monkeypatch.undo()
    assert deletions.open_deletions(conn) == [1]
    deletions.carry_out(conn, 1)
    assert (rows_by_table(conn, 1), deletions.open_deletions(conn)) == ({}, [])


def test_rows_go_some_at_a_time(ended, monkeypatch):
    monkeypatch.setattr(deletions, "BATCH", 1)
    deletions.drop_run(ended.conn, 1)
    assert rows_by_table(ended.conn, 1) == {}


def test_it_has_ended_when_every_node_has_said_that_nothing_is_left(ended):
    conn = ended.conn
    conn.execute("INSERT INTO store.node (name, address, incarnation) VALUES ('other', 'other:1', 'o1')")
    asked(conn)
    deletions.carry_out(conn, 1)
    assert deletions.deleted_among(conn, {1, 2, 7}) == {1}
    assert (deletions.awaiting(conn, "box"), deletions.awaiting(conn, "other")) == ({1}, {1})
    deletions.cleared(conn, "box", {1})
    assert (deletions.awaiting(conn, "box"), deletions.awaiting(conn, "other")) == (set(), {1})
    assert conn.execute("SELECT ended_at IS NULL FROM store.run_deletion").fetchone() == (True,)
    deletions.cleared(conn, "other", {1})
    assert conn.execute("SELECT ended_at IS NULL FROM store.run_deletion").fetchone() == (False,)


def test_a_fork_that_has_no_copy_yet_is_named(ended):
    conn = ended.conn
    runs.create_run(conn, 5, {}, RunStatus.DRAFT)
    lineage.put(conn, 5, [lineage.VersionOrigin("solver", 1, "solver", 1, 1, False, "d")])
    assert deletions.waiting_forks(conn, 1) == [5]
    lineage.bound(conn, 5, "solver")
    assert deletions.waiting_forks(conn, 1) == []
