"""Which episodes are continued: TRACE's value and heap against every other choice, its back-up, and its predictor."""

import itertools
import math
import random
from collections import Counter

import numpy as np
import pytest

from flexmarl.algorithms.branching import (
    BRANCH_CONTROLLERS,
    Continuable,
    alike,
    checked_places,
    continued,
    contradicted,
)
from flexmarl.algorithms.prefix_predictor import (
    HIGHEST,
    LOWEST,
    PRIOR,
    PrefixBelief,
    examples_of,
    features_of,
    learn,
    leaves,
    predicted,
)
from flexmarl.contracts.specification.branch_controllers import BRANCH_CONTROLLER
from flexmarl.contracts.wire import Branch, EpisodeOutcome, EpisodeStatus, Prefix, SampleRef


def played(member, solved, turns, continues=None, rewards=None):
    """An episode of one seat with so many turns of its own; `continues`: root and turns."""
    branch = (
        Branch(prefixes=tuple(Prefix(turns=n, logprob=-0.1 * n) for n in range(1, turns)))
        if continues is None
        else Branch(root=continues[0], turns=continues[1])
    )
    first = 0 if continues is None else continues[1]
    given = rewards or [0.0] * turns
    samples = tuple(SampleRef(role="a", turn=first + n, tokens=1, reward=given[n]) for n in range(turns))
    return EpisodeOutcome(
        member=member, attempt=1, status=EpisodeStatus.FINISHED, scores={"a": float(solved)}, team_score=float(solved),
        solved=bool(solved), samples=samples, branch=branch,
    )  # fmt: skip


@pytest.mark.parametrize(("solved", "value"), [(True, 0.19), (False, 0.99)])
def test_the_value_of_a_prefix_is_the_published_one(solved, value):
    assert contradicted(alike(Continuable(0, 1, solved, 0.9)), 2) == pytest.approx(value)


def test_no_other_choice_is_better():
    rng = np.random.default_rng(5)
    for _ in range(30):
        chances, budget = rng.uniform(0.01, 0.99, 4).tolist(), int(rng.integers(1, 8))
        most = int(rng.integers(2, 5))
        found = Counter(continued(chances, budget, most))
        assert found.total() == min(budget, 4 * most)
        value = sum(contradicted(chances[place], count) for place, count in found.items())
        best = max(
            sum(contradicted(chance, count) for chance, count in zip(chances, other, strict=True))
            for other in itertools.product(range(most + 1), repeat=4)
            if sum(other) <= budget
        )
        assert value == pytest.approx(best, abs=1e-12)


@pytest.mark.parametrize("chance", [0.01, 0.5, 0.83])
def test_where_all_chances_are_alike_numbers_differ_by_one_at_most(chance):
    for budget in (3, 7, 20):
        found = Counter(dict.fromkeys(range(7), 0))
        found.update(continued([chance] * 7, budget, 64))
        assert found.total() == budget
        assert max(found.values()) - min(found.values()) <= 1


def test_nobody_goes_on_more_often_than_the_most_and_the_budget_is_never_exceeded():
    assert sorted(continued([0.01, 0.99], 9, 2)) == [0, 0, 1, 1]
    assert continued([], 3, 2) == []
    assert continued([0.2, 0.9], 0, 2) == []
    prefixes = [Continuable(0, 1, True, 0.9), Continuable(1, 1, False, 0.9)]
    controller = BRANCH_CONTROLLERS.make(BRANCH_CONTROLLER.options("trace"))
    assert controller.chosen(prefixes, 1) == [1], "a failure where success was likely"


@pytest.mark.parametrize("places", [[0, 1, 0], [2], [-1]])
def test_a_choice_that_cannot_be_played_is_refused(places):
    with pytest.raises(ValueError, match="at most 2, each at one of 2 prefixes"):
        checked_places(places, 2, 2)


