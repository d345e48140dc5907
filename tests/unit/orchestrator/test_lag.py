"""Admission and sweep as the pure functions they are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexmarl.contracts.specification.mechanisms import LagPolicy
from flexmarl.orchestrator.state.lag import (
    Ages,
    LagCounts,
    add_row,
    admit,
    count,
    fits,
    length_ratio,
    must_wait,
    spread,
    sweep,
)


def lags(**bounds: int) -> dict[str, LagPolicy]:
    return {name: LagPolicy(bound=bound) for name, bound in bounds.items()}


@pytest.mark.parametrize(
    ("bounds", "to_come", "allowed"),
    [
        ({"a": 0, "b": 0}, {"a": 0, "b": 0}, True),
        ({"a": 0, "b": 0}, {"a": 1, "b": 0}, False),
        ({"a": 1, "b": 1}, {"a": 1, "b": 1}, True),
        ({"a": 1, "b": 1}, {"a": 2, "b": 1}, False),
        ({"a": 0, "b": 2}, {"a": 0, "b": 2}, True),
        ({"a": 0, "b": 2}, {"a": 1, "b": 0}, False),
    ],
)
def test_a_cohort_is_admitted_by_every_bound_of_the_vector(bounds: dict, to_come: dict, allowed: bool) -> None:
    verdict = admit(lags(**bounds), to_come, playing=3)
    assert verdict.allowed is allowed
    assert allowed or "its bound is" in verdict.reason


def test_waiting_admission_holds_a_cohort_until_older_groups_are_settled() -> None:
    waiting = {"a": LagPolicy(bound=3), "b": LagPolicy(bound=3, at_admission="wait")}
    assert not admit(waiting, {"a": 1, "b": 1}, playing=2).allowed
    assert "2 older groups" in admit(waiting, {"a": 1, "b": 1}, playing=2).reason
    assert admit(waiting, {"a": 1, "b": 1}, playing=0).allowed


rows = st.lists(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5)), min_size=1, max_size=4), min_size=1, max_size=6
)


def test_what_was_admitted_is_trained_however_old_where_that_is_asked_for() -> None:
    rule, ages = LagPolicy(bound=1, at_cut="train"), Ages(done=9)
    add_row(ages, 0, 7, ())
    assert sweep(ages, 9, rule) == "keep"
    assert sweep(None, 9, rule) == "drop", "rows of no known age are not"
    assert not must_wait(0, 9, rule)
    assert not admit({"a": rule}, {"a": 2}, playing=0).allowed, "it bounds what is admitted"


@given(rows, st.integers(0, 12), st.integers(0, 5), st.sampled_from(["wait", "drop", "refresh"]))
def test_nothing_older_than_its_bound_passes_the_sweep(found: list, version: int, bound: int, at_cut: str) -> None:
    ages = Ages(done=version)
    for segments in found:
        flat = tuple(number for pair in segments for number in pair)
        add_row(ages, 99, sum(n for _, n in segments), flat)
    fate = sweep(ages, version, LagPolicy(bound=bound, at_cut=at_cut))
    too_old = any(version - made_by > bound for segments in found for made_by, _ in segments)
    assert (fate == "keep") is not too_old
    if too_old:
        assert fate == ("refresh" if at_cut == "refresh" else "drop")
    counts = LagCounts()
    count(counts, ages, version)
    assert sum(counts.start.values()) == sum(counts.done.values()) == len(found)
    assert sum(counts.token.values()) == sum(n for segments in found for _, n in segments)
    if fate == "keep":
        assert max(counts.start) <= bound
        assert max(counts.token) <= bound


def test_rows_of_unknown_age_are_never_trained() -> None:
    assert sweep(None, 3, LagPolicy(bound=64)) == "drop"


def test_a_row_without_segments_is_as_old_as_its_pin() -> None:
    ages = Ages(done=4)
    add_row(ages, 3, 7, ())
    add_row(ages, 3, 7, (2, 3, 4, 4))
    assert ages.rows == {3: 1, 2: 1}
    assert ages.tokens == {3: 7, 2: 3, 4: 4}
    assert ages.oldest == 2
    assert fits(ages, 4, 2)
    assert not fits(ages, 4, 1)


def test_a_policy_that_waits_is_not_stepped_past_a_playing_group() -> None:
    assert must_wait(3, 3, LagPolicy(bound=0))
    assert not must_wait(3, 3, LagPolicy(bound=1))
    assert must_wait(3, 4, LagPolicy(bound=1))
    assert not must_wait(3, 4, LagPolicy(bound=1, at_cut="drop"))


def test_the_spread_of_lags() -> None:
    assert spread({}) is None
    one = spread({0: 98, 1: 1, 5: 1})
    assert one is not None
    assert (one.mean, one.p99, one.max) == (0.06, 1.0, 5.0)
    tail = spread({0: 98, 5: 2})
    assert tail is not None
    assert tail.p99 == 5.0


def test_the_length_ratio_tells_a_bias_to_short_rows() -> None:
    assert length_ratio((10, 50), (20, 200)) == 0.5
    assert length_ratio((0, 0), (20, 200)) is None
