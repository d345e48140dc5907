"""pass@k against counting subsets, intervals against known values, and tests that hold their level."""

from itertools import combinations

import numpy as np
import pytest

from flexmarl.algorithms.pass_rates import difference_p, holm, mean_of, pass_at_k, pass_rate


@pytest.mark.parametrize(("attempts", "solved"), [(n, c) for n in range(1, 8) for c in range(n + 1)])
def test_pass_at_k_is_the_share_of_subsets_with_a_solution(attempts, solved):
    outcomes = [True] * solved + [False] * (attempts - solved)
    for k in range(1, attempts + 1):
        subsets = list(combinations(outcomes, k))
        assert pass_at_k(attempts, solved, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_fewer_attempts_than_k_are_refused():
    with pytest.raises(ValueError, match="at least 4 attempts"):
        pass_at_k(3, 1, 4)


def test_the_interval_of_one_attempt_is_wilsons():
    rate = pass_rate([(1, 1)] * 8 + [(1, 0)] * 12, 1)
    assert rate is not None
    assert (rate.method, rate.value) == ("wilson", 0.4)
    assert (rate.low, rate.high) == (pytest.approx(0.2188, abs=1e-4), pytest.approx(0.6134, abs=1e-4))
    assert pass_rate([], 1) is None


def test_the_bootstrap_covers_the_mean_of_tasks_and_repeats():
    rng, covered = np.random.default_rng(1), 0
    for trial in range(60):
        rate = mean_of(rng.beta(2, 3, 40).tolist(), trial)
        covered += rate.low <= 0.4 <= rate.high
    assert covered >= 51
    assert mean_of([0.1, 0.4, 0.9], 5) == mean_of([0.1, 0.4, 0.9], 5)


def test_a_difference_between_equals_is_seldom_significant_and_a_large_one_is():
    rng = np.random.default_rng(2)
    p = [difference_p(rng.random(30).tolist(), rng.random(30).tolist(), seed) for seed in range(60)]
    assert sum(one < 0.05 for one in p) <= 8
    assert difference_p([1.0] * 20, [0.0] * 20) < 0.001
    assert difference_p([0.5] * 5, [0.5] * 5) == 1.0
    with pytest.raises(ValueError, match="same tasks"):
        difference_p([1.0], [])


def test_holm_corrects_for_all_tests():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []
