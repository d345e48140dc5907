"""Who gets a place on an engine, and when one changes hands: plain values in, plain values out."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from flexmarl.algorithms.movers import MOVERS, Move, PolicyDemand, Snapshot, checked, for_waiting
from flexmarl.algorithms.movers.demand import SETTLE_S
from flexmarl.contracts.specification.movers import MOVER
from flexmarl.orchestrator.serving.assignment import engines_of, fill

NOW = 100.0


def after(serves, given):
    result = {engine: list(own) for engine, own in serves.items()}
    for engine, name in given:
        result[engine].append(name)
    return result


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    engines=st.integers(1, 6),
    places=st.integers(1, 3),
    expected=st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 100), min_size=1),
    held=st.lists(st.tuples(st.integers(0, 5), st.sampled_from("abcdef")), max_size=6),
)
def test_no_place_stays_empty_and_no_policy_without_engine_waits_behind_one_with(engines, places, expected, held):
    serves = {engine: [] for engine in range(engines)}
    for engine, name in held:
        own = serves.get(engine)
        if own is not None and name in expected and name not in own and len(own) < places:
            own.append(name)
    filled = after(serves, fill(serves, places, expected))
    for own in filled.values():
        assert len(own) == len(set(own)) == min(places, len(expected))
    counts = engines_of(filled)
    if len(expected) <= sum(places - len(own) for own in serves.values()):
        assert set(expected) <= set(counts), "there was room for every policy"


def test_free_places_follow_what_is_expected_and_who_waits_comes_first():
    empty = {engine: [] for engine in range(4)}
    assert engines_of(after(empty, fill(empty, 1, {"a": 1, "b": 9, "c": 1}))) == {"a": 1, "b": 2, "c": 1}
    assert fill({1: []}, 1, {"a": 9, "b": 1, "c": 2}, waiting=["c", "b"]) == [(1, "c")]
    assert fill({1: ["a"], 2: []}, 2, {"a": 5, "b": 1}) == [(2, "b"), (2, "a"), (1, "b")]


def asked(turns=0, queue=None, **changes):
    plain = PolicyDemand(
        turns=turns, queue=float(turns if queue is None else queue), growth=0.0, load_s=0.1, waiting_since=None,
        idle_since=None if turns else NOW - 50.0, stuck_since=None, gained_at=None, gave_at=None, hold_s=10.0,
        apart_since=NOW - 10.0 if turns > 10 else None,
    )  # fmt: skip
    return replace(plain, **changes)


def seen(policies, serves, movable=None, depths=None):
    return Snapshot(
        now=NOW, policies=policies, serves={engine: tuple(own) for engine, own in serves.items()},
        movable=frozenset(serves if movable is None else movable), depths=depths or {},
    )  # fmt: skip


def test_who_waits_longest_gets_the_place_of_the_policy_that_nobody_asked_for_longest():
    policies = {
        "hot": asked(9),
        "rare": asked(0, idle_since=NOW - 3),
        "rarer": asked(0, idle_since=NOW - 30),
        "first": asked(1, waiting_since=NOW - 2),
        "second": asked(7, waiting_since=NOW - 1),
    }
    moves = for_waiting(seen(policies, {1: ["hot"], 2: ["rare"], 3: ["rarer"]}))
    assert [(move.engine, move.out, move.into) for move in moves] == [(3, "rarer", "first"), (2, "rare", "second")]
    assert "waited 2.0 s" in moves[0].reason


def test_a_last_engine_is_not_taken_from_a_policy_that_is_asked():
    policies = {"a": asked(1), "b": asked(2), "c": asked(5, waiting_since=NOW - 60)}
    assert for_waiting(seen(policies, {1: ["a"], 2: ["b"]})) == []
    [move] = for_waiting(seen(policies, {1: ["a"], 2: ["b"], 3: ["b"]}, depths={2: 1, 3: 0}))
    assert (move.engine, move.out) == (3, "b"), "a busy policy gives one of several, the one with least to do"
    assert for_waiting(seen(policies, {1: ["a"], 2: ["b"], 3: ["b"]}, movable=[1])) == [], "its places are changing"


def test_who_waits_for_a_version_to_come_gives_its_place_after_a_while():
    policies = {"a": asked(3, stuck_since=NOW - 9.0), "b": asked(5, waiting_since=NOW - 60)}
    assert for_waiting(seen(policies, {1: ["a"]})) == []
    policies["a"] = asked(3, stuck_since=NOW - 11.0)
    [move] = for_waiting(seen(policies, {1: ["a"]}))
    assert (move.out, move.into) == ("a", "b")


def demand(delta, hold_s):
    return MOVERS.make(MOVER.options("demand", delta=delta, hold_s=hold_s))


HOT = {"hot": asked(60), "cold": asked(2)}
ON = {1: ["hot"], 2: ["cold"], 3: ["cold"]}


def balanced(policies, serves=ON, delta=5.0, hold_s=10.0, **options):
    moves = demand(delta, hold_s).moves(seen(policies, serves, **options))
    return [(move.engine, move.out, move.into) for move in moves]


def test_a_long_queue_gets_the_engine_of_a_short_one_with_least_to_do():
    assert balanced(HOT, depths={2: 2, 3: 0}) == [(3, "cold", "hot")]


@pytest.mark.parametrize(
    "changed",
    [
        {"hot": asked(60, queue=5.5)},
        {"hot": asked(60, apart_since=NOW - 0.1)},
        {"hot": asked(60, load_s=8.0)},
        {"hot": asked(60, growth=-7.0)},
        {"hot": asked(60, gained_at=NOW - SETTLE_S / 2)},
        {"cold": asked(2, gained_at=NOW - 9.0)},
        {"cold": asked(58)},
        {"late": asked(1, waiting_since=NOW)},
    ],
    ids=["below_delta", "just_now", "load_does_not_pay", "empties", "unsettled", "holds", "as_long", "who_waits_first"],
)
def test_a_place_stays_where_a_move_would_not_pay(changed):
    assert balanced({**HOT, **changed}) == []


def test_a_last_engine_goes_to_a_long_queue_only_after_nobody_asked_for_a_while():
    serves = {1: ["hot"], 2: ["cold"]}
    assert balanced({"hot": asked(60), "cold": asked(1)}, serves) == []
    assert balanced({"hot": asked(60), "cold": asked(0, idle_since=NOW - 49.0)}, serves) == []
    assert balanced({"hot": asked(60), "cold": asked(0, idle_since=NOW - 51.0)}, serves) == [(2, "cold", "hot")]


def test_a_place_is_kept_for_five_of_its_loads_at_least():
    holds, held = asked(2, load_s=4.0, gained_at=NOW - 19.0), asked(2, load_s=4.0, gained_at=NOW - 21.0)
    assert balanced({**HOT, "cold": holds}) == []
    assert balanced({**HOT, "cold": held}) == [(2, "cold", "hot")]
    assert demand(5.0, 10.0).keeps_s(asked(9, load_s=4.0, hold_s=None), NOW) == 20.0


def test_a_policy_that_went_to_and_fro_gives_only_where_its_queue_is_short_without_a_doubt():
    before = NOW - 15.0
    alike, short = asked(20, gained_at=before, hold_s=20.0), asked(2, gained_at=before, hold_s=20.0)
    assert balanced({**HOT, "cold": alike}) == []
    assert balanced({**HOT, "cold": replace(alike, hold_s=10.0)}) != []
    assert balanced({**HOT, "cold": short}) != []


def test_no_move_is_the_reverse_of_one_that_was_worth_it():
    """Whatever the queues are, what moved for them does not move back for the same queues."""
    for hot in range(6, 200, 7):
        for cold in range(0, 200, 5):
            policies = {"a": asked(hot, apart_since=NOW - 10.0), "b": asked(cold, apart_since=NOW - 10.0)}
            serves = {engine: ["a" if engine <= 3 else "b"] for engine in range(1, 9)}
            moves = demand(5.0, 0.0).moves(seen(policies, serves))
            for move in moves:
                serves[move.engine] = [move.into]
            back = demand(5.0, 0.0).moves(seen(policies, serves))
            assert not moves or all(move.into == moves[0].into for move in back), (hot, cold)


def test_who_gains_right_after_it_gave_keeps_what_it_has_for_longer_and_longer():
    mover = demand(5.0, 10.0)
    first = mover.keeps_s(asked(9, hold_s=None), NOW)
    again = mover.keeps_s(asked(9, gave_at=NOW - 12.0, hold_s=first), NOW)
    later = mover.keeps_s(asked(9, gave_at=NOW - 40.0, hold_s=again), NOW)
    assert (first, again, later) == (10.0, 20.0, 10.0)


@pytest.mark.parametrize(
    "moves",
    [
        [(1, "cold", "hot")],
        [(2, "cold", "cold")],
        [(4, "cold", "hot")],
        [(2, "cold", "nobody")],
        [(2, "cold", "hot")] * 2,
    ],
    ids=["not_served", "served_already", "no_such_engine", "no_such_policy", "twice"],
)
def test_a_mover_that_moves_what_it_cannot_ends_with_what_is_wrong(moves):
    wrong = [Move(engine, out, into, "disparity", "") for engine, out, into in moves]
    with pytest.raises(ValueError, match="cannot serve"):
        checked(wrong, seen(HOT, ON))
    right = [Move(2, "cold", "hot", "disparity", "")]
    assert checked(right, seen(HOT, ON)) == right
    with pytest.raises(ValueError, match="cannot serve"):
        checked(right, seen(HOT, ON, movable=[1]))
