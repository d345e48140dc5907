"""How many members groups have: DART's table, TRACE's heap against every other distribution, and its predictor."""

import itertools

import numpy as np
import pytest

from flexmarl.algorithms import success_predictor
from flexmarl.algorithms.advantages import ADVANTAGES
from flexmarl.algorithms.group_keys import GROUP_KEYS
from flexmarl.algorithms.member_counts import MEMBER_COUNTS, allocated, fewer, mixed
from flexmarl.algorithms.task_belief import TaskBelief
from flexmarl.algorithms.task_sampler import PlayedTask
from flexmarl.contracts.specification.advantages import ADVANTAGE
from flexmarl.contracts.specification.member_counts import MEMBER_COUNT
from flexmarl.contracts.wire import EpisodeOutcome, EpisodeStatus, SampleRef

TASKS = 8


def played(belief, name, task, *shares, step=0):
    MEMBER_COUNTS.make(MEMBER_COUNT.options(name)).observe(belief, PlayedTask(TASKS, task, step, shares))


def counts(belief, name, tasks, members, **settings):
    return MEMBER_COUNTS.make(MEMBER_COUNT.options(name, **settings)).counts(belief, tasks, members)


@pytest.mark.parametrize(("rate", "members"), [(0.6, 8), (0.75, 5), (0.9, 3), (1.0, 2)])
def test_the_published_table_of_eight_members(rate, members):
    assert fewer(rate, 8, 2) == members


def test_other_sizes_end_with_two_and_never_exceed_what_the_specification_gives():
    for members in range(2, 33):
        found = [fewer(rate, members, 2) for rate in (0.2, 0.6, 0.8, 1.0)]
        assert found == sorted(found, reverse=True)
        assert (found[0], found[-1]) == (members, 2)
    assert fewer(1.0, 8, 4) == 4


def test_fewer_members_follow_the_last_group_of_a_task():
    belief = TaskBelief()
    played(belief, "fewer_when_solved", 1, 1.0, 1.0, 1.0, 0.6)
    played(belief, "fewer_when_solved", 2, 1.0, 0.0)
    assert counts(belief, "fewer_when_solved", [0, 1, 2], 8) == [8, 3, 8]
    played(belief, "fewer_when_solved", 1, 0.0, 0.0, step=1)
    assert counts(belief, "fewer_when_solved", [1], 8) == [8], "the last group alone counts"
    assert counts(belief, "fewer_when_solved", [0, 1], 8, threshold=1.0) == [8, 8]


def test_the_heap_finds_the_worked_example():
    chances = (0.05, 0.3, 0.5, 0.95)
    found = allocated(chances, 12)
    assert found == [2, 4, 4, 2]
    value = sum(mixed(chance, members) for chance, members in zip(chances, found, strict=True))
    assert value == pytest.approx(1.8168, abs=5e-5)


def test_no_other_distribution_is_better():
    rng = np.random.default_rng(3)
    for _ in range(30):
        chances, budget = rng.uniform(0.01, 0.99, 4).tolist(), int(rng.integers(4, 13))
        found = allocated(chances, budget)
        assert sum(found) == budget
        best = max(
            sum(mixed(chance, members) for chance, members in zip(chances, other, strict=True))
            for other in itertools.product(range(1, budget), repeat=4)
            if sum(other) == budget
        ) if budget > 4 else 0.0  # fmt: skip
        value = sum(mixed(chance, members) for chance, members in zip(chances, found, strict=True))
        assert value == pytest.approx(best, abs=1e-12)


@pytest.mark.parametrize("chance", [0.01, 0.5, 0.83])
def test_where_all_chances_are_alike_numbers_differ_by_one_at_most(chance):
    for budget in (7, 20, 21):
        found = allocated([chance] * 7, budget)
        assert sum(found) == budget
        assert max(found) - min(found) <= 1


def test_a_group_has_no_more_than_the_most_and_the_budget_is_never_exceeded():
    assert allocated([0.5, 0.01], 16, 2, 5) == [5, 5]
    assert allocated([0.5, 0.01], 6, 2, 5) == [4, 2]
    assert allocated([], 0) == []


def test_before_anything_was_played_every_group_has_the_same():
    assert counts(TaskBelief(), "mixed_outcomes", list(range(TASKS)), 4) == [4] * TASKS
    assert counts(TaskBelief(), "fewer_when_solved", list(range(TASKS)), 4) == [4] * TASKS
    assert counts(TaskBelief(), "equal", [0, 5], 4) == [4, 4]


