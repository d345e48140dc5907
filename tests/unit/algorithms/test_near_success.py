"""Tasks near a predicted success: worked examples, the share that is played in order, a predictor that converges."""

from collections import Counter

import msgspec
import numpy as np
import pytest

from flexmarl.algorithms import near_success, success_predictor
from flexmarl.algorithms.near_success import nearest, owed
from flexmarl.algorithms.task_belief import TaskBelief
from flexmarl.algorithms.task_sampler import TASK_SAMPLERS, PlayedTask, Wanted
from flexmarl.contracts.specification.task_choice import TASK_SAMPLER

TASKS = 12


def sampler(**options):
    return TASK_SAMPLERS.make(TASK_SAMPLER.options("near_success", **options))


def choose(belief, draw: int, count: int, made=None, tasks: int = TASKS, excluded=frozenset()) -> list[int]:
    wanted = Wanted(run_seed=5, draw=draw, step=0, tasks=tasks, count=count, members=8, excluded=excluded)
    return (made or sampler(in_order=0.0)).choose(belief, wanted)


def known(rates: dict[int, float], tasks: int = TASKS) -> TaskBelief:
    """Each task was played three times, and earned the same each time."""
    belief = TaskBelief()
    for step in range(3):
        for task, rate in rates.items():
            sampler().observe(belief, PlayedTask(tasks, task, step, (rate,) * 4))
    return belief


RATES = {task: task / (TASKS - 1) for task in range(TASKS)}


def test_of_twelve_pass_rates_those_next_to_one_half_are_chosen():
    found = choose(known(RATES), 3, 4)
    assert (set(found[:2]), set(found[2:])) == ({5, 6}, {4, 7})


@pytest.mark.parametrize("target", [0.01, 0.28, 0.5, 0.7, 0.99])
def test_the_tasks_nearest_to_the_target_are_chosen(target: float):
    belief = known(RATES)
    found = choose(belief, 3, 4, sampler(target=target, in_order=0.0))
    chances = success_predictor.predicted(belief, np.arange(TASKS))
    far = np.abs(chances - target)
    assert max(far[found]) <= min(far[[task for task in range(TASKS) if task not in found]]) + 1e-12
    assert far[found].tolist() == sorted(far[found].tolist())


def test_at_one_half_the_chosen_ones_have_the_largest_variance():
    belief = known(RATES)
    chances = success_predictor.predicted(belief, np.arange(TASKS))
    variance = chances * (1.0 - chances)
    assert sorted(variance[choose(belief, 1, 5)]) == pytest.approx(sorted(variance)[-5:])


def test_tasks_that_nobody_played_are_predicted_alike_and_drawn_by_chance():
    drawn = Counter(task for draw in range(400) for task in choose(TaskBelief(), draw, 3))
    assert set(drawn) == set(range(TASKS))
    assert max(drawn.values()) < 1.5 * min(drawn.values())
    assert choose(TaskBelief(), 7, 5) == choose(TaskBelief(), 7, 5) != choose(TaskBelief(), 8, 5)
    # Played ones that are always solved are not preferred to those of which nothing is known.
    belief = known({0: 1.0, 1: 1.0, 2: 0.0, 3: 0.0})
    assert not {0, 1, 2, 3} & set(choose(belief, 2, 8))


def test_a_share_of_the_groups_plays_the_set_in_its_order():
    made, belief = sampler(in_order=0.25), known(RATES)
    found = [choose(belief, draw, 4, made)[0] for draw in range(15)]
    assert found == [draw % TASKS for draw in range(15)]
    made, belief = sampler(in_order=0.3), known(RATES)
    in_order = []
    for draw in range(40):
        before = int(belief.figures.get("position", 0))
        choose(belief, draw, 1, made)
        in_order.append(int(belief.figures["position"]) - before)
    assert sum(in_order) == 12
    assert [sum(in_order[place : place + 10]) for place in range(0, 40, 10)] == [3, 3, 3, 3]


@pytest.mark.parametrize(("share", "count"), [(0.0, 5), (0.3, 1), (0.5, 7), (0.1, 3), (1.0, 4)])
def test_what_is_owed_is_paid_over_time_and_never_too_much(share: float, count: int):
    debt, paid = 0.0, 0
    for step in range(1, 101):
        taken, debt = owed(debt, share, count)
        paid += taken
        assert 0 <= taken <= count
        assert abs(paid - share * count * step) < 1 + 1e-6


def test_with_all_in_order_every_draw_is_the_next_task_and_nothing_is_fitted():
    made, belief = sampler(in_order=1.0), known(RATES)
    for step in range(50):
        assert choose(belief, step, 5, made) == [(5 * step + place) % TASKS for place in range(5)]
    assert set(belief.figures) == {"owed", "position"}


def test_chosen_tasks_differ_and_none_is_excluded():
    made, belief = sampler(in_order=0.4), known(RATES)
    for number in range(30):
        excluded = frozenset({number % TASKS, (number * 5 + 1) % TASKS})
        found = choose(belief, number, 9, made, excluded=excluded)
        assert len(set(found)) == 9
        assert not excluded & set(found)
    with pytest.raises(ValueError, match="12 tasks are wanted of 12, of which 1 are excluded"):
        choose(belief, 1, 12, excluded=frozenset({0}))


def test_of_a_large_set_the_best_of_those_that_are_looked_at_are_taken(monkeypatch: pytest.MonkeyPatch):
    asked: list[int] = []

    def predicted(numbers: np.ndarray) -> np.ndarray:
        asked.extend(numbers.tolist())
        return numbers / 100_000

    found = nearest(np.random.default_rng(1), 100_000, 16, {50_000, 50_001}, predicted, 0.5)
    assert near_success.LOOKED_AT <= len(set(asked)) == len(asked) <= near_success.LOOKED_AT + 2
    assert not {50_000, 50_001} & set(asked)
    assert sorted(asked, key=lambda task: abs(task / 100_000 - 0.5))[:16] == found
    asked.clear()
    monkeypatch.setattr(near_success, "LOOKED_AT", 10)
    assert len(nearest(np.random.default_rng(1), 100_000, 16, {5}, predicted, 0.5)) == 16


def test_a_fit_converges_where_earlier_groups_say_nothing_of_later_ones():
    """Whole Newton steps lead from a slope of 1 to one of thousands: the fit is at the lowest loss instead."""
    rng, belief = np.random.default_rng(3), TaskBelief()
    for task in range(2000):
        belief.put(2000, task, float(rng.random()), float(rng.random()), 1)
    weights = success_predictor.fitted(belief)
    assert np.abs(weights).max() < 0.1
    chances = success_predictor.predicted(belief, np.arange(2000))
    assert np.abs(chances - 0.5).max() < 0.1


def test_a_belief_is_told_in_words_and_goes_to_a_snapshot_and_back():
    made, belief = sampler(), known({0: 0.5, 1: 1.0})
    assert made.of_task(belief, 5) == "not played yet: predicted success 0.50"
    choose(belief, 0, 4, made)
    assert made.of_task(belief, 0).endswith("moving mean of its score 0.50, last played in step 3")
    assert "of 12 tasks 2 were played" in made.of_set(belief, TASKS)
    assert "tasks near 0.5 are preferred" in made.of_set(belief, TASKS)
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(belief), type=TaskBelief)
    assert again == belief
    assert choose(again, 9, 6, made) == choose(belief, 9, 6, made)
