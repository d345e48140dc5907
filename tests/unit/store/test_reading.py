"""What pages and people read: reports that turn red for the right reason, trajectories, thinned series."""

import numpy as np
import pytest

from flexmarl.contracts.imported_rows import RowsImported
from flexmarl.contracts.live import Progress
from flexmarl.contracts.status import RunStatus
from flexmarl.store.data import imported_rows, micro_batches, retention
from flexmarl.store.data.groups import SampleRow
from flexmarl.store.data.spans import Span
from flexmarl.store.reads import cohort_rows, episodes, report, report_rows, trajectories
from flexmarl.store.reads.episodes import EpisodeFilter
from flexmarl.store.telemetry import intervals, metric_cells
from tests.support.store_story import Story

pytestmark = pytest.mark.services


@pytest.fixture
def finished(story):
    """One step over two groups, one cut a second time into a step of its own, and the run's end."""
    lease_id = story.trainer("t1")
    story.settle(0, 1)
    story.cut(0, 0, 1)
    story.accumulate(lease_id, 0, "0:t1")
    story.step(lease_id, "0:t1", (0,), 1)
    story.progress = Progress(episodes_proposed=4, episodes_finished=4)
    story.conn.execute("UPDATE store.lease SET state = 'releasing'")
    story.status = RunStatus.COMPLETED
    story.decide()
    return story


def red(story):
    return [check.name for check in report.consistency_report(story.conn, story.run_id) if not check.ok]


def test_a_sound_run_passes_every_check(finished):
    assert red(finished) == []
    counts = report.counts(finished.conn, 1)
    assert (counts.episodes, counts.samples, counts.tokens, counts.samples_trained) == (4, 4, 12, 4)
    assert (counts.micro_batches_applied, counts.versions, counts.waiting_events) == (1, 2, 0)


def test_rows_older_than_the_bound_are_no_fault_of_a_run_that_trains_them(finished):
    finished.conn.execute("UPDATE store.sample SET version = -1 WHERE draw = 1")
    assert "own_lag_within_bound" in red(finished)
    finished.conn.execute(
        """UPDATE store.run_state SET spec = spec || '{"mechanisms": {"lag_policy": {"at_cut": "train"}}}'"""
    )
    assert "own_lag_within_bound" not in red(finished)


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        ("DELETE FROM store.event WHERE seq = 2", "log_gapless"),
        ("DELETE FROM store.sample WHERE member = 0 AND draw = 0", "trained_samples_exist"),
        ("DELETE FROM store.sample WHERE member = 0 AND draw = 0", "sample_rows_match_log"),
        ("DELETE FROM store.episode WHERE member = 0 AND draw = 0", "groups_complete"),
        ("DELETE FROM store.episode WHERE member = 0 AND draw = 0", "episode_rows_match_log"),
        ("UPDATE store.sample SET version = -1 WHERE draw = 1", "own_lag_within_bound"),
        ("UPDATE store.policy_version SET version = 5 WHERE version = 1", "versions_chain"),
        ("UPDATE store.policy_version SET version = 5 WHERE version = 1", "applied_belong_to_steps"),
        ("DELETE FROM store.policy_version WHERE version = 1", "steps_match_log"),
        ("UPDATE store.run_state SET progress = progress || '{\"episodes_proposed\": 5}'", "episodes_accounted"),
        ("UPDATE store.micro_batch SET status = 'cut'", "ended_run_is_closed"),
        (
            "INSERT INTO store.micro_batch SELECT run_id, policy, 9, cohort, status, reason, keys, advantages, weights,"
            " accumulator, stats, version, cut_at, done_at FROM store.micro_batch",
            "none_trained_twice",
        ),
    ],
)
def test_each_damage_turns_its_line_red(finished, damage, name):
    finished.conn.execute(damage.encode())
    assert name in red(finished)


