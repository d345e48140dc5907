"""Retirement of samples: only of ended runs, without blocking others, finished after any interruption."""

import psycopg
import pytest

from flexmarl.contracts.status import RunStatus
from flexmarl.store import partitions
from flexmarl.store.control import deletions
from flexmarl.store.data import micro_batches, retention
from flexmarl.store.data.groups import put_groups
from flexmarl.store.data.segments import SegmentFolder
from flexmarl.store.errors import Refused, SamplesAway
from flexmarl.store.reads import report, trajectories
from tests.support.store_story import Story

pytestmark = pytest.mark.services


@pytest.fixture
def folder(tmp_path):
    folder = SegmentFolder(tmp_path / "payloads", by_value_bytes=0)
    yield folder
    folder.close()


@pytest.fixture
def story(store_conn):
    """A run with tables of its own."""
    for table in partitions.PARTITIONED:
        partitions.attach(store_conn, table, 1)
    return Story(store_conn).start()


@pytest.fixture
def ended(story, folder):
    """A run that trained on one group and ended, with its payloads in a segment."""
    return train_and_end(story, folder)


@pytest.fixture
def shared(store_conn, folder):
    """The same, with its rows in tables that runs share; another run lives in them."""
    Story(store_conn, run_id=2, owner="driver-2", node="other").start().settle(0)
    return train_and_end(Story(store_conn).start(), folder)


def train_and_end(story, folder):
    """Train on one group."""
    lease_id = story.trainer("t1")
    taken = story.take(story.play(0))
    put_groups(story.conn, taken, [story.group(0, taken)], folder)
    story.cut(0, 0)
    story.accumulate(lease_id, 0, "0:t1")
    story.step(lease_id, "0:t1", (0,), 1)
    end(story)
    return story


def end(story):
    story.conn.execute("UPDATE store.lease SET state = 'releasing'")
    story.status = RunStatus.COMPLETED
    story.decide()
    age(story)


def age(story):
    story.conn.execute(
        "UPDATE store.run_state SET finished_at = now() - interval '2 days' WHERE run_id = %s", [story.run_id]
    )


def files(folder):
    return sorted(path.name for path in folder.root.glob("run-*/*.segment"))


def sample_checks(story):
    checks = report.consistency_report(story.conn, 1)
    return {check.name for check in checks if not check.ok and "sample" in check.name}


def test_samples_of_an_ended_run_leave_and_the_rest_stays(ended, folder):
    conn = ended.conn
    assert retention.due(conn, 3 * 86_400) == []
    assert retention.due(conn, 86_400) == [1]
    assert retention.collect(conn, folder) == 0
    assert retention.retire_samples(conn, 1).samples == 2
    assert (ended.count("sample"), ended.count("episode"), ended.count("policy_version")) == (0, 2, 2)
    assert (retention.collect(conn, folder), files(folder)) == (1, [])
    assert retention.due(conn, 0) == []
    assert sample_checks(ended) == set(), "what was retired is not missing"
    assert trajectories.episode(conn, 1, (0, 0, 1)).turns == []
    with pytest.raises(Refused) as refused:
        micro_batches.read(conn, 1, "solver", 0)
    assert refused.value.code == "missing_sample"


def test_a_living_run_keeps_its_samples(story, folder):
    story.settle(0)
    with pytest.raises(Refused, match="has not ended"):
        retention.retire_samples(story.conn, 1)
    assert story.count("sample") == 2


def test_a_run_that_lives_again_writes_into_new_files_and_keeps_them(ended, folder):
    former = files(folder)
    retention.retire_samples(ended.conn, 1)
    ended.status, ended.epoch = RunStatus.RUNNING, 2
    ended.decide()
    taken = ended.take(ended.play(1))
    put_groups(ended.conn, taken, [ended.group(1, taken)], folder)
    ended.cut(1, 1)
    assert retention.collect(ended.conn, folder) == 1
    assert len(files(folder)) == 1
    assert files(folder) != former
    assert len(micro_batches.read(ended.conn, 1, "solver", 1).rows) == 2
    assert sample_checks(ended) == set()
    ended.conn.execute("DELETE FROM store.sample WHERE member = 0")
    assert sample_checks(ended) == {"sample_rows_match_log"}


def test_a_run_that_lives_again_between_two_steps_takes_its_samples_back(ended, folder, monkeypatch):
    detach = partitions.detach

    def detach_and_resume(conn, table, run_id):
        detach(conn, table, run_id)
        ended.status, ended.epoch = RunStatus.RUNNING, 2
        ended.decide()

    monkeypatch.setattr(partitions, "detach", detach_and_resume)
    with pytest.raises(Refused, match="has not ended"):
        retention.retire_samples(ended.conn, 1)
    assert (ended.count("sample"), ended.count("retirement"), len(files(folder))) == (2, 0, 1)
    monkeypatch.undo()
    ended.epoch = 2
    ended.settle(1)
    assert ended.count("sample") == 4


def live_again(story):
    story.status, story.epoch = RunStatus.RUNNING, story.epoch + 1
    story.decide()


def test_a_table_taken_back_does_not_bring_back_what_went_before(ended, monkeypatch):
    retention.retire_samples(ended.conn, 1)
    live_again(ended)
    ended.settle(1)
    end(ended)
    detach = partitions.detach

    def detach_and_resume(conn, table, run_id):
        detach(conn, table, run_id)
        live_again(ended)

    monkeypatch.setattr(partitions, "detach", detach_and_resume)
    with pytest.raises(Refused, match="has not ended"):
        retention.retire_samples(ended.conn, 1)
    monkeypatch.undo()
    assert ended.count("sample") == 2
    assert sample_checks(ended) == set(), "the first retirement's samples are not missed"
    end(ended)
    assert retention.due(ended.conn, 86_400) == [1]
    assert retention.retire_samples(ended.conn, 1).samples == 4
    assert sample_checks(ended) == set()


