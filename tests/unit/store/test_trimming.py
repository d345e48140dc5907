"""Tokens of training trajectories leave once they are trained for good; rows and accounts stay."""

import os

import orjson
import pytest
from psycopg.pq import TransactionStatus

from flexmarl.store.data import micro_batches, trimming
from flexmarl.store.data.groups import put_groups
from flexmarl.store.data.segments import SegmentFolder
from flexmarl.store.errors import Refused
from flexmarl.store.reads import report, trajectories

pytestmark = pytest.mark.services


@pytest.fixture
def trained(story, tmp_path, monkeypatch):
    """A run with five steps on one group each, one payload by reference and one in its row."""
    monkeypatch.setattr(trimming, "LEAST_BYTES", 1)
    folder = SegmentFolder(tmp_path / "payloads", by_value_bytes=0)
    lease_id = story.trainer("t1")
    for draw in range(5):
        taken = story.take(story.play(draw))
        put_groups(story.conn, taken, [story.group(draw, taken)], folder if draw % 2 else None)
        story.cut(draw, draw)
        story.accumulate(lease_id, draw, f"{draw}:t1")
        story.step(lease_id, f"{draw}:t1", (draw,), draw + 1)
    folder.close()
    story.conn.execute("UPDATE store.policy_version SET state = 'durable' WHERE version = 5")
    return story


def ask_for(story, share):
    spec = orjson.dumps({"name": "story", "trajectories": {"training_share": share}}).decode()
    story.conn.execute("UPDATE store.run_state SET spec = %s::jsonb", [spec])


def kept(story):
    rows = story.conn.execute("SELECT DISTINCT draw FROM store.sample WHERE num_nonnulls(payload, segment) = 1")
    return {row[0] for row in rows.fetchall()}


def failed(story):
    return {check.name for check in report.consistency_report(story.conn, 1) if not check.ok}


def test_what_is_trained_for_good_leaves_and_its_rows_stay(trained):
    before = failed(trained)
    done = trimming.trim(trained.conn, 1, 0.0)
    assert (done.payloads, done.more) == (4, False)
    assert kept(trained) == {2, 3, 4}, "steps behind the newest durable state may be redone"
    assert trained.count("sample") == 10
    assert failed(trained) == before
    assert trimming.trim(trained.conn, 1, 0.0).payloads == 0


def test_room_is_given_back_behind_the_commit(trained, monkeypatch):
    """What a row still names is never a hole, however the transaction ends."""
    seen = []
    monkeypatch.setattr(trimming, "_punch", lambda path, ranges: seen.append(trained.conn.info.transaction_status))
    trimming.trim(trained.conn, 1, 0.0)
    assert seen == [TransactionStatus.IDLE]


def test_without_a_durable_state_nothing_leaves(trained):
    trained.conn.execute("UPDATE store.policy_version SET state = ''")
    assert trimming.trim(trained.conn, 1, 0.0).payloads == 0


def test_what_is_not_applied_stays(trained):
    trained.conn.execute("UPDATE store.micro_batch SET status = 'accumulated' WHERE no = 0")
    assert trimming.trim(trained.conn, 1, 0.0).payloads == 0, "nothing behind an open one is looked at"
    assert kept(trained) == {0, 1, 2, 3, 4}


def test_a_share_stays_and_a_group_stays_whole(trained):
    assert trimming.trim(trained.conn, 1, 1.0).payloads == 0
    trained.conn.execute("DELETE FROM store.trimming")
    share = 0.5
    wanted = {draw for draw in (0, 1) if draw * 2654435761 % 2**32 < share * 2**32}
    trimming.trim(trained.conn, 1, share)
    assert kept(trained) == {2, 3, 4} | wanted
    assert 0 < len(wanted) < 2


def test_small_payloads_stay(trained, monkeypatch):
    monkeypatch.setattr(trimming, "LEAST_BYTES", 10**6)
    assert trimming.trim(trained.conn, 1, 0.0).payloads == 0


def test_a_reader_is_told_why_there_are_no_tokens(trained):
    trimming.trim(trained.conn, 1, 0.0)
    for draw in (0, 1):
        detail = trajectories.episode(trained.conn, 1, (draw, 0, 1))
        assert "payload_not_kept" in detail.turns[0].unreadable
    with pytest.raises(Refused) as refused:
        micro_batches.read(trained.conn, 1, "solver", 0)
    assert refused.value.code == "payload_not_kept"


def test_only_runs_that_ask_for_it_are_looked_at(trained):
    assert trimming.runs_with_a_share(trained.conn) == [], "a run of before keeps everything"
    ask_for(trained, 1.0)
    assert trimming.runs_with_a_share(trained.conn) == []
    ask_for(trained, 0.1)
    assert trimming.runs_with_a_share(trained.conn) == [(1, 0.1, 0)]
    rule = '{"sampling": {"replay": {"type": "archive", "max_age": 5}}}'
    trained.conn.execute("UPDATE store.run_state SET spec = spec || %s::jsonb", [rule])
    assert trimming.runs_with_a_share(trained.conn) == [(1, 0.1, 5)], "replay may take rows as old as that"


def test_room_in_a_file_is_given_back(tmp_path):
    path = tmp_path / "a.segment"
    path.write_bytes(os.urandom(1 << 20))
    before = path.stat().st_blocks
    trimming._punch(path, [(0, 400_000), (400_000, 400_000)])
    if path.read_bytes()[:10] != bytes(10):
        pytest.skip("this file system knows no holes")
    assert path.stat().st_size == 1 << 20
    assert path.stat().st_blocks < before / 2
    assert path.read_bytes()[800_000:] != bytes((1 << 20) - 800_000)
