"""Queues over time, open turns and replies that moved, as reports and rulings tell them."""

from dataclasses import replace

import pytest

from flexmarl.contracts.commands import LoadWeights, UnloadPolicy
from flexmarl.contracts.events import DeviceUse, RequestedTurns
from flexmarl.contracts.status import RunStatus
from flexmarl.store.control import deletions, runs
from flexmarl.store.reads import engine_moves, load_rows
from flexmarl.store.telemetry.load_reports import EngineReport, OpenTurn, TurnReport, put_asked, put_engines
from tests.support.store_story import DIGEST

pytestmark = pytest.mark.services


def turn(since, **changes):
    usual = {"role": "solver", "policy": "solver", "draw": 7, "member": 1, "attempt": 1, "turn": 0}
    rest = {"episode_since": since, "since": since, "tokens": 12, "engine": "e1.1.1", "moves": 0}
    return OpenTurn(**{**usual, **rest, **changes})


def report(waiting=2, in_flight=3, longest=(), moved=()):
    asked = {"solver": RequestedTurns(waiting=waiting, in_flight=in_flight)} if waiting or in_flight else {}
    return TurnReport(asked, waiting + in_flight, list(longest), dict(moved))


def engine_load(lease_id, running, waiting):
    return EngineReport(1, lease_id, f"e{lease_id}.1.1", running, waiting, 8, 0, 0, None, None)


def older(story, table, seconds):
    story.conn.execute(
        f"UPDATE store.{table} SET at = at - make_interval(secs => %(s)s), slot = (slot - %(s)s::int / 2 + 900) %% 900",
        {"s": seconds},
    )


def test_what_workers_ask_is_the_sum_of_their_last_reports(story):
    put_asked(story.conn, 1, "a", report(9, 9))
    put_asked(story.conn, 1, "a", report(2, 3))
    put_asked(story.conn, 1, "b", report(1, 0))
    assert load_rows.asked_now(story.conn, 1) == [load_rows.RequestedNow("solver", 3, 3)]
    assert load_rows.asked_now(story.conn, 2) == []
    put_asked(story.conn, 1, "a", report(0, 0))
    assert load_rows.asked_now(story.conn, 1) == [load_rows.RequestedNow("solver", 1, 0)], "a asks for nothing any more"


def test_a_worker_that_says_nothing_any_more_counts_no_more(story):
    put_asked(story.conn, 1, "a", report(longest=[turn(5.0)]))
    older(story, "asked_load", 20)
    story.conn.execute("UPDATE store.open_turns SET at = at - interval '20 seconds'")
    assert load_rows.asked_now(story.conn, 1) == []
    assert load_rows.open_turns(story.conn, 1, 5) == load_rows.OpenTurnRows(False, 0, [])


def test_the_longest_open_turns_come_first_whoever_told_them(story):
    put_asked(story.conn, 1, "a", report(longest=[turn(20.0), turn(30.0)]))
    put_asked(story.conn, 1, "b", report(longest=[turn(10.0, role="critic", moves=2)]))
    found = load_rows.open_turns(story.conn, 1, 2)
    assert (found.told, found.open) == (True, 10)
    assert [one.since for one in found.longest] == [10.0, 20.0]
    assert found.longest[0] == turn(10.0, role="critic", moves=2)


def test_open_turns_of_a_seat_are_the_sum_of_what_workers_told_lately(story):
    assert load_rows.seats(story.conn, 1) is None
    put_asked(story.conn, 1, "a", replace(report(), seats={"solver": (3, 1), "critic": (1, 1)}))
    put_asked(story.conn, 1, "b", replace(report(), seats={"solver": (2, 2)}))
    assert load_rows.seats(story.conn, 1) == {"solver": (5, 3), "critic": (1, 1)}
    put_asked(story.conn, 1, "a", report())
    assert load_rows.seats(story.conn, 1) == {"solver": (2, 2)}
    story.conn.execute("UPDATE store.open_turns SET at = at - interval '20 seconds'")
    assert load_rows.seats(story.conn, 1) is None