@pytest.fixture
def replaying(story):
    """Two steps: the second one is taken on a group of its own, and on one of the first again."""
    lease_id = story.trainer("t1")
    story.settle(0, 1)
    story.cut(0, 0, 1)
    story.accumulate(lease_id, 0, "0:t1")
    story.step(lease_id, "0:t1", (0,), 1)
    story.settle(2, version=1)
    story.cut(1, 2)
    story.cut(2, 0, replayed=True)
    story.accumulate(lease_id, 1, "1:t1")
    story.accumulate(lease_id, 2, "1:t1")
    story.step(lease_id, "1:t1", (1, 2), 2)
    rule = '{"sampling": {"replay": {"type": "archive", "max_age": 1}}}'
    story.conn.execute("UPDATE store.run_state SET spec = spec || %s::jsonb", [rule])
    story.progress = Progress(episodes_proposed=6, episodes_finished=6)
    story.decide()
    return story


def test_replayed_rows_are_counted_by_themselves_and_each_row_is_trained_once(replaying):
    assert red(replaying) == []
    counts = report.counts(replaying.conn, 1)
    assert (counts.samples, counts.samples_trained, counts.rows_replayed) == (6, 6, 2)


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        ("UPDATE store.micro_batch SET keys = keys || keys WHERE no = 2", "replayed_once_per_step"),
        ("UPDATE store.micro_batch SET status = 'void' WHERE no = 0", "replayed_were_trained"),
        ("UPDATE store.sample SET version = -1 WHERE draw = 0", "replayed_within_age"),
        ("UPDATE store.micro_batch SET replayed = false WHERE no = 2", "none_trained_twice"),
    ],
)
def test_each_damage_of_a_replay_turns_its_line_red(replaying, damage, name):
    replaying.conn.execute(damage.encode())
    assert name in red(replaying)


@pytest.fixture
def begun_with_others(story):
    """A step that is taken on two rows of its own and on one of another run, of which two were imported."""
    lease_id = story.trainer("t1")
    event = RowsImported(name="earlier", rows=2)
    imported_rows.put(story.conn, 1, [another(member) for member in range(2)], event)
    story.settle(0)
    story.cut(0, 0)
    story.cut(1, -3, replayed=True)
    story.accumulate(lease_id, 0, "0:t1")
    story.accumulate(lease_id, 1, "0:t1")
    story.step(lease_id, "0:t1", (0, 1), 1)
    rule = '{"sampling": {"replay": {"type": "archive", "max_age": 1}}}'
    story.conn.execute("UPDATE store.run_state SET spec = spec || %s::jsonb", [rule])
    story.progress = Progress(episodes_proposed=2, episodes_finished=2)
    story.decide()
    return story


def another(member):
    return SampleRow(
        draw=-3, member=member, attempt=1, role="solver", turn=0, policy="solver", version=imported_rows.ANOTHERS,
        segments=[imported_rows.ANOTHERS, 2], prompt=[1, 2], response=[4, 5], logprobs=[-0.5, -0.25], allowed=(),
        spans=[Span(2, 2, "")],
    )  # fmt: skip


def test_imported_rows_are_replayed_rows_and_no_samples_of_the_run(begun_with_others):
    assert red(begun_with_others) == []
    counts = report.counts(begun_with_others.conn, 1)
    assert (counts.samples, counts.samples_trained) == (2, 2)
    assert (counts.rows_replayed, counts.rows_replayed_imported) == (2, 2)
    [batches] = cohort_rows.batches(begun_with_others.conn, 1, 0, 0)
    assert (batches.rows, batches.replayed, batches.imported) == (4, 2, 2)
    assert not imported_rows.put(begun_with_others.conn, 1, [], RowsImported(name="earlier", rows=2)), "once"