def test_nothing_is_decided_about_a_run_between_the_last_look_and_the_end(ended, another, monkeypatch):
    driver, drop, refused = another(), partitions.drop, []

    def decide_and_drop(conn, table, run_id):
        driver.execute("SET lock_timeout = '100ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            driver.execute("UPDATE store.run_state SET epoch = 2, status = 'running' WHERE run_id = 1")
        refused.append(True)
        drop(conn, table, run_id)

    monkeypatch.setattr(partitions, "drop", decide_and_drop)
    retention.retire_samples(ended.conn, 1)
    assert refused == [True]


def test_whoever_writes_while_the_table_is_away_is_told_so_and_writes_later(ended, folder, monkeypatch):
    with monkeypatch.context() as broken:
        broken.setattr(partitions, "drop", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            retention.retire_samples(ended.conn, 1)
    assert sample_checks(ended) == set(), "what stands apart is not missing"
    live_again(ended)
    taken = ended.take(ended.play(1))
    for payloads in (folder, None):
        with pytest.raises(SamplesAway):
            put_groups(ended.conn, taken, [ended.group(1, taken)], payloads)
    assert (ended.count("episode"), ended.count("inbox")) == (2, 0)
    assert retention.due(ended.conn, None) == [1]
    with pytest.raises(Refused, match="has not ended"):
        retention.retire_samples(ended.conn, 1)
    assert put_groups(ended.conn, taken, [ended.group(1, taken)], folder) == 1
    assert ended.count("sample") == 4
    assert sample_checks(ended) == set()


def test_a_group_that_is_still_to_be_told_keeps_the_samples(story, folder):
    taken = story.take(story.play(0))
    put_groups(story.conn, taken, [story.group(0, taken)], folder)
    story.conn.execute("UPDATE store.run_state SET status = 'killed', finished_at = now()")
    with pytest.raises(Refused, match="has not ended"):
        retention.retire_samples(story.conn, 1)
    assert story.count("sample") == 2


@pytest.mark.parametrize("step", ["detach", "drop", "attach"])
def test_what_was_interrupted_is_finished_by_the_next_janitor(ended, folder, monkeypatch, step):
    def killed(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(partitions, step, killed)
    with pytest.raises(KeyboardInterrupt):
        retention.retire_samples(ended.conn, 1)
    monkeypatch.undo()
    assert retention.due(ended.conn, 3 * 86_400) == [1], "an interrupted one is due at any age"
    assert retention.retire_samples(ended.conn, 1).samples == 2
    assert (ended.count("sample"), retention.collect(ended.conn, folder)) == (0, 1)


def test_a_reader_that_keeps_the_samples_stops_the_janitor_and_nobody_else(ended, another, store_conn):
    other = Story(store_conn, run_id=2, owner="driver-2").start()
    reader = another()
    with reader.transaction():
        reader.execute("SELECT count(*) FROM store.sample WHERE run_id = 1")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            retention.retire_samples(ended.conn, 1)
        other.settle(0)
        assert reader.execute("SELECT count(*) FROM store.sample WHERE run_id = 2").fetchone() == (2,)
    assert retention.retire_samples(ended.conn, 1).samples == 2


def test_one_janitor_works_at_a_time(store_conn, another):
    with retention.janitor(store_conn) as first, retention.janitor(another()) as second:
        assert (first, second) == (True, False)
    with retention.janitor(another()) as third:
        assert third


def test_files_of_a_dropped_run_are_collected_and_those_not_yet_named_stay(ended, folder):
    folder.append(1, 7, [b"its rows are about to be written"])
    assert retention.collect(ended.conn, folder) == 0
    deletions.drop_run(ended.conn, 1)
    assert (retention.collect(ended.conn, folder), files(folder)) == (2, [])
    assert list(folder.root.glob("run-*")) == []


def count_of(conn, table, run_id):
    return conn.execute(f"SELECT count(*) FROM store.{table} WHERE run_id = {run_id}").fetchone()[0]


def test_samples_in_a_shared_table_leave_and_those_of_others_stay(shared, folder):
    conn = shared.conn
    assert not partitions.has_own(conn, "sample", 1)
    assert retention.due(conn, 86_400) == [1]
    assert retention.retire_samples(conn, 1).samples == 2
    assert (count_of(conn, "sample", 1), count_of(conn, "sample", 2), count_of(conn, "episode", 1)) == (0, 2, 2)
    assert (retention.collect(conn, folder), sample_checks(shared)) == (1, set())
    assert retention.due(conn, 0) == []


def test_a_retirement_in_a_shared_table_that_is_interrupted_took_nothing(shared, monkeypatch):
    monkeypatch.setattr(retention, "_still_ended", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        retention.retire_samples(shared.conn, 1)
    monkeypatch.undo()
    assert count_of(shared.conn, "sample", 1) == 2
    assert sample_checks(shared) == set(), "what is still there is counted"
    live_again(shared)
    with pytest.raises(Refused, match="has not ended"):
        retention.retire_samples(shared.conn, 1)
    assert (count_of(shared.conn, "sample", 1), sample_checks(shared)) == (2, set())
