"""Whoever is given up between two turns would have been removed before the cut, whatever came; nobody else is."""

from hypothesis import given
from hypothesis import strategies as st

from flexmarl.algorithms.ageing import older, too_old
from flexmarl.contracts.specification.mechanisms import LagPolicy
from flexmarl.orchestrator.state.lag import Ages, sweep

VERSIONS = st.dictionaries(st.sampled_from("abc"), st.integers(0, 9), max_size=3)


@given(
    oldest=VERSIONS,
    newest=VERSIONS,
    bounds=st.dictionaries(st.sampled_from("ab"), st.integers(1, 3), max_size=2),
    later=st.integers(0, 3),
)
def test_what_is_given_up_is_what_every_later_cut_removes(
    oldest: dict[str, int], newest: dict[str, int], bounds: dict[str, int], later: int
) -> None:
    def removed(policy: str, steps: int) -> bool:
        ages = Ages(done=9, rows={oldest[policy]: 1})
        return sweep(ages, newest[policy] + steps, LagPolicy(bound=bounds[policy], at_cut="drop")) == "drop"

    known = all(policy in oldest and policy in newest for policy in bounds)
    why = too_old(oldest, newest, bounds)
    if why:
        assert all(removed(policy, later) for policy in bounds)
    elif bounds and known:
        assert not all(removed(policy, 0) for policy in bounds)


def test_a_policy_that_said_nothing_yet_may_say_something_new() -> None:
    bounds, newest = {"a": 1, "b": 1}, {"a": 7, "b": 7}
    assert too_old({"a": 5}, newest, bounds) == ""
    assert too_old({"a": 5, "b": 6}, newest, bounds) == ""
    assert too_old({"a": 5, "b": 5}, newest, bounds) == "a v5 said its first turn, v7 is served: the bound is 1"
    assert too_old({"a": 5, "b": 5}, {"a": 7}, bounds) == "", "nobody knows what engines have of b"
    assert too_old({"a": 0}, {"a": 9}, {}) == "", "without a bound nothing is given up"


def test_rows_that_are_trained_together_are_as_old_as_the_oldest() -> None:
    assert older({"a": 3, "b": 1}, {"a": 2, "c": 5}) == {"a": 2, "b": 1, "c": 5}