def test_each_damage_of_imported_rows_turns_its_line_red_and_retired_ones_are_not_missed(begun_with_others):
    conn = begun_with_others.conn
    for damage, name in [
        ("DELETE FROM store.sample WHERE draw = -3 AND member = 1", "imported_rows_match_log"),
        ("UPDATE store.micro_batch SET version = 3 WHERE no = 1", "replayed_within_age"),
        ("UPDATE store.micro_batch SET keys = keys || keys WHERE no = 1", "replayed_once_per_step"),
    ]:
        with conn.transaction(force_rollback=True):
            conn.execute(damage.encode())
            assert name in red(begun_with_others)
    with conn.transaction(force_rollback=True):
        conn.execute("UPDATE store.micro_batch SET version = 2 WHERE no = 1")
        assert "replayed_within_age" not in red(begun_with_others), "as old as version 0, which is 1 version older"
    conn.execute("UPDATE store.run_state SET status = 'completed', finished_at = now() - interval '1 day'")
    before = red(begun_with_others)
    retention.retire_samples(conn, 1)
    assert red(begun_with_others) == before


def test_ranges_of_one_row_say_what_wide_ones_say(finished, monkeypatch):
    finished.conn.execute(
        "INSERT INTO store.episode SELECT run_id, draw + (1 << 30), member, attempt, 'eval', status, reason, cohort,"
        " scores, team_score, solved, turns, tokens, pins, task, transcript, facts, judged, said,"
        " said_marks, breaks, started_at, finished_at"
        " FROM store.episode"
    )
    wide, heard = report.full_report(finished.conn, 1), []
    for name in ("EVENTS", "COMMANDS", "EPISODES", "SAMPLES", "BATCHES"):
        monkeypatch.setattr(report_rows, name, 1)
    narrow = report.full_report(finished.conn, 1, lambda done, now: heard.append((done, now)))
    assert narrow == wide
    assert [done for done, _ in heard] == sorted(done for done, _ in heard)
    assert heard[-1] == (1000, "")
    assert {"log", "commands", "episodes", "samples", "trained"} <= {now for _, now in heard}


def test_no_statement_of_a_report_reads_more_than_its_range(finished, monkeypatch):
    monkeypatch.setattr(report_rows, "EVENTS", 1)
    ranges = []
    row = report_rows._Reader._row

    def noted(self, statement, **values):
        if "low" in values and values["high"] < 2**62:
            ranges.append(values["high"] - values["low"])
        return row(self, statement, **values)

    monkeypatch.setattr(report_rows._Reader, "_row", noted)
    events = report.full_report(finished.conn, 1).counts.events
    assert ranges.count(1) == events
    assert max(ranges) <= max(report_rows.COMMANDS, report_rows.BATCHES)


def test_whoever_hears_of_a_report_ends_it(finished):
    def enough(done, now):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        report.full_report(finished.conn, 1, enough)
    assert red(finished) == []


def test_a_living_run_counts_what_is_in_flight(story):
    story.play(0, 1)
    story.progress = Progress(episodes_proposed=4)
    story.decide()
    assert "episodes_accounted" not in red(story)
    story.progress = Progress(episodes_proposed=5)
    story.decide()
    assert "episodes_accounted" in red(story)


def test_rows_written_meanwhile_shift_no_page(story):
    story.settle(0, 1, 2)
    seen, page = [], episodes.page(story.conn, 1, EpisodeFilter(), limit=2)
    while True:
        seen += [(row.draw, row.member) for row in page.rows]
        story.settle(10 + len(seen))
        if page.behind is None:
            break
        page = episodes.page(story.conn, 1, EpisodeFilter(), limit=2, position=page.behind)
    assert seen == [(2, 1), (2, 0), (1, 1), (1, 0), (0, 1), (0, 0)]


def test_an_episode_shows_its_tokens_advantage_and_group(finished):
    detail = trajectories.episode(finished.conn, 1, (1, 0, 1))
    [turn] = detail.turns
    assert turn.arrays.response_ids().tolist() == [4, 5, 6]
    assert (turn.cut.advantage, turn.cut.no, turn.cut.status) == (-0.5, 0, "applied")
    assert (turn.cut.cohort, turn.cut.version) == (0, 1)
    assert [(one.member, one.team_score) for one in trajectories.group(finished.conn, 1, 1)] == [(0, 0.0), (1, 1.0)]
    assert detail.episode.task == {"title": "task 1"}
    assert trajectories.episode(finished.conn, 1, (9, 0, 1)) is None
    both = trajectories.details(finished.conn, 1, [(1, 0, 1), (9, 0, 1), (0, 1, 1)])
    assert [one.episode.key for one in both] == [(1, 0, 1), (0, 1, 1)], "in the order asked for"
    assert [len(one.turns) for one in both] == [1, 1]


def test_no_read_touches_another_runs_partition(finished, store_conn):
    other = Story(store_conn, run_id=15, owner="driver-2").start()  # a number with tables of its own
    other.settle(0)
    store_conn.execute("SELECT pg_stat_force_next_flush()")
    before = scans(store_conn)
    episodes.page(store_conn, 1, EpisodeFilter(solved=True), limit=10)
    episodes.tallies(store_conn, 1, EpisodeFilter())
    trajectories.episode(store_conn, 1, (0, 0, 1))
    report.counts(store_conn, 1)
    report.consistency_report(store_conn, 1)
    store_conn.execute("SELECT pg_stat_force_next_flush()")
    after = scans(store_conn)
    assert {name for name in after if after[name] > before[name]} <= {"episode_block_0", "sample_block_0"}
    assert after["sample_block_0"] > before["sample_block_0"]


def scans(conn):
    conn.execute("SELECT pg_stat_clear_snapshot()")
    rows = conn.execute(
        "SELECT relname, seq_scan + coalesce(idx_scan, 0) FROM pg_stat_all_tables "
        "WHERE schemaname = 'store' AND relname ~ '_[0-9]+$'"
    ).fetchall()
    return dict(rows)


def test_a_thinned_series_keeps_ends_and_extremes():
    ys = [0.0] * 1000
    ys[417], ys[803] = 9.0, -9.0
    cells = metric_cells.Cells.of_points(np.arange(1000), np.arange(1000.0), np.asarray(ys))
    kept, values = metric_cells.pick(cells, 50)
    assert len(kept) <= 50
    assert (kept[0], kept[-1], kept[values.index(9.0)], kept[values.index(-9.0)]) == (0, 999, 417, 803)
    few = metric_cells.Cells.of_points(np.arange(2), np.asarray([1.0, 2.0]), np.asarray([3.0, 4.0]))
    assert metric_cells.pick(few, 50) == ([0, 1], [3.0, 4.0])


def test_intervals_are_stored_once_and_clipped(story):
    rows = [intervals.BusyInterval(0, "train", "solver", 10.0, 12.0), intervals.BusyInterval(1, "step", "", 13.0, 14.0)]
    for _ in range(2):
        intervals.put(story.conn, 1, 7, "box.cpu1", incarnation="t1", rows=rows)
    assert intervals.newest_ord(story.conn, 7, "t1") == 1
    assert [(b.phase, b.seconds) for b in intervals.busy(story.conn, 1, 11.0)] == [("step", 1.0), ("train", 1.0)]
    found = intervals.between(story.conn, 1, 11.0, 13.5)
    assert [(i.phase, i.t0, i.t1) for i in found] == [("train", 11.0, 12.0), ("step", 13.0, 13.5)]


def test_a_micro_batch_is_read_by_its_keys_however_many_rows_the_run_has(story):
    story.settle(0)
    story.cut(0, 0)
    story.conn.execute(
        """
        INSERT INTO store.sample (run_id, draw, member, attempt, role, turn, policy, version, segments, n_prompt,
          n_response, finish, payload)
        SELECT 1, 1000 + n, 0, 1, 'solver', 0, 'solver', 0, '{}', 0, 0, 'stop', '' FROM generate_series(1, 5000) n
        """
    )
    which = {"run": 1, "policy": "solver", "no": 0}
    plan = "\n".join(row[0] for row in story.conn.execute(f"EXPLAIN {micro_batches.MEMBERS}".encode(), which))
    assert "Index Scan using sample_block_0_pkey" in plan, plan
    assert "Seq Scan" not in plan, plan
    assert "Hash" not in plan, plan
    assert len(micro_batches.read(story.conn, 1, "solver", 0).rows) == 2
