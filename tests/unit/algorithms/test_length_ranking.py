"""Lengths of tasks are learned from their groups; the longest are sent first, and a measure says how well that went."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexmarl.algorithms.length_ranking import (
    USUAL,
    expected_length,
    longest_first,
    note_length,
    rank_correlation,
)
from flexmarl.algorithms.task_belief import TaskBelief


def test_a_task_is_expected_to_be_as_long_as_it_was_the_last_group_counting_most() -> None:
    belief = TaskBelief()
    assert expected_length(belief, 3) is None
    note_length(belief, 8, 3, 0, [100, 300])
    assert expected_length(belief, 3) == 200.0
    note_length(belief, 8, 3, 4, [400])
    assert expected_length(belief, 3) == 300.0
    note_length(belief, 8, 3, 5, [])
    assert expected_length(belief, 3) == 300.0, "a group of which nothing finished says nothing"
    assert expected_length(belief, 4) is None
    assert belief.figures[USUAL] == pytest.approx(0.98 * 200 + 0.02 * 400)


def test_tasks_that_nobody_knows_stand_between_long_and_short_ones() -> None:
    assert longest_first([5, 6, 7, 8], {5: 10.0, 7: 900.0}, usual=100.0) == [7, 6, 8, 5]
    assert longest_first([5, 6, 7], {}, usual=0.0) == [5, 6, 7], "while nothing is known, as they were drawn"


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12))
def test_the_correlation_is_that_of_the_ranks(pairs: list[tuple[int, int]]) -> None:
    found = rank_correlation([(float(a), float(b)) for a, b in pairs])
    sides = [[pair[side] for pair in pairs] for side in (0, 1)]
    if any(len(set(side)) < 2 for side in sides):
        assert found is None
        return
    ranks = [[sum(b < a for b in side) + (side.count(a) - 1) / 2 for a in side] for side in sides]
    assert found == pytest.approx(np.corrcoef(*ranks)[0, 1])


def test_sent_longest_first_jobs_end_near_the_least_possible_time() -> None:
    """LPT on equal machines: at most 4/3 of the optimum, which is no less than the mean load and the longest job."""
    rng, worst, gained = random.Random(1), 0.0, 0
    for _ in range(200):
        jobs = [rng.lognormvariate(0.0, 1.0) for _ in range(40)]
        order = longest_first(range(40), dict(enumerate(jobs)), 0.0)
        least = max(sum(jobs) / 8, *jobs)
        ranked, drawn = makespan([jobs[job] for job in order], 8), makespan(jobs, 8)
        worst = max(worst, ranked / least)
        gained += ranked < drawn
    assert worst <= 4 / 3
    assert gained > 180


def makespan(jobs: list[float], machines: int) -> float:
    free = [0.0] * machines
    for job in jobs:
        place = free.index(min(free))
        free[place] += job
    return max(free)
