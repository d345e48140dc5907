"""Repacking as a pure choice: versions apart, within both limits, nothing that waits, and nothing left to gather."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexmarl.algorithms.movers import Handover, Serving, checked_handovers
from flexmarl.algorithms.movers.repack import repack

BELOW, MOST = 20, 1000.0
engines = st.builds(
    Serving,
    engine=st.integers(0, 99),
    version=st.sampled_from([(("p", 1),), (("p", 2),), (("p", 1), ("q", 1))]),
    running=st.integers(0, 25),
    waiting=st.sampled_from([0, 0, 0, 3]),
    tokens=st.integers(0, 1200),
)
fleets = st.lists(engines, max_size=12, unique_by=lambda one: one.engine)


def after(fleet: list[Serving], moves: list[Handover]) -> dict[int, tuple[int, int]]:
    """Return replies and tokens of each engine once everything has moved."""
    held = {one.engine: (one.running, one.tokens) for one in fleet}
    for move in moves:
        running, tokens = held.pop(move.source)
        more, cells = held[move.destination]
        held[move.destination] = running + more, tokens + cells
        held[move.source] = 0, 0
    return held


@given(fleets)
def test_versions_never_mix(fleet: list[Serving]) -> None:
    version = {one.engine: one.version for one in fleet}
    assert all(version[move.source] == version[move.destination] for move in repack(fleet, BELOW, MOST))


@given(fleets)
def test_no_engine_is_filled_beyond_its_limits_and_what_waits_stays_where_it_is(fleet: list[Serving]) -> None:
    moves, known = repack(fleet, BELOW, MOST), {one.engine: one for one in fleet}
    held = after(fleet, moves)
    for engine in {move.destination for move in moves}:
        assert held[engine][0] <= BELOW
        assert held[engine][1] <= MOST
    assert not any(known[engine].waiting for move in moves for engine in (move.source, move.destination))


@given(fleets)
def test_each_move_empties_an_engine_that_had_something(fleet: list[Serving]) -> None:
    moves, known = repack(fleet, BELOW, MOST), {one.engine: one for one in fleet}
    gave = Counter(move.source for move in moves)
    assert all(count == 1 and known[engine].running for engine, count in gave.items())
    assert not gave.keys() & {move.destination for move in moves}, "who takes something on does not give it away"
    held = after(fleet, moves)
    assert all(held[engine] == (0, 0) for engine in gave)
    assert sum(running for running, _ in held.values()) == sum(one.running for one in fleet)


@given(fleets)
def test_nothing_is_left_that_could_be_gathered(fleet: list[Serving]) -> None:
    """Who took nothing on could not be emptied into anybody else; so a second look moves none of them either."""
    moves = repack(fleet, BELOW, MOST)
    held, gone = after(fleet, moves), {move.source for move in moves}
    took = {move.destination for move in moves}
    able = [one for one in fleet if not one.waiting and one.running < BELOW and one.tokens < MOST]
    for source in (one for one in able if one.running and one.engine not in gone | took):
        for other in (one for one in able if one.engine not in gone | {source.engine} and held[one.engine][0]):
            fits = held[other.engine][0] + source.running <= BELOW
            room = held[other.engine][1] + source.tokens <= MOST
            assert other.version != source.version or not (fits and room)


def serving(engine: int, running: int, tokens: int) -> Serving:
    return Serving(engine, (("p", 1),), running, 0, tokens)


def test_the_least_is_moved_to_the_fullest_that_can_take_it() -> None:
    def gathered(*fleet: Serving) -> list[tuple[int, int]]:
        return [(one.source, one.destination) for one in repack(fleet, BELOW, MOST)]

    fleet = (serving(1, 2, 100), serving(2, 4, 500), serving(3, 6, 850), serving(4, 8, 950))
    assert gathered(*fleet) == [(1, 3)], "4 has no room for it, and nobody else fits into what is left"
    assert gathered(serving(1, 2, 100), serving(2, 4, 300), serving(3, 6, 550)) == [(1, 3), (2, 3)]


@pytest.mark.parametrize("wrong", [[(1, 9)], [(1, 4)], [(1, 2), (2, 3)], [(1, 2), (1, 3)], [(1, 1)]])
def test_what_cannot_be_handed_over_is_refused(wrong: list[tuple[int, int]]) -> None:
    fleet = [serving(1, 2, 100), serving(2, 2, 100), serving(3, 2, 100), Serving(4, (("p", 2),), 2, 0, 100)]
    with pytest.raises(ValueError, match="engine"):
        checked_handovers([Handover(*one) for one in wrong], fleet)
    right = [Handover(1, 3), Handover(2, 3)]
    assert checked_handovers(right, fleet) == right