def test_members_go_where_outcomes_are_open():
    belief = TaskBelief()
    for step in range(3):
        for task, share in enumerate([1.0, 1.0, 0.5, 0.0]):
            played(belief, "mixed_outcomes", task, share, share, step=step)
    easy, _, open_, hard = found = counts(belief, "mixed_outcomes", [0, 1, 2, 3], 4)
    assert sum(found) == 16
    assert open_ > max(easy, hard)


def test_predictions_are_those_of_a_fit_that_is_at_its_optimum():
    belief, rng = TaskBelief(), np.random.default_rng(4)
    for step in range(4):
        for task in range(TASKS):
            played(belief, "mixed_outcomes", task, *rng.binomial(1, (task + 0.5) / TASKS, 4).astype(float), step=step)
    weights = success_predictor.fitted(belief)

    def loss(given):
        before, last, _ = belief.columns()
        means = np.clip(before.astype(float), 0.01, 0.99)
        features = np.stack([np.ones(TASKS), np.ones(TASKS), np.log(means / (1 - means))], 1)
        chances = 1 / (1 + np.exp(-features @ given))
        cross = -(last * np.log(chances) + (1 - last) * np.log(1 - chances)).sum()
        return cross + 0.5 * success_predictor.RIDGE * ((given - success_predictor.PRIOR) ** 2).sum()

    least = loss(weights)
    for shift in (*np.eye(3), *-np.eye(3)):
        assert loss(weights + 1e-3 * shift) > least
    chances = success_predictor.predicted(belief, np.arange(TASKS))
    assert ((chances >= 0.01) & (chances <= 0.99)).all()
    assert np.corrcoef(chances, np.arange(TASKS))[0, 1] > 0.5


def test_a_belief_is_the_same_in_any_order_of_the_groups_of_a_step():
    found = []
    for order in (range(TASKS), reversed(range(TASKS))):
        belief = TaskBelief()
        for task in order:
            played(belief, "mixed_outcomes", task, task / TASKS, 0.3)
        found.append((belief, counts(belief, "mixed_outcomes", list(range(TASKS)), 4)))
    assert found[0] == found[1]


def test_a_fit_looks_at_the_latest_tasks_alone(monkeypatch):
    monkeypatch.setattr(success_predictor, "LATEST", 4)
    belief = TaskBelief()
    for task in range(TASKS):
        played(belief, "mixed_outcomes", task, float(task >= 4), step=task)
    before = success_predictor.fitted(belief)
    played(belief, "mixed_outcomes", 0, 1.0, step=0)
    assert (success_predictor.fitted(belief) == before).all()


def bandit_group(rng, chances, members):
    """Play a group of a bandit of three arms that pay 0, 0.2 and 1."""
    arms = rng.choice(3, members, p=chances)
    rewards = [(0.0, 0.2, 1.0)[arm] for arm in arms]
    episodes = [
        EpisodeOutcome(
            member=number, attempt=1, status=EpisodeStatus.FINISHED, scores={"a": reward}, team_score=reward,
            samples=(SampleRef(role="a", turn=0, tokens=1),),
        )
        for number, reward in enumerate(rewards)
    ]  # fmt: skip
    return arms, episodes, [[reward] for reward in rewards]


def test_the_gradient_of_a_task_is_its_own_whatever_its_group_has_for_members():
    """Sizes follow earlier groups alone, so `rloo` stays unbiased: each mean is within three standard errors."""
    rng, chances, rloo = np.random.default_rng(8), np.array([0.2, 0.2, 0.6]), ADVANTAGES.make(ADVANTAGE.options("rloo"))
    enumerated = chances * (np.array([0.0, 0.2, 1.0]) - chances @ [0.0, 0.2, 1.0])
    belief, found = TaskBelief(), {"small": [], "large": []}
    for step in range(1500):
        members = counts(belief, "fewer_when_solved", [0], 6, threshold=0.2)[0]
        arms, episodes, rewards = bandit_group(rng, chances, members)
        advantages = rloo.estimate(GROUP_KEYS["episode_group"], episodes, rewards)
        scores = np.eye(3)[arms] - chances
        found["small" if members < 6 else "large"].append((np.array(advantages) * scores).mean(0))
        played(belief, "fewer_when_solved", 0, *(reward for [reward] in rewards), step=step)
    for gradients in map(np.array, found.values()):
        assert len(gradients) > 200
        errors = gradients.std(0) / len(gradients) ** 0.5
        assert (np.abs(gradients.mean(0) - enumerated) <= 3 * errors).all()
