"""Ids sort in the order in which they were made, also within a millisecond and when the clock goes back."""

import time

from flexmarl.controlplane.common import ids


def test_ids_sort_as_made() -> None:
    made = [ids.uuid7() for _ in range(20_000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)
    assert {identity.version for identity in made} == {7}


def test_a_clock_that_goes_back_changes_nothing(monkeypatch) -> None:
    first = ids.uuid7()
    monkeypatch.setattr(time, "time_ns", lambda: 1_000_000)
    assert ids.uuid7() > first