def tree(chances):
    """Three episodes of four turns, and five that go on from them."""
    roots = [played(member, chances.random() < 0.5, 4) for member in range(3)]
    others = [
        played(member, chances.random() < 0.5, 4 - turns, (chances.randrange(3), turns))
        for member in range(3, 8)
        for turns in (chances.randrange(1, 4),)
    ]
    return [*roots, *others]


def backed_up(episodes, root, turns):
    """The recursive definition: the mean of the children's values by their leaves, and a leaf's own outcome."""
    if turns == len(root.samples):
        return float(root.solved), 1
    children = [backed_up(episodes, root, turns + 1)]
    children += [
        (float(one.solved), 1) for one in episodes if one.branch.root == root.member and one.branch.turns == turns
    ]
    count = sum(leaves_of for _, leaves_of in children)
    return sum(value * leaves_of for value, leaves_of in children) / count, count


def test_a_backed_up_value_is_the_mean_of_the_leaves_below():
    for seed in range(20):
        episodes = tree(random.Random(seed))
        rows = iter(examples_of(episodes, 1.0))
        for root in episodes[:3]:
            for turns in (1, 2, 3):
                value, count = backed_up(episodes, root, turns)
                assert len(leaves(episodes, root, turns)) == count
                *_, target, weight = next(rows)
                assert (target, weight) == (pytest.approx(value), count)
        assert next(rows, None) is None


def test_what_is_known_of_a_prefix():
    root, other = played(0, True, 3, rewards=[0.5, 0.25, 1.0]), played(1, False, 2)
    [found] = features_of(root, [Prefix(turns=2, logprob=-0.7)], [other], 2.0)
    assert found == pytest.approx([1.0, math.log(1 / 2), math.log(3.0), -0.7, 0.375])
    assert features_of(root, [Prefix(turns=1, logprob=0.0)], [], 1.0)[0][1] == 0.0


def test_before_the_first_fit_all_prefixes_look_alike_and_then_within_bounds():
    assert predicted([], [1.0, 9.0, 9.0, 9.0, 9.0]) == predicted((), [1.0, 0.0, 0.0, 0.0, 0.0]) == 0.5
    assert predicted(PRIOR, [1.0, 50.0, 0.0, 0.0, 0.0]) == HIGHEST
    assert predicted(PRIOR, [1.0, -50.0, 0.0, 0.0, 0.0]) == LOWEST
    assert predicted(PRIOR, [1.0, math.log(3.0), 0.0, 0.0, 0.0]) == pytest.approx(0.75), "the others' share"


def test_the_predictor_learns_what_tells_prefixes_apart():
    belief, chances = PrefixBelief(), random.Random(2)
    for cohort in range(4):
        for draw in range(40):
            rows = []
            for _ in range(4):
                sure = chances.random() < 0.5
                rows.append(
                    [1.0, 0.0, 0.7, -0.1 if sure else -2.0, 0.0, float(chances.random() < (0.9 if sure else 0.2)), 1.0]
                )
            belief.waiting.setdefault(cohort, {})[draw] = rows
        learn(belief, cohort)
    sure, unsure = (predicted(belief.weights, [1.0, 0.0, 0.7, said, 0.0]) for said in (-0.1, -2.0))
    assert sure == pytest.approx(0.9, abs=0.1)
    assert unsure == pytest.approx(0.2, abs=0.1)
    assert not belief.waiting


def test_a_fit_depends_on_no_order_of_arrival_and_nothing_seen_changes_nothing():
    found = []
    for order in (range(6), reversed(range(6))):
        belief = PrefixBelief()
        for draw in order:
            belief.waiting.setdefault(3, {})[draw] = examples_of(tree(random.Random(draw)), 1.0)
        learn(belief, 3)
        found.append(belief.weights)
    assert found[0] == found[1]
    assert len(found[0]) == len(PRIOR)
    learn(belief, 4)
    assert belief.weights == found[1]