def test_an_ended_run_shows_its_last_part_and_a_live_one_waits_until_it_is_whole(story):
    lease_id = story.granted()[DeviceUse.ENGINE]
    story.hosted(lease_id, DeviceUse.ENGINE, f"e{lease_id}.1.1")
    story.conn.execute("UPDATE store.lease SET use = 'engine', incarnation = 'e' || id || '.1.1'")
    put_engines(story.conn, [engine_load(lease_id, 2, 1)])
    put_asked(story.conn, 1, "a", report(4, 7))
    [told] = story.conn.execute("SELECT extract(epoch FROM at)::float8 FROM store.engine_load").fetchone()
    ended = load_rows.window(story.conn, 1800, told // 12 * 12 + 11.9)
    assert ended.part_s == 12.0
    assert [point.engines for point in load_rows.queues(story.conn, 1, ended)] == [1]
    assert [point.policy for point in load_rows.asked(story.conn, 1, ended)] == ["solver"]
    live = replace(ended, live=True)
    assert load_rows.queues(story.conn, 1, live) == load_rows.asked(story.conn, 1, live) == []


def test_queues_over_time_have_their_skew(story):
    lease_id = story.granted()[DeviceUse.ENGINE]
    story.hosted(lease_id, DeviceUse.ENGINE, f"e{lease_id}.1.1")
    story.conn.execute("UPDATE store.lease SET use = 'engine', incarnation = 'e' || id || '.1.1'")
    put_engines(story.conn, [engine_load(lease_id, 6, 3), engine_load(lease_id + 1, 1, 0)])
    put_asked(story.conn, 1, "a", report(4, 7))
    older(story, "engine_load", 40)
    older(story, "asked_load", 40)
    put_engines(story.conn, [engine_load(lease_id, 0, 0)])
    own = load_rows.window(story.conn, 60, None)
    assert own.part_s == 2.0
    busy, idle = load_rows.queues(story.conn, 1, own)
    assert (busy.engines, busy.running, busy.waiting, busy.longest) == (2, 7, 3, 9)
    assert busy.skew == pytest.approx(9 / 5)
    assert (idle.engines, idle.running, idle.skew) == (1, 0, None)
    [asked] = load_rows.asked(story.conn, 1, own)
    assert (asked.policy, asked.waiting, asked.in_flight) == ("solver", 4, 7)
    assert busy.at == asked.at
    assert load_rows.queues(story.conn, 1, load_rows.window(story.conn, 20, None)) == [idle]
    assert load_rows.window(story.conn, 99_999, None).part_s == 12.0, "no more than the rings keep"


def test_the_rings_never_grow(story):
    lease_id = story.granted()[DeviceUse.ENGINE]
    story.hosted(lease_id, DeviceUse.ENGINE, f"e{lease_id}.1.1")
    for _ in range(3):
        put_engines(story.conn, [engine_load(lease_id, 1, 1)])
        put_asked(story.conn, 1, "a", report())
        older(story, "engine_load", 1800)  # once around: the same slot
        older(story, "asked_load", 1800)
    put_engines(story.conn, [engine_load(lease_id, 1, 1)])
    assert story.count("engine_load") <= 2
    own = load_rows.window(story.conn, 1800, None)
    assert len(load_rows.queues(story.conn, 1, own)) <= 1, "what a round before told is not of this window"


def test_replies_that_moved_are_counted_over_lives_of_workers(story):
    put_asked(story.conn, 1, "a", report(moved={("silent", "e1.1.1"): 2}))
    put_asked(story.conn, 1, "a", report(moved={("silent", "e1.1.1"): 5, ("aborted", "e1.1.1"): 1}))
    put_asked(story.conn, 1, "b", report(moved={("silent", "e1.1.1"): 3}))
    found = [(one.cause, one.engine, one.turns) for one in load_rows.moved(story.conn, 1)]
    assert found == [("silent", "e1.1.1", 8), ("aborted", "e1.1.1", 1)]


def test_a_move_tells_who_gave_why_and_what_it_took(story):
    lease_id = story.granted()[DeviceUse.ENGINE]
    story.conn.execute(
        "INSERT INTO store.ruling (run_id, seq, ord, kind, cause, policy, target, reason, at) VALUES "
        "(1, 5, 0, 'engine_assigned', '', 'a', %(t)s, 'free', clock_timestamp() - interval '9 s'), "
        "(1, 9, 0, 'engine_moved', 'disparity', 'b', %(t)s, 'b has 9 turns', clock_timestamp() - interval '5 s'), "
        "(1, 9, 1, 'rows_dropped', '', 'b', '', '', clock_timestamp())",
        {"t": f"lease:{lease_id}"},
    )
    unload = story.issue(UnloadPolicy(lease_id=lease_id, policy="a"))
    load = story.issue(LoadWeights(lease_id=lease_id, policy="b", version=3, digest=DIGEST))
    story.conn.execute("UPDATE store.command SET seq = 9 WHERE no = ANY(%s)", [[unload, load]])
    moved, assigned = engine_moves.page(story.conn, 1, (), (), engine_moves.EngineMovePosition(), 9)
    assert (moved.policy, moved.out, moved.cause, moved.lease_id) == ("b", "a", "disparity", lease_id)
    assert (moved.device_id, moved.reason) == ("box.cpu0", "b has 9 turns")
    assert (moved.load_s, moved.until_served_s) == (None, None), "it is not served yet"
    assert (assigned.policy, assigned.out) == ("a", "")
    story.conn.execute(
        "UPDATE store.command SET status = 'done', taken_at = clock_timestamp() - interval '1 s', "
        "done_at = clock_timestamp() WHERE no = %s",
        [load],
    )
    moved = engine_moves.page(story.conn, 1, ("engine_moved",), ("b",), engine_moves.EngineMovePosition(), 9)[0]
    assert moved.load_s == pytest.approx(1.0, abs=0.05)
    assert moved.until_served_s == pytest.approx(5.0, abs=2.0)
    assert engine_moves.page(story.conn, 1, (), (), engine_moves.EngineMovePosition(9, 0), 9) == [assigned]
    assert engine_moves.page(story.conn, 1, (), ("nobody",), engine_moves.EngineMovePosition(), 9) == []


def test_a_run_that_is_deleted_leaves_no_report(story):
    put_asked(story.conn, 1, "a", report(moved={("silent", "e"): 1}))
    runs.create_run(story.conn, 2, {}, RunStatus.DRAFT)
    story.conn.execute("UPDATE store.run_state SET status = 'completed' WHERE run_id = 1")
    deletions.drop_run(story.conn, 1)
    assert [story.count(table) for table in ("asked_load", "open_turns", "moved_turns", "engine_load")] == [0] * 4
