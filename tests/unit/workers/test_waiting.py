"""Declared waits of environments: their shapes, and environments that fail by being slow."""

import math
import random
import statistics

import pytest

from flexmarl.contracts.problems import SpecProblems
from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.specification.environment_base import Latency
from workers.rollout.waiting import AttemptWaits


def drawn(count: int = 20_000, **latency: object) -> list[float]:
    waits = AttemptWaits(Latency(**latency), random.Random(5))
    return [waits.next_s() for _ in range(count)]


def test_a_log_normal_wait_has_its_median_and_its_cap():
    waits = drawn(scale_s=0.5, sigma=1.0, cap_s=2.0)
    assert statistics.median(waits) == pytest.approx(0.5, rel=0.05)
    assert max(waits) == 2.0


def test_a_normal_wait_is_never_below_nothing():
    waits = drawn(shape="normal", scale_s=1.0, sigma=1.0, cap_s=600)
    assert statistics.mean(waits) == pytest.approx(1.083, rel=0.02), "what is below 0 is 0"
    assert min(waits) == 0.0
    assert statistics.median(waits) == pytest.approx(1.0, rel=0.05)


def test_a_share_of_attempts_is_slow_once():
    latency = Latency(scale_s=0.0, slow_share=0.25, slow_s=30.0, cap_s=1.0)
    attempts = [AttemptWaits(latency, random.Random(seed)) for seed in range(4000)]
    assert sum(one.next_s() == 30.0 for one in attempts) / 4000 == pytest.approx(0.25, abs=0.03)
    assert [one.next_s() for one in attempts] == [0.0] * 4000


def test_waits_of_earlier_specifications_are_what_they_were():
    plain = AttemptWaits(Latency(scale_s=1.0, sigma=1.0, cap_s=100.0), random.Random(3))
    rng = random.Random(3)
    assert [plain.next_s() for _ in range(3)] == [math.exp(rng.gauss(0.0, 1.0)) for _ in range(3)]


def test_a_logarithm_that_is_too_wide_is_refused_with_what_fits():
    agents = {"guesser": {}, "hinter": {}}
    spec = {"agents": agents, "environment": {"type": "hot_cold", "latency": {"scale_s": 1.0, "sigma": 5.0}}}
    with pytest.raises(SpecProblems) as refused:
        resolve(spec)
    (problem,) = refused.value.problems
    assert "use at most 3, or shape: normal" in problem.detail
