"""Tasks that are solved leave the set; the longest away come back first, where a step needs more than are left."""

import msgspec
import numpy as np
import pytest

from flexmarl.algorithms.solved_tasks import longest_away, visits_to_leave
from flexmarl.algorithms.task_belief import TaskBelief
from flexmarl.algorithms.task_sampler import TASK_SAMPLERS, PlayedTask, Wanted
from flexmarl.contracts.specification.task_choice import TASK_SAMPLER

TASKS = 12
SOLVED, MISSED = (1.0,) * 8, (0.0,) * 8
QUICK = {"decay": 0.3, "threshold": 0.9}
"""Two groups in a row."""


def sampler(**options):
    return TASK_SAMPLERS.make(TASK_SAMPLER.options("filter_solved", **options))


def choose(belief, count: int, made=None, tasks: int = TASKS, excluded=frozenset()) -> list[int]:
    return (made or sampler(**QUICK)).choose(belief, Wanted(5, 0, 0, tasks, count, 8, excluded))


def of_groups(groups: dict[int, list[tuple[float, ...]]], made=None) -> TaskBelief:
    """Return the belief after groups of tasks, one of each in each step."""
    belief = TaskBelief()
    for task, own in groups.items():
        for step, shares in enumerate(own):
            (made or sampler(**QUICK)).observe(belief, PlayedTask(TASKS, task, step, shares))
    return belief


@pytest.mark.parametrize(
    ("decay", "threshold", "visits"), [(0.9, 0.95, 29), (0.3, 0.9, 2), (0.5, 0.9, 4), (0.0, 0.95, 1), (0.9, 1.0, None)]
)
def test_after_so_many_solved_groups_in_a_row_a_task_leaves(decay: float, threshold: float, visits: int | None):
    assert visits_to_leave(decay, threshold) == visits
    made, belief = sampler(decay=decay, threshold=threshold), TaskBelief()
    for step in range(visits or 200):
        assert 0 in choose(belief, TASKS - 1, made, excluded=frozenset({1}))[: TASKS - 1]
        assert not belief.of(0)[1]
        made.observe(belief, PlayedTask(TASKS, 0, step, SOLVED))
    assert belief.of(0)[1] == (visits or 0)


def test_the_moving_mean_of_a_score():
    """AstraFlow's example: decay 0.9 from 0. A partial reward counts in part, where AstraFlow's counts as solved."""
    made = sampler()
    assert of_groups({3: [SOLVED]}, made).of(3)[0] == pytest.approx(0.1)
    assert of_groups({3: [SOLVED, MISSED]}, made).of(3)[0] == pytest.approx(0.09)
    assert of_groups({3: [SOLVED, SOLVED, (0.5, 0.0)]}, made).of(3)[0] == pytest.approx(0.9 * 0.19 + 0.1 * 0.25)


def test_what_has_left_is_not_drawn_and_the_others_keep_their_order():
    belief = of_groups({task: [SOLVED] * 2 for task in (1, 2, 5)})
    assert choose(belief, 4) == [0, 3, 4, 6]
    assert choose(belief, 4, excluded=frozenset({8})) == [7, 9, 10, 11]
    assert choose(belief, 2) == [0, 3]
    assert choose(belief, 9) == [4, 6, 7, 8, 9, 10, 11, 0, 3]


def test_where_too_few_are_left_those_come_back_first_that_were_away_longest():
    made = sampler(**QUICK)
    belief = of_groups({task: [SOLVED] * (task + 2) for task in reversed(range(TASKS))}, made)
    assert choose(belief, 4) == [0, 1, 2, 3]
    assert choose(belief, 3, excluded=frozenset({1})) == [0, 2, 3]
    made.observe(belief, PlayedTask(TASKS, 0, 30, SOLVED))  # still solved: last in the line
    assert choose(belief, TASKS) == [*range(1, TASKS), 0]
    made.observe(belief, PlayedTask(TASKS, 6, 31, (0.0, 1.0)))  # missed: in the set again
    assert belief.of(6)[1] == 0
    assert choose(belief, 3) == [6, 1, 2]


def test_who_was_away_longest_is_found_without_sorting_all():
    rng = np.random.default_rng(4)
    for _ in range(200):
        tasks = int(rng.integers(1, 60))
        rates, as_of = rng.random(tasks).astype("<f4"), rng.integers(0, 6, tasks).astype("<i4")
        excluded = set(rng.integers(0, tasks, 3).tolist())
        gone = sorted((int(as_of[task]), task) for task in range(tasks) if rates[task] > 0.4)
        expected = [task for _, task in gone if task not in excluded]
        count = int(rng.integers(0, tasks + 1))
        assert longest_away(rates, as_of, 0.4, count, excluded) == expected[:count]


def test_with_a_threshold_of_one_every_draw_is_the_next_task():
    made, belief = sampler(threshold=1.0), TaskBelief()
    for step in range(200):
        found = choose(belief, 5, made)
        assert found == [(5 * step + place) % TASKS for place in range(5)]
        for task in found:
            made.observe(belief, PlayedTask(TASKS, task, step, SOLVED))
    assert float(np.max(belief.columns()[0])) > 0.999


def test_chosen_tasks_differ_and_none_is_excluded():
    belief = of_groups({task: [SOLVED] * 2 for task in range(0, TASKS, 2)})
    for number in range(30):
        excluded = frozenset({number % TASKS, (number * 5 + 1) % TASKS})
        found = choose(belief, 9, excluded=excluded)
        assert len(set(found)) == 9
        assert not excluded & set(found)
    with pytest.raises(ValueError, match="12 tasks are wanted of 12, of which 1 are excluded"):
        choose(belief, 12, excluded=frozenset({0}))


def test_a_belief_goes_to_a_snapshot_and_back():
    belief = of_groups({task: [SOLVED] * (task % 3) for task in range(TASKS)})
    choose(belief, 3)
    back = msgspec.json.decode(msgspec.json.encode(belief), type=TaskBelief)
    assert back == belief
    assert choose(back, 7) == choose(belief, 7)
    assert back == belief


def test_what_is_believed_in_words():
    made, belief = sampler(**QUICK), of_groups({3: [SOLVED] * 3, 4: [MISSED, SOLVED]})
    assert made.of_task(belief, 0) == "not played yet"
    assert made.of_task(belief, 3) == "moving mean of its score 0.97, last played in step 3; left out since step 2"
    assert made.of_task(belief, 4) == "moving mean of its score 0.70, last played in step 2"
    assert made.of_set(belief, TASKS) == (
        "of 12 tasks 1 are left out as solved, the first since step 2; a new one is after 2 groups that all solved"
    )
    assert sampler(threshold=1.0).of_set(TaskBelief(), TASKS) == "of 12 tasks 0 are left out as solved; none ever is"
