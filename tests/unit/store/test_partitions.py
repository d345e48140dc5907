"""Tables of rows: none for drafts, one for many small runs, one each for large ones."""

import pytest

from flexmarl.contracts.events import RunVerb, Verb
from flexmarl.contracts.status import RunStatus
from flexmarl.store import partitions
from flexmarl.store.control import inbox, runs
from tests.support.store_story import Story

pytestmark = pytest.mark.services

FIRST = 2048


def relations(conn):
    return conn.execute(
        "SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'store'"
    ).fetchone()[0]


def tables(conn):
    rows = conn.execute(
        "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent IN ("
        "'store.sample'::regclass, 'store.episode'::regclass)"
    ).fetchall()
    return {row[0].removeprefix("store.") for row in rows}


def start(conn, run_id):
    inbox.put_verb(conn, run_id, f"verb:{run_id}", RunVerb(verb=Verb.START, actor="ada"))


def test_a_thousand_drafts_and_a_thousand_small_runs_leave_the_catalogue_flat(store_conn):
    before = relations(store_conn)
    with store_conn.transaction():
        for run_id in range(FIRST, FIRST + 2000):
            if not partitions.is_reserved(run_id):
                runs.create_run(store_conn, run_id, {}, RunStatus.DRAFT)
    assert relations(store_conn) == before, "a draft has no tables"
    first = next(n for n in range(FIRST, FIRST + 100) if not partitions.is_reserved(n))
    start(store_conn, first)
    one = relations(store_conn)
    with store_conn.transaction():
        for run_id in range(first + 1, FIRST + 1000):
            if not partitions.is_reserved(run_id):
                start(store_conn, run_id)
    blocks = {run_id // partitions.BLOCK for run_id in range(FIRST, FIRST + 1000)}
    assert len(blocks) <= 9, "a pair of tables for more than a hundred small runs"
    assert relations(store_conn) - before <= (one - before) * len(blocks), "small runs share"
    assert tables(store_conn) == {f"{table}_block_{block}" for table in partitions.PARTITIONED for block in blocks}


def test_a_run_with_a_reserved_number_has_tables_of_its_own(store_conn):
    number = partitions.RESERVED - 1
    runs.create_run(store_conn, number, {}, RunStatus.QUEUED)
    assert tables(store_conn) == {f"sample_{number}", f"episode_{number}"}
    story = Story(store_conn, run_id=number)
    [story.lease] = runs.claim_runs(store_conn, story.owner, 30.0)
    story.settle(0)
    assert store_conn.execute(f"SELECT count(*) FROM store.sample_{number}").fetchone() == (2,)


def test_a_block_leaves_out_runs_that_have_tables_of_their_own_already(store_conn):
    for table in partitions.PARTITIONED:
        partitions.attach(store_conn, table, 3)
    runs.create_run(store_conn, 3, {}, RunStatus.QUEUED)
    runs.create_run(store_conn, 4, {}, RunStatus.QUEUED)
    assert tables(store_conn) == {"sample_3", "episode_3", "sample_block_0", "episode_block_0"}


def test_a_query_of_a_run_reads_its_table_alone(store_conn):
    for run_id in (1, FIRST, partitions.RESERVED - 1):
        runs.create_run(store_conn, run_id, {}, RunStatus.QUEUED)
    plan = "\n".join(
        row[0]
        for row in store_conn.execute("EXPLAIN SELECT * FROM store.sample WHERE run_id = 1 AND draw = 4").fetchall()
    )
    assert "sample_block_0" in plan
    assert "sample_block_2" not in plan
    assert "sample_15" not in plan


def test_two_that_start_at_once_make_one_table(store_conn, another):
    other = another()
    other.execute("SET lock_timeout = '200ms'")
    for run_id in (1, 2):
        runs.create_run(store_conn, run_id, {}, RunStatus.DRAFT)
    with store_conn.transaction():
        start(store_conn, 1)
        with pytest.raises(Exception, match="lock timeout"):
            start(other, 2)
    start(other, 2)
    assert tables(store_conn) == {"sample_block_0", "episode_block_0"}
